"""Whether malformed answers are asked for again, and who chooses that."""

from __future__ import annotations

import pytest
from django.test import Client

from tenants.models import AuditEntry, Tenant
from tests.frontend.clients import client_of
from tests.tenants.making import make_key

ROLES = ("owner", "admin", "developer", "viewer", "operator", "outsider")


@pytest.mark.parametrize("role", ROLES)
def test_admins_choose_it(tenant: Tenant, role: str) -> None:
    client, page = client_of(tenant, role), f"/t/{tenant.slug}/adapters"
    allowed = role in ("owner", "admin", "operator")
    if role != "outsider":
        assert ("Repair malformed answers" in client.get(page).content.decode()) == allowed
    answer = client.post(f"{page}/repair", {"repair": "once"})
    tenant.refresh_from_db()
    assert (tenant.repair == "once") == allowed
    assert answer.status_code == (302 if allowed else 404 if role == "outsider" else 403)
    if allowed:
        assert "Both answers are billed" in client.get(page).content.decode()
        entry = AuditEntry.objects.get(tenant=tenant, kind="tenant", action="changed")
        assert entry.after == {"repair": "once"}
        client.post(f"{page}/repair", {"repair": "never"})
        tenant.refresh_from_db()
        assert tenant.repair == "never"


def test_the_api_has_it(tenant: Tenant) -> None:
    where = f"/api/v1/tenants/{tenant.slug}"
    owner = client_of(tenant, "owner")
    assert owner.get(where).json()["repair"] == "never"
    changed = owner.patch(where, {"repair": "once"}, "application/json")
    assert changed.json()["repair"] == "once"
    wrong = owner.patch(where, {"repair": "twice"}, "application/json")
    assert wrong.status_code == 400 and wrong.json()["errors"][0]["field"] == "repair"
    key = Client(headers={"Authorization": f"Bearer {make_key(tenant, 'adapters:write')[1]}"})
    assert key.patch(where, {"repair": "never"}, "application/json").status_code == 403
