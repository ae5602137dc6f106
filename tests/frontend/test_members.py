"""Members: which roles change which, and invitation links."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tenants.models import AuditEntry, Invitation, Membership, Role, Tenant
from tests.frontend.clients import address, client_of, user_of
from tests.tenants.making import make_member, make_tenant, make_user


def member(tenant: Tenant, role: str) -> Membership:
    return make_member(tenant, role).memberships.get()


@pytest.fixture
def owner(tenant: Tenant) -> Client:
    return client_of(tenant, "owner")


def say(client: Client, where: str, body: dict[str, Any] | None = None) -> str:
    """The messages of the page that follows a POST."""
    page = client.post(where, body or {}, follow=True)
    return " ".join(str(message) for message in page.context["messages"])


def test_everybody_in_it_is_listed_with_role(tenant: Tenant, owner: Client) -> None:
    make_member(make_tenant(), "owner")
    viewer = member(tenant, "viewer")
    page = owner.get(address(tenant, "members"))
    assert [row.role for row, _ in page.context["members"]] == ["owner", "viewer"]
    assert viewer.user.username in page.content.decode()


def test_a_long_list_is_paged_and_filtered(
    tenant: Tenant, owner: Client, django_assert_max_num_queries: Any
) -> None:
    for i in range(51):
        user = make_user(f"person{i:02}")
        Membership.objects.create(user=user, tenant=tenant, role="viewer")
    with django_assert_max_num_queries(12):
        first = owner.get(address(tenant, "members"))
    assert len(first.context["members"]) == 50
    second = owner.get(address(tenant, "members"), {"after": first.context["last"].pk})
    assert [row.user.username for row, _ in second.context["members"]] == ["person49", "person50"]
    found = owner.get(address(tenant, "members"), {"q": "person07"})
    assert [row.user.username for row, _ in found.context["members"]] == ["person07"]
    nobody = owner.get(address(tenant, "members"), {"q": "\0nobody"}).content.decode()
    assert "No member matches" in nobody


@pytest.mark.parametrize(
    ("role", "old", "new", "status"),
    [
        ("owner", "viewer", "owner", 302),
        ("owner", "owner", "viewer", 302),
        ("admin", "viewer", "admin", 302),
        ("admin", "owner", "viewer", 403),
        ("developer", "viewer", "developer", 403),
        ("viewer", "viewer", "developer", 403),
        ("operator", "viewer", "owner", 302),
        ("outsider", "viewer", "developer", 404),
    ],
)
def test_which_roles_may_be_given_by_whom(
    tenant: Tenant, role: str, old: str, new: str, status: int
) -> None:
    make_member(tenant, "owner")
    one, client = member(tenant, old), client_of(tenant, role)
    for what, body in ((f"{one.pk}/role", {"role": new}), (f"{one.pk}/remove", {})):
        answer = client.post(address(tenant, f"members/{what}"), body)
        assert answer.status_code == status
    assert Membership.objects.filter(pk=one.pk).exists() == (status != 302)


def test_an_admin_makes_no_owner(tenant: Tenant) -> None:
    one, admin = member(tenant, "viewer"), client_of(tenant, "admin")
    said = say(admin, address(tenant, f"members/{one.pk}/role"), {"role": "owner"})
    assert said == "You cannot assign this role."
    invited = admin.post(address(tenant, "members"), {"role": "owner", "note": "x"})
    assert invited.status_code == 422 and not Invitation.objects.exists()
    one.refresh_from_db()
    assert one.role == "viewer"


def test_each_role_that_may_be_given_says_what_it_can_do(tenant: Tenant) -> None:
    for role, named in (("admin", 3), ("owner", 4)):
        page = client_of(tenant, role).get(address(tenant, "members"))
        assert len(page.context["roles"]) == named
        assert (
            page.text.count("Also uses the playground") == 3
        )  # to invite, change, change one's own
        assert ("Also manages owners" in page.text) == (role == "owner")


def test_the_last_owner_stays(tenant: Tenant, owner: Client) -> None:
    one = Membership.objects.get()
    for what, body in (
        (f"members/{one.pk}/role", {"role": "viewer", "own": "yes"}),
        ("members/leave", {}),
    ):
        assert "at least one owner" in say(owner, address(tenant, what), body)
    one.refresh_from_db()
    assert one.role == Role.OWNER


def test_nobody_leaves_or_loses_a_role_by_accident(tenant: Tenant, owner: Client) -> None:
    make_member(tenant, "owner")
    one = Membership.objects.get(user=user_of(owner))
    page = owner.get(address(tenant, "members")).text
    assert f'name="row" value="{one.pk}"' not in page and f"/members/{one.pk}/remove" not in page
    assert "Leave this tenant</button>" in page
    for what, body, said in (
        (f"members/{one.pk}/role", {"role": "viewer"}, "Confirm that you want to change your own"),
        (f"members/{one.pk}/remove", {}, "choose “Leave tenant”"),
        ("members/remove", {"row": one.pk}, "choose “Leave tenant”"),
    ):
        assert said in say(owner, address(tenant, what), body)
    one.refresh_from_db()
    assert one.role == Role.OWNER
    say(owner, address(tenant, f"members/{one.pk}/role"), {"role": "viewer", "own": "yes"})
    one.refresh_from_db()
    assert one.role == Role.VIEWER


def test_a_member_of_another_tenant_is_not_found(tenant: Tenant, owner: Client) -> None:
    other = member(make_tenant(), "viewer")
    for what in ("role", "remove"):
        answer = owner.post(address(tenant, f"members/{other.pk}/{what}"), {"role": "admin"})
        assert answer.status_code == 404


def test_anybody_may_leave(tenant: Tenant) -> None:
    viewer = client_of(tenant, "viewer")
    assert "You have left Acme" in say(viewer, address(tenant, "members/leave"))
    assert viewer.get(address(tenant, "members")).status_code == 404
    assert client_of(tenant, "operator").post(address(tenant, "members/leave")).status_code == 404


def test_an_invitation_is_made_shown_once_and_withdrawn(tenant: Tenant) -> None:
    admin = client_of(tenant, "admin")
    invite = {"role": "developer", "note": "Bo <b>"}
    made = admin.post(address(tenant, "members"), invite, follow=True)
    link = made.context["shown_once"].text
    assert link in made.content.decode() and "Bo &lt;b&gt;" in made.content.decode()
    assert made["Cache-Control"].startswith("max-age=0")
    invitation = Invitation.objects.find(link.rsplit("/", 1)[1])
    assert invitation is not None and invitation.role == "developer"
    again = admin.get(address(tenant, "members"))
    assert link not in again.content.decode() and "Bo &lt;b&gt;" in again.content.decode()
    where = address(tenant, f"members/invitations/{invitation.pk}/withdraw")
    assert "withdrawn" in say(admin, where)
    assert not Invitation.objects.open().exists()
    assert "was accepted or withdrawn" in say(admin, where)


def test_an_invitation_is_sent_again_with_a_new_link(tenant: Tenant) -> None:
    admin = client_of(tenant, "admin")
    made, old = Invitation.objects.invite(tenant, role=Role.VIEWER, note="Bo", by=user_of(admin))
    where = address(tenant, f"members/invitations/{made.pk}/resend")
    page = admin.post(where, follow=True)
    link = page.context["shown_once"].text
    assert Invitation.objects.find(link.rsplit("/", 1)[1]) == made
    assert Invitation.objects.find(old) is None
    entry = AuditEntry.objects.filter(kind="invitation", action="changed").get()
    assert entry.name == "Bo" and entry.after is not None and "expires_at" in entry.after
    made.withdraw()
    assert "was accepted or withdrawn" in say(admin, where)
    assert not Invitation.objects.open().exists()


def test_a_tenant_has_so_many_open_invitations_and_no_more(tenant: Tenant, owner: Client) -> None:
    for _ in range(50):
        Invitation.objects.invite(tenant, role=Role.VIEWER, note="", by=user_of(owner))
    page = owner.post(address(tenant, "members"), {"role": "viewer", "note": "one more"})
    assert "the maximum number of open invitations" in page.content.decode()
    assert page.context["shown_once"] is None and Invitation.objects.count() == 50


@pytest.mark.parametrize("role", ["developer", "viewer"])
def test_those_who_may_not_invite_see_no_invitations(tenant: Tenant, role: str) -> None:
    admin = make_member(tenant, "admin")
    made, _ = Invitation.objects.invite(tenant, role=Role.VIEWER, note="Secret Bo", by=admin)
    client = client_of(tenant, role)
    assert "Secret Bo" not in client.get(address(tenant, "members")).content.decode()
    assert client.post(address(tenant, "members"), {"role": "viewer"}).status_code == 403
    for action in ("withdraw", "resend"):
        where = address(tenant, f"members/invitations/{made.pk}/{action}")
        assert client.post(where).status_code == 403


def test_invitations_of_owners_and_of_others_are_out_of_reach(tenant: Tenant) -> None:
    by, other = make_member(tenant, "owner"), make_tenant()
    own, _ = Invitation.objects.invite(tenant, role=Role.OWNER, note="", by=by)
    foreign, _ = Invitation.objects.invite(other, role=Role.VIEWER, note="", by=by)
    admin = client_of(tenant, "admin")
    for invitation, status in ((own, 403), (foreign, 404)):
        for action in ("withdraw", "resend"):
            where = address(tenant, f"members/invitations/{invitation.pk}/{action}")
            assert admin.post(where).status_code == status
    assert Invitation.objects.open().count() == 2


def test_changes_are_in_the_log(tenant: Tenant, owner: Client) -> None:
    one = member(tenant, "viewer")
    owner.post(address(tenant, f"members/{one.pk}/role"), {"role": "admin"})
    entry = AuditEntry.objects.filter(kind="member", action="changed").get()
    assert (entry.name, entry.before, entry.after) == (
        one.user.username, {"role": "viewer"}, {"role": "admin"}
    )  # fmt: skip
    assert entry.actor_kind == "user"


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("viewer", "cannot call models"),
        ("developer", "All that a role of viewer allows. Also uses the playground"),
    ],
)
def test_an_invitation_says_what_its_role_allows(tenant: Tenant, role: str, told: str) -> None:
    _, token = Invitation.objects.invite(tenant, role=Role(role), note="", by=None)
    page = Client().get(reverse("invitation", args=[token]), follow=True).content.decode()
    assert f"Your role will be {role}." in page and told in page
