"""The audit log's page and its CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from tenants.models import ApiKey, AuditEntry, Tenant
from tests.frontend.clients import address, client_of, user_of
from tests.tenants.making import make_key, make_member, make_tenant


def names(page: Any) -> list[tuple[str, str, str]]:
    return [(entry.action, entry.kind, entry.name) for entry, *_ in page.context["entries"]]


def rows(answer: Any) -> list[list[str]]:
    async def collect() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return list(csv.reader(io.StringIO(async_to_sync(collect)().decode(), newline="")))


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 200), ("admin", 200), ("operator", 200), ("developer", 403), ("viewer", 403),
     ("outsider", 404)],
)  # fmt: skip
def test_who_reads_it(tenant: Tenant, role: str, status: int) -> None:
    client = client_of(tenant, role)
    for page in ("audit", "audit/csv"):
        assert client.get(address(tenant, page)).status_code == status


def test_an_entry_shows_who_changed_what_and_from_where(tenant: Tenant) -> None:
    owner = make_member(tenant, "owner")
    one = make_member(tenant, "viewer").memberships.get()
    client = Client(REMOTE_ADDR="192.0.2.7")
    client.force_login(owner)
    client.post(address(tenant, f"members/{one.pk}/role"), {"role": "developer"})
    page = client.get(address(tenant, "audit"))
    (entry, kind, changes), *_ = page.context["entries"]
    assert (entry.actor_name, entry.address, kind) == (owner.username, "192.0.2.7", "member")
    assert [(one.name, one.before, one.after) for one in changes] == [
        ("role", "viewer", "developer")
    ]
    text = page.content.decode()
    assert f"req_{entry.request_id}" in text and one.user.username in text


def test_another_tenants_entries_are_not_there(tenant: Tenant, admin: Client) -> None:
    other = make_tenant("rival")
    ApiKey.objects.issue(other, name="rivals", scopes=["inference"])
    assert "rival" not in admin.get(address(tenant, "audit")).content.decode()
    exported = rows(admin.get(address(tenant, "audit/csv")))
    assert all("rival" not in ",".join(row) for row in exported)


def test_secrets_are_not_there(tenant: Tenant, admin: Client) -> None:
    make_key(tenant)
    text = admin.get(address(tenant, "audit")).content.decode()
    assert "secret" not in text and "hmac" not in text


def test_the_log_is_filtered(tenant: Tenant, admin: Client) -> None:
    make_key(tenant)
    ApiKey.objects.update(name="renamed")
    where = address(tenant, "audit")
    assert names(admin.get(where, {"kind": "key"})) == [
        ("changed", "key", "renamed"),
        ("created", "key", "a key"),
    ]
    assert names(admin.get(where, {"kind": "key", "action": "changed"})) == [
        ("changed", "key", "renamed")
    ]
    assert (
        len(names(admin.get(where, {"actor": "System"})))
        == AuditEntry.objects.filter(tenant=tenant).count()
    )
    nobody = admin.get(where, {"actor": "nobody"})
    assert names(nobody) == [] and "No entry matches" in nobody.content.decode()
    day = AuditEntry.objects.first().at.date().isoformat()  # type: ignore[union-attr]
    assert names(admin.get(where, {"since": day, "until": day, "kind": "key"}))
    assert not names(admin.get(where, {"until": "2020-01-01"}))


@pytest.mark.parametrize(
    "query",
    [{"kind": "nonsense"}, {"action": "x"}, {"since": "yesterday"}, {"actor": "a\0b"},
     {"since": "2026-02-02", "until": "2026-02-01"}, {"until": "9999-12-31"}],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_is_told(
    tenant: Tenant, admin: Client, query: dict[str, str]
) -> None:
    page = admin.get(address(tenant, "audit"), query)
    assert page.status_code == 422 and names(page) == []
    assert 'role="alert"' in page.content.decode()
    assert admin.get(address(tenant, "audit/csv"), query).status_code == 422


def test_the_log_is_paged(
    tenant: Tenant, admin: Client, django_assert_max_num_queries: Any
) -> None:
    for i in range(60):
        ApiKey.objects.issue(tenant, name=f"key {i:02}", scopes=["inference"])
    where = address(tenant, "audit")
    with django_assert_max_num_queries(12):
        first = admin.get(where, {"kind": "key"})
    assert names(first)[0] == ("created", "key", "key 59") and len(names(first)) == 50
    assert f"kind=key&amp;before={first.context['last'].pk}" in first.content.decode()
    second = admin.get(where, {"kind": "key", "before": first.context["last"].pk})
    assert names(second)[-1] == ("created", "key", "key 00") and len(names(second)) == 10
    assert second.context["last"] is None


def test_the_csv_has_all_of_it_and_no_formula(tenant: Tenant, admin: Client) -> None:
    ApiKey.objects.issue(tenant, name="=1+1", scopes=["inference"])
    answer = admin.get(address(tenant, "audit/csv"), {"kind": "key"})
    header, row = rows(answer)
    assert answer["Content-Disposition"] == 'attachment; filename="audit-acme.csv"'
    told = dict(zip(header, row, strict=True))
    assert (told["action"], told["name"], told["actor_kind"]) == ("created", "'=1+1", "system")
    assert '"scopes": ["inference"]' in told["after"]


def test_an_operators_look_is_in_it(tenant: Tenant, admin: Client) -> None:
    operator = client_of(tenant, "operator")
    operator.get(address(tenant, "members"))
    page = admin.get(address(tenant, "audit"), {"action": "viewed"})
    assert names(page) == [("viewed", "tenant", "acme")]
    ((entry, *_),) = page.context["entries"]
    assert (entry.actor_kind, entry.actor_name) == ("user", user_of(operator).username)
