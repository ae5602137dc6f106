"""The console's pages without a browser: which role sees what, and what the forms do."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as configured
from django.test import Client

from frontend.navigation import TENANT
from gateway.middleware import policy
from tenants.models import (
    ApiKey,
    AuditEntry,
    Invitation,
    LimitSet,
    Membership,
    Role,
    State,
    Tenant,
)
from tenants.permissions import RANK, TABLE
from tests.frontend.addresses import pages, parts
from tests.frontend.clients import address, client_of, user_of
from tests.tenants.making import (
    make_adapter,
    make_key,
    make_member,
    make_tenant,
    make_user,
    make_version,
)

ROLES = ("owner", "admin", "developer", "viewer")


@pytest.mark.parametrize("role", [*ROLES, "operator"])
def test_members_and_operators_see_the_pages_of_a_tenant(tenant: Tenant, role: str) -> None:
    client = client_of(tenant, role)
    for entry in TENANT:
        page = client.get(address(tenant, entry.page))
        least = TABLE[entry.needs][0]
        if role != "operator" and (least is None or RANK.index(Role(role)) < RANK.index(least)):
            assert page.status_code == 403, entry
            continue
        assert page.status_code == 200, entry
        assert tenant.name in page.content.decode(), entry
        assert page["Content-Security-Policy"] == policy(configured.API_URL), entry


def test_outsiders_and_anonymous_users_get_no_page(tenant: Tenant) -> None:
    outsider, nobody = client_of(tenant, "outsider"), client_of(tenant, "nobody")
    for where in (address(tenant, entry.page) for entry in TENANT):
        assert outsider.get(where).status_code == 404, where
        away = nobody.get(where)
        assert (away.status_code, away["Location"]) == (302, f"/account/login/?next={where}")


def test_a_missing_page_keeps_the_sidebar_of_who_is_signed_in(tenant: Tenant) -> None:
    sidebar, heading = f'<nav aria-label="{tenant.name}">', "<h1>Not found</h1>"
    client, other = client_of(tenant, "viewer"), client_of(tenant, "outsider")
    for where in (address(tenant, "adapters/nothing/"), address(tenant, "no-such-page")):
        page = client.get(where)
        assert page.status_code == 404 and sidebar in page.text and heading in page.text
        page = other.get(where)
        assert page.status_code == 404 and 'id="sidebar"' in page.text
        assert tenant.name not in page.text
    for where in ("/operate/", "/no-such-page"):
        page = client.get(where)
        assert page.status_code == 404 and 'id="sidebar"' in page.text
    page = client_of(tenant, "nobody").get("/no-such-page")
    assert page.status_code == 404 and heading in page.text and "sidebar" not in page.text


def test_a_forbidden_page_says_why_in_a_sentence(tenant: Tenant) -> None:
    page = client_of(tenant, "viewer").get(address(tenant, "audit"))
    assert (page.status_code, "<p>You may not see the audit log. " in page.content.decode()) == (
        403,
        True,
    )


def test_the_playgrounds_own_key_is_none_that_programs_hold(tenant: Tenant) -> None:
    ApiKey.objects.open_playground(tenant)
    page = client_of(tenant, "owner").get(address(tenant, "keys"))
    assert "No API keys yet." in page.content.decode()


def test_a_part_of_a_page_sends_the_whole_page_to_sign_in(tenant: Tenant) -> None:
    part = Client().get(address(tenant, "overview"), headers={"HX-Request": "true"})
    assert (part.status_code, part["HX-Redirect"]) == (204, "/account/login/")


@pytest.mark.django_db
@pytest.mark.parametrize("slug", ["%00", "a%00b", "no such", "%F0%9F%A6%9C"])
def test_a_strange_tenant_is_not_found(slug: str) -> None:
    assert client_of(make_tenant(), "operator").get(f"/t/{slug}/").status_code == 404


def test_an_operators_look_is_in_the_tenants_log_once_an_hour(tenant: Tenant) -> None:
    client = client_of(tenant, "operator")
    for page in ("overview", "keys"):
        client.get(address(tenant, page))
    (entry,) = AuditEntry.objects.filter(action="viewed")
    assert (entry.tenant, entry.actor_kind) == (tenant, "user")
    client_of(tenant, "owner").get(address(tenant, "overview"))
    assert AuditEntry.objects.filter(action="viewed").count() == 1


def test_a_key_is_made_shown_once_and_listed_without_its_text(tenant: Tenant) -> None:
    client = client_of(tenant, "developer")
    body = {"name": "billing", "scopes": ["inference"], "lane": "batch", "expires": "30"}
    shown = client.post(address(tenant, "keys"), body, follow=True)
    key = ApiKey.objects.get()
    secret = shown.context["shown_once"].text
    assert secret in shown.text and shown["Cache-Control"].startswith("max-age=0")
    assert ApiKey.objects.find(secret) == key
    assert (key.lane, key.created_by) == ("batch", shown.wsgi_request.user)
    assert key.expires_at is not None
    listed = client.get(address(tenant, "keys")).content.decode()
    assert "billing" in listed and secret not in listed


@pytest.mark.parametrize(
    ("role", "body", "status"),
    [
        ("developer", {"name": "", "scopes": ["inference"], "lane": "interactive"}, 422),
        ("developer", {"name": "x", "scopes": ["admin"], "lane": "interactive"}, 422),
        ("developer", {"name": "x", "scopes": ["usage:read"], "lane": "interactive"}, 422),
        ("admin", {"name": "x", "scopes": ["admin"], "lane": "interactive"}, 302),
        ("viewer", {"name": "x", "scopes": ["inference"], "lane": "interactive"}, 403),
    ],
)
def test_a_key_takes_a_role_that_may_give_its_scopes(
    tenant: Tenant, role: str, body: dict[str, Any], status: int
) -> None:
    assert client_of(tenant, role).post(address(tenant, "keys"), body).status_code == status
    assert ApiKey.objects.exists() == (status == 302)


def test_a_key_may_be_made_with_limits_of_its_own(tenant: Tenant) -> None:
    LimitSet.objects.create(tenant=tenant, author="operator", requests_per_minute=100)
    client, where = client_of(tenant, Role.ADMIN), address(tenant, "keys")
    body = {"name": "ci", "scopes": "inference", "lane": "batch", "tenant-cost_per_day": "1.5"}
    refused = client.post(where, body | {"tenant-requests_per_minute": "101"})
    assert refused.status_code == 422 and "101 is above the ceiling of 100." in refused.text
    assert not ApiKey.objects.exists()
    client.post(where, body | {"tenant-requests_per_minute": "60"})
    made: Any = LimitSet.objects.get(key=ApiKey.objects.get())
    assert (made.author, made.requests_per_minute, made.cost_per_day) == ("tenant", 60, 1_500_000)
    client.post(where, {"name": "free", "scopes": "inference", "lane": "batch"})
    assert not LimitSet.objects.filter(key__name="free").exists()


def test_a_member_who_may_not_set_limits_creates_keys_without_limits(tenant: Tenant) -> None:
    body = {"name": "ci", "scopes": "inference", "lane": "batch"}
    client, where = client_of(tenant, Role.DEVELOPER), address(tenant, "keys")
    made = client.post(where, body | {"tenant-requests_per_minute": "60"}, follow=True)
    assert "Limits of this key" not in made.text
    assert ApiKey.objects.count() == 1 and not LimitSet.objects.exists()


def test_a_rotated_key_is_like_the_old_one_which_ends_later(tenant: Tenant) -> None:
    client = client_of(tenant, "admin")
    old, _ = make_key(tenant, "inference", allowed_models=["support"])
    LimitSet.objects.create(tenant=tenant, key=old, author="tenant", requests_per_minute=7)
    rotate = address(tenant, f"keys/{old.pk}/rotate")
    answer = client.post(rotate, {"overlap": "1"}, follow=True)
    new = ApiKey.objects.find(answer.context["shown_once"].text)
    assert new is not None and new.pk != old.pk
    assert (new.scopes, new.allowed_models) == (["inference"], ["support"])
    limits: Any = new.limit_sets.get()
    assert limits.requests_per_minute == 7
    old.refresh_from_db()
    assert old.revoked_at is None and old.expires_at is not None
    client.post(rotate, {"overlap": "0"})
    old.refresh_from_db()
    assert old.revoked_at is not None


def test_a_key_is_offered_the_adapters_that_can_be_asked(tenant: Tenant) -> None:
    for name, state in (("served", State.READY), ("refused", State.REJECTED)):
        make_version(make_adapter(tenant, name), state=state)
    make_adapter(tenant, "empty")
    page = client_of(tenant, "owner").get(address(tenant, "keys"))
    offered = page.context["form"]["models"].field.choices
    assert [name for name, _ in offered] == ["served", "base"]


def test_a_developer_ends_only_keys_of_his_own(tenant: Tenant) -> None:
    client = client_of(tenant, "developer")
    other, _ = make_key(tenant)
    assert client.post(address(tenant, f"keys/{other.pk}/revoke")).status_code == 403
    foreign, _ = make_key(make_tenant())
    assert client.post(address(tenant, f"keys/{foreign.pk}/revoke")).status_code == 404
    client.post(address(tenant, "keys"), {"name": "own", "scopes": "inference", "lane": "batch"})
    own = ApiKey.objects.get(name="own")
    assert client.post(address(tenant, f"keys/{own.pk}/revoke")).status_code == 302
    own.refresh_from_db()
    assert own.revoked_at is not None


def test_a_viewer_is_offered_no_change_of_a_key_that_he_made_before(tenant: Tenant) -> None:
    client = client_of(tenant, "developer")
    client.post(address(tenant, "keys"), {"name": "own", "scopes": "inference", "lane": "batch"})
    revoke = f"keys/{ApiKey.objects.get(name='own').pk}/revoke".encode()
    assert revoke in client.get(address(tenant, "keys")).content
    user_of(client).memberships.update(role="viewer")
    page = client.get(address(tenant, "keys"))
    assert b"own" in page.content and revoke not in page.content


def test_revoked_keys_are_shown_on_request(tenant: Tenant) -> None:
    client, where = client_of(tenant, "owner"), address(tenant, "keys")
    live, _ = make_key(tenant)
    for _ in range(3):
        make_key(tenant)[0].revoke()
    make_key(make_tenant())[0].revoke()
    page = client.get(where, {"q": live.name})
    assert [row.key for row in page.context["keys"]] == [live]
    assert '&amp;show=revoked">Show 3 revoked</a>' in page.text
    page = client.get(where, {"show": "revoked"})
    assert len(page.context["keys"]) == 4 and 'href="?">Hide revoked</a>' in page.text
    live.revoke()
    assert "All keys are revoked." in client.get(where).text


def test_keys_are_filtered_and_paged_in_the_address(tenant: Tenant) -> None:
    client = client_of(tenant, "owner")
    for i in range(52):
        ApiKey.objects.issue(tenant, name=f"key {i:02}", scopes=["inference"])
    first = client.get(address(tenant, "keys"))
    assert len(first.context["keys"]) == 50
    second = client.get(address(tenant, "keys"), {"before": first.context["last"].pk})
    assert len(second.context["keys"]) == 2 and second.context["last"] is None
    found = client.get(address(tenant, "keys"), {"q": "key 07"})
    assert [row.key.name for row in found.context["keys"]] == ["key 07"]
    none = client.get(address(tenant, "keys"), {"q": "nothing"}).content.decode()
    assert "No key matches" in none


def test_a_suspended_tenant_is_only_read(tenant: Tenant) -> None:
    client = client_of(tenant, "owner")
    Tenant.objects.update(status="suspended")
    assert client.get(address(tenant, "keys")).status_code == 200
    body = {"name": "x", "scopes": ["inference"], "lane": "interactive"}
    assert client.post(address(tenant, "keys"), body).status_code == 403


@pytest.fixture
def invited(tenant: Tenant) -> str:
    """The address of an invitation as developer."""
    by = make_member(tenant, "admin")
    _, token = Invitation.objects.invite(tenant, role=Role.DEVELOPER, note="Bo", by=by)
    return f"/invitations/{token}"


def test_an_invitation_makes_whoever_opens_it_a_member_once(tenant: Tenant, invited: str) -> None:
    user = make_user()
    client = Client()
    client.force_login(user)
    assert tenant.name in client.get(invited, follow=True).content.decode()
    assert client.post("/join")["Location"] == f"/t/{tenant.slug}/"
    assert Membership.objects.get(user=user, tenant=tenant).role == "developer"
    second = Client()
    second.force_login(make_user())
    assert second.get(invited, follow=True).status_code == 404


def test_only_who_was_invited_can_make_an_account(tenant: Tenant, invited: str) -> None:
    body = {"username": "bo", "password1": "a-long-passphrase", "password2": "a-long-passphrase"}
    stranger = Client()
    assert "by invitation only" in stranger.get("/account/signup/").content.decode()
    stranger.post("/account/signup/", body)
    guest = Client()
    guest.get(invited)
    joined = guest.post("/account/signup/?next=/join", body)
    assert joined["Location"] == "/join"
    guest.post("/join")
    assert Membership.objects.get(tenant=tenant, user__username="bo").role == "developer"


@pytest.mark.parametrize("role", [*ROLES, "operator"])
def test_no_page_behind_the_sign_in_is_stored(tenant: Tenant, role: str) -> None:
    client = client_of(tenant, role)
    shown = [page for page in [*pages(tenant), *parts(tenant)] if page.role == role]
    assert shown
    for page in shown:
        assert "no-store" in client.get(page.url)["Cache-Control"], page
