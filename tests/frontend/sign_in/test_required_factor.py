"""A tenant that requires a second factor opens to nobody without one: no page, part, API or
socket."""

from __future__ import annotations

import time
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from django.test import Client

from tenants.models import AuditEntry, Tenant
from tests.frontend.clients import client_of, user_of
from tests.frontend.live.sockets import asked
from tests.frontend.sign_in.doors import doors
from tests.tenants.making import make_key, make_tenant

pytestmark = pytest.mark.django_db

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
OF_TENANT = [door for door in doors() if door.path.startswith("/t/")]
OF_API = [door for door in doors() if door.path.startswith("/api/v1/")]
LISTED = ("tenants",)
"""The API lists a person's tenants by name, as the console's menu does."""
ROLES = ["owner", "admin", "developer", "viewer", "operator"]


def protect(client: Client) -> Client:
    """Give the client's user a second factor."""
    totp.TOTP.activate(user_of(client), totp.generate_totp_secret())
    return client


@pytest.fixture
def closed(tenant: Tenant) -> Tenant:
    Tenant.objects.filter(pk=tenant.pk).update(second_factor_required=True, name="Hidden Ltd")
    return tenant


@pytest.mark.parametrize("role", ROLES)
def test_no_page_opens_without_it(closed: Tenant, role: str) -> None:
    """One role tries every address with every method, the others share the addresses."""
    client = client_of(closed, role)
    assert len(OF_TENANT) > 80
    first = role == ROLES[0]
    methods = METHODS if first else ("GET", "POST")
    for door in OF_TENANT if first else OF_TENANT[ROLES.index(role) - 1 :: len(ROLES) - 1]:
        for method in methods:
            answer = client.generic(method, door.path)
            assert answer.status_code in (302, 403, 405), (method, door)
            if answer.status_code == 302:
                assert answer["Location"].startswith("/account/second-factor"), door
            said = answer.content.decode(errors="replace")
            assert "Hidden Ltd" not in said or "requires a second factor" in said, door
    assert not AuditEntry.objects.filter(tenant=closed, action="viewed").exists()


@pytest.mark.parametrize("role", ["owner", "operator"])
def test_nor_does_the_api(closed: Tenant, role: str) -> None:
    client = client_of(closed, role)
    for door in OF_API if role == "owner" else []:  # operators see the whole installation
        answer = client.get(door.path, {"tenant": closed.slug})
        told = answer.content.decode(errors="replace")
        if door.path.removeprefix("/api/v1/").rstrip("/") in LISTED:
            continue
        assert "Hidden Ltd" not in told or "requires a second factor" in told, door
    for where in ("keys", f"tenants/{closed.slug}", "members"):
        query = {} if "/" in where else {"tenant": closed.slug}
        refused = client.get(f"/api/v1/{where}", query)
        assert (refused.status_code, refused.json()["code"]) == (403, "second_factor_required")


@pytest.mark.parametrize("purpose", ["live", "playground"])
def test_nor_does_a_socket(closed: Tenant, purpose: str) -> None:
    client = client_of(closed, "developer")
    assert asked(client, purpose, closed.slug).status_code == 403
    assert asked(protect(client), purpose, closed.slug).status_code == 200


def test_a_key_is_not_affected(closed: Tenant) -> None:
    _, text = make_key(closed, "admin")
    asked = Client().get("/api/v1/keys", headers={"Authorization": f"Bearer {text}"})
    assert asked.status_code == 200


def test_who_has_one_goes_on_and_the_others_are_led_to_it(closed: Tenant) -> None:
    client = client_of(closed, "viewer")
    led = client.get(f"/t/{closed.slug}/members")
    page = client.get(led["Location"]).text
    assert "Hidden Ltd requires a second factor" in page and "Not now" not in page
    part = client.get(f"/t/{closed.slug}/members", headers={"HX-Request": "true"})
    assert (part.status_code, part["HX-Redirect"][:22]) == (204, "/account/second-factor")
    assert client.get(f"/t/{make_tenant().slug}/").status_code == 404
    protect(client)
    assert client.get(led["Location"])["Location"] == f"/t/{closed.slug}/members"
    assert client.get(f"/t/{closed.slug}/members").status_code == 200


def test_nobody_learns_of_anothers_tenant_by_being_led(closed: Tenant) -> None:
    client = client_of(closed, "outsider")
    answer = client.get("/account/second-factor", {"next": f"/t/{closed.slug}/"})
    assert answer.status_code == 302 and "Hidden" not in answer.text


def test_single_sign_on_counts_as_one(closed: Tenant) -> None:
    client = client_of(closed, "viewer")
    session = client.session
    session["account_authentication_methods"] = [{"method": "socialaccount", "at": time.time()}]
    session["account_authentication_methods_user"] = str(user_of(client).pk)
    session.save()
    assert client.get(f"/t/{closed.slug}/").status_code == 200


def test_other_tenants_stay_open(closed: Tenant) -> None:
    assert client_of(make_tenant(), "viewer").get("/", follow=True).status_code == 200


# --- Requiring it --------------------------------------------------------------------------------


def choose(client: Client, tenant: Tenant, required: str = "yes") -> Any:
    return client.post(f"/t/{tenant.slug}/members/second-factor", {"required": required})


@pytest.mark.parametrize("role", [*ROLES, "outsider"])
def test_owners_and_operators_require_it(tenant: Tenant, role: str) -> None:
    answer = choose(protect(client_of(tenant, role)), tenant)
    tenant.refresh_from_db()
    allowed = role in ("owner", "operator")
    assert tenant.second_factor_required == allowed
    assert answer.status_code == (302 if allowed else 404 if role == "outsider" else 403)
    if allowed:
        entry = AuditEntry.objects.get(tenant=tenant, kind="tenant", action="changed")
        assert entry.after == {"second_factor_required": True}


def test_nobody_shuts_themselves_out(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    choose(owner, tenant)
    refused = owner.patch(
        f"/api/v1/tenants/{tenant.slug}",
        {"second_factor_required": True},
        "application/json",
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "second_factor_required")
    tenant.refresh_from_db()
    assert not tenant.second_factor_required


def test_the_api_requires_it_too(tenant: Tenant) -> None:
    where, body = f"/api/v1/tenants/{tenant.slug}", {"second_factor_required": True}
    refused = client_of(tenant, "admin").patch(where, body, "application/json")
    assert refused.status_code == 403
    _, text = make_key(tenant, "admin")
    by_key = Client(headers={"Authorization": f"Bearer {text}"})
    assert by_key.patch(where, body, "application/json").status_code == 403
    owner = protect(client_of(tenant, "owner"))
    assert owner.patch(where, body, "application/json").json()["second_factor_required"] is True


def test_who_removes_theirs_is_asked_again_at_the_next_sign_in(closed: Tenant) -> None:
    client = protect(client_of(closed, "viewer"))
    Authenticator.objects.all().delete()
    assert client.get(f"/t/{closed.slug}/").status_code == 302
