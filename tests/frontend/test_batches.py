"""The pages of batches: permissions, contents, cancelling, downloads."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from inference.gateway.lines.seals import line_id
from tenants.batch_states import Status
from tenants.models import ApiKey, AuditEntry, Batch, Tenant, UsageEvent
from tests.frontend.clients import client_of
from tests.tenants.making import make_batch, make_key, make_tenant
from tests.tenants.spending import spend

MAKERS = ("owner", "admin", "developer", "operator")


@pytest.fixture
def batch(key: ApiKey) -> Batch:
    return make_batch(key, completed=3, failed=1, prompt_tokens=1234)


def at(batch: Batch, *rest: str) -> str:
    return "/".join(["/t", batch.tenant.slug, "batches", batch.pk, *rest])


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("role", MAKERS)
def test_who_may_make_keys_sees_batches(tenant: Tenant, batch: Batch, role: str) -> None:
    client = client_of(tenant, role)
    assert batch.pk in text(client, f"/t/{tenant.slug}/batches")
    shown = text(client, at(batch))
    assert "In progress" in shown and "1,234" in shown and "of 10" in shown


def test_nobody_else_does(tenant: Tenant, batch: Batch) -> None:
    for role, status in (("viewer", 403), ("outsider", 404)):
        client = client_of(tenant, role)
        for path in (f"/t/{tenant.slug}/batches", at(batch), at(batch, "files", "input")):
            assert client.get(path).status_code == status
        assert client.post(at(batch, "cancel")).status_code == status
    other = make_batch(make_key(make_tenant())[0])
    mine = client_of(tenant, "owner")
    for path in (at(other), at(other, "files", "input")):
        stolen = path.replace(other.tenant.slug, tenant.slug)
        assert mine.get(stolen).status_code == 404
    assert other.pk not in text(mine, f"/t/{tenant.slug}/batches")


def test_an_empty_list_says_how_to_begin(tenant: Tenant) -> None:
    assert "client.batches.create" in text(client_of(tenant, "owner"), f"/t/{tenant.slug}/batches")


def test_a_batch_is_cancelled_once(tenant: Tenant, batch: Batch) -> None:
    client = client_of(tenant, "developer")
    assert "Cancel this batch?" in text(client, at(batch))
    assert client.post(at(batch, "cancel")).headers["Location"] == at(batch)
    batch.refresh_from_db()
    assert batch.status == Status.CANCELLING
    assert AuditEntry.objects.filter(action="cancelled batch", name=batch.pk).count() == 1
    assert "Cancel this batch?" not in text(client, at(batch))
    Batch.objects.filter(pk=batch.pk).update(status=Status.CANCELLED, ended_at=timezone.now())
    client.post(at(batch, "cancel"))
    assert "had already ended" in text(client, at(batch))


def test_files_are_downloaded_while_they_are_there(tenant: Tenant, batch: Batch) -> None:
    client = client_of(tenant, "developer")
    answer = client.get(at(batch, "files", "input"))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="lines.jsonl"'
    assert answer.headers["Content-Length"] == "3"
    assert AuditEntry.objects.filter(action="downloaded file").count() == 1
    for role in ("output", "error", "seal"):
        assert client.get(at(batch, "files", role)).status_code == 404
    tenant.files.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get(at(batch, "files", "input")).status_code == 404
    assert "deleted or expired" in text(client, at(batch))


def test_what_is_wrong_is_told_by_line(tenant: Tenant, key: ApiKey) -> None:
    errors = [{"code": "duplicate_custom_id", "message": "Twice.", "param": None, "line": 7}]
    failed = make_batch(key, status=Status.FAILED, ended_at=timezone.now(), errors=errors)
    shown = text(client_of(tenant, "developer"), at(failed))
    assert "duplicate_custom_id" in shown and ">7<" in shown and "Failed" in shown


def test_what_it_cost_is_the_sum_of_its_lines(tenant: Tenant, batch: Batch, key: ApiKey) -> None:
    for id in (line_id(batch.pk, 1), line_id(batch.pk, 50_000), "f" * 32):
        event = spend(key, batch.created_at)
        UsageEvent.objects.filter(pk=event.pk).update(id=id)
    client = client_of(tenant, "owner")
    shown = client.get(at(batch))
    assert shown.context["cost"] == 2 * event.cost
    one = text(client, f"/t/{tenant.slug}/requests/{line_id(batch.pk, 50_000)}")
    assert batch.pk in one and "line 50000" in one
    assert batch.pk not in text(client, f"/t/{tenant.slug}/requests/{'f' * 32}")


def test_the_list_comes_in_pages_and_is_told_apart(tenant: Tenant, key: ApiKey) -> None:
    now = timezone.now()
    # Four at each time, so that both pages have some of the same time.
    made = [make_batch(key, created_at=now - timedelta(minutes=n // 4)) for n in range(52)]
    made.sort(key=lambda one: (one.created_at, one.pk), reverse=True)
    client = client_of(tenant, "owner")
    first = client.get(f"/t/{tenant.slug}/batches")
    assert [row.pk for row, _ in first.context["rows"]] == [one.pk for one in made[:50]]
    rest = client.get(f"/t/{tenant.slug}/batches?after={made[49].pk}")
    assert [row.pk for row, _ in rest.context["rows"]] == [one.pk for one in made[50:]]
    fingerprint = f'"{first.context["fingerprint"]}"'
    again = client.get(f"/t/{tenant.slug}/batches", headers={"If-None-Match": fingerprint})
    assert again.status_code == 304
    Batch.objects.filter(pk=made[0].pk).update(completed=1)
    again = client.get(f"/t/{tenant.slug}/batches", headers={"If-None-Match": fingerprint})
    assert again.status_code == 200
