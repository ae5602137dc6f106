"""Credentials of engines, and quarantined entries, over the management API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from django.test import Client

from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.models import AuditEntry, EngineCredential, QuarantinedEntry, UsageEvent
from tests.tenants.making import make_key, make_tenant, make_user

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(make_user("operator", is_staff=True))
    return client


def post(client: Client, path: str, body: Any = None) -> Any:
    return client.post(f"/api/v1/{path}", body or {}, "application/json")


def test_a_credential_from_its_making_to_its_end(operator: Client) -> None:
    made = post(operator, "engine-credentials", {"name": "gpu-1", "pools": ["llama"]})
    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")
    text = made.json()["secret"]
    credential = EngineCredential.objects.get()
    assert credential.matches(text) and credential.created_by is not None
    listed = operator.get("/api/v1/engine-credentials").json()
    (row,) = listed["results"]
    assert row | {"name": "gpu-1", "pools": ["llama"], "created_by": "operator"} == row
    assert "secret" not in row and text[16:] not in str(listed)
    rotated = post(operator, f"engine-credentials/{credential.pk}/rotate")
    assert (rotated.status_code, rotated["Cache-Control"]) == (200, "no-store")
    credential.refresh_from_db()
    assert credential.matches(rotated.json()["secret"]) and not credential.matches(text)
    assert operator.delete(f"/api/v1/engine-credentials/{credential.pk}").status_code == 204
    again = post(operator, f"engine-credentials/{credential.pk}/rotate")
    assert (again.status_code, again.json()["code"]) == (409, "credential_revoked")
    actors = AuditEntry.objects.filter(kind="credential").values_list("actor_name", flat=True)
    assert list(actors) == ["operator"] * 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"name": ""}, 400),
        ({"name": "x" * 201}, 400),
        ({"name": "a", "pools": []}, 400),
        ({"name": "a", "pools": ["a b"]}, 400),
        ({"name": "a", "secret": "le_x"}, 400),
        ({"name": "taken"}, 409),
        ({"name": "a", "pools": None}, 201),
    ],
)
def test_valid_and_invalid_credentials(operator: Client, body: Any, status: int) -> None:
    EngineCredential.objects.issue(name="taken")
    assert post(operator, "engine-credentials", body).status_code == status


def test_quarantined_entries_are_listed_billed_and_dismissed(operator: Client) -> None:
    tenant = make_tenant("acme")
    at = datetime(2026, 5, 1, tzinfo=UTC).timestamp()
    account = Account(tenant.pk, make_key(tenant)[0].pk, at, "base", price=(1, 1, 1))
    rows = []
    for id in ("r1", "r2"):
        entry = LedgerEntry(id, account, "base", Usage(5, 0, 2), "stop")
        rows.append(
            QuarantinedEntry.objects.create(
                engine_id="e1",
                journal="j1",
                key=id,
                request_id=id,
                attempt=1,
                reason="unsigned",
                prompt_tokens=5,
                completion_tokens=2,
                entry=msgspec.json.encode(entry).decode(),
            )
        )
    listed = operator.get("/api/v1/quarantine?status=open&request_id=r1").json()
    assert listed["count"] == 1
    (row,) = listed["results"]
    assert (row["tenant_id"], row["reason"], row["status"]) == (tenant.pk, "unsigned", "open")
    assert row["why"].endswith("dispatched the request.") and row["credential"] is None
    billed = post(operator, f"quarantine/{rows[0].pk}/bill").json()
    assert (billed["status"], billed["decided_by"]) == ("billed", "operator")
    dismissed = post(operator, f"quarantine/{rows[1].pk}/dismiss").json()
    assert (dismissed["status"], dismissed["decided_by"]) == ("dismissed", "operator")
    assert list(UsageEvent.objects.values_list("id", flat=True)) == ["r1"]
    assert post(operator, f"quarantine/{rows[0].pk}/dismiss").json()["code"] == "already_decided"
    names = AuditEntry.objects.filter(kind="quarantined").values_list("actor_name", flat=True)
    assert list(names) == ["operator", "operator"]
