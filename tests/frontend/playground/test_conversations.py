"""Saved conversations: who sees and changes them, what is refused, and links to shared ones."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from tenants.models import AuditEntry, Conversation, Membership, Tenant
from tenants.models.saved.conversations import MAX_BYTES, MAX_CONVERSATIONS
from tests.frontend.clients import client_of
from tests.tenants.making import make_base, make_member, make_tenant

SECRET = "the launch is on Friday"
NODES: list[dict[str, Any]] = [
    {"id": 1, "parent": None, "role": "user", "content": SECRET},
    {"id": 2, "parent": 1, "role": "assistant", "content": "Oh", "foot": "1 in · 2 out"},
    {"id": 3, "parent": 1, "role": "assistant", "content": "Fine"},
]
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number"}}}
PANE = {
    "model": "base",
    "parameters": {"temperature": 0.5, "schema": SCHEMA},
    "nodes": NODES,
    "leaf": 2,
}
LIST = "/t/acme/playground/conversations"
ROLES = ["owner", "admin", "developer", "viewer", "outsider", "operator", "nobody"]


@pytest.fixture(autouse=True)
def model(db: None) -> None:
    make_base()


@pytest.fixture
def member(tenant: Tenant) -> Membership:
    return Membership.objects.get(user=make_member(tenant, "developer"))


@pytest.fixture
def client(member: Membership) -> Client:
    """The client of the member who owns the conversations."""
    client = Client()
    client.force_login(member.user)
    return client


def send(client: Client, path: str = LIST, **body: Any) -> Any:
    return client.post(path, json.dumps({"panes": [PANE]} | body), "application/json")


def keep(member: Membership, title: str = "Plans") -> Conversation:
    return Conversation.objects.keep(member, title, json.dumps([PANE]))


def address(kept: Conversation, verb: str = "") -> str:
    return f"{LIST}/{kept.pk}/{verb}"


def test_saving_from_the_first_to_the_next_time(client: Client, member: Membership) -> None:
    made = send(client)
    kept = Conversation.objects.get()
    assert made.status_code == 201
    assert made.json() == {"url": address(kept), "revision": 1, "title": SECRET}
    assert kept.member == member and json.loads(kept.panes) == [PANE]
    assert json.dumps(json.loads(kept.panes)[0]["parameters"]["schema"]) == json.dumps(SCHEMA)
    again = send(client, address(kept, "save"), revision=1, panes=[PANE, PANE])
    assert again.json() == {"revision": 2}
    late = send(client, address(kept, "save"), revision=1)
    assert (late.status_code, late.json()["code"]) == (409, "conversation_changed")
    kept.refresh_from_db()
    assert len(json.loads(kept.panes)) == 2


def test_a_title_is_how_it_begins_unless_one_is_given(client: Client) -> None:
    long = [NODES[0] | {"content": "  many \n words " * 40}]
    for body in ({"title": "Mine"}, {"panes": [PANE | {"nodes": long, "leaf": 1}]}):
        assert send(client, **body).status_code == 201
    send(client, panes=[PANE | {"nodes": [], "leaf": None}])
    begun, cut, empty = Conversation.objects.order_by("id").values_list("title", flat=True)
    assert (begun, empty) == ("Mine", "Conversation")
    assert cut.startswith("many words many") and cut.endswith("…") and len(cut) <= 60


@pytest.mark.parametrize(
    "body",
    [
        {"panes": []},
        {"panes": [PANE] * 5},
        {"panes": [PANE | {"leaf": 9}]},
        {"panes": [PANE | {"secret": 1}]},
        {"panes": [PANE | {"parameters": {"temperature": "hot"}}]},
        {"panes": [PANE | {"nodes": [NODES[1]]}]},
        {"panes": [PANE | {"nodes": [NODES[0], NODES[0]], "leaf": 1}]},
        {"panes": [PANE | {"nodes": [NODES[0] | {"role": "assistant"}], "leaf": 1}]},
        {"panes": [PANE | {"nodes": [NODES[0] | {"role": "system"}], "leaf": 1}]},
        {"panes": [PANE | {"nodes": [NODES[0], NODES[1] | {"role": "user"}]}]},
        {"panes": "all", "title": 1},
    ],
)
def test_an_invalid_conversation_is_refused(client: Client, body: Any) -> None:
    refused = send(client, **body)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert refused.json()["message"]
    assert not Conversation.objects.exists()


def test_invalid_json_is_refused(client: Client) -> None:
    assert client.post(LIST, "{", "application/json").status_code == 400


@pytest.mark.parametrize(("chars", "code"), [(MAX_BYTES, 409), (2 * MAX_BYTES, 413)])
def test_what_is_too_large_is_refused_with_its_bound(client: Client, chars: int, code: int) -> None:
    large = [NODES[0] | {"content": "x" * chars}]
    refused = send(client, panes=[PANE | {"nodes": large, "leaf": 1}])
    assert refused.status_code == code and "512" in refused.json()["message"]


def test_one_too_many_is_refused(client: Client, member: Membership) -> None:
    rows = [Conversation(member=member, title="t", panes="[]") for _ in range(MAX_CONVERSATIONS)]
    Conversation.objects.bulk_create(rows)
    refused = send(client)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_conversations")


@pytest.mark.parametrize("role", ROLES)
def test_a_private_one_is_its_members_alone(tenant: Tenant, member: Membership, role: str) -> None:
    kept, other = keep(member), client_of(tenant, role)
    status = {"viewer": 403, "nobody": 302}.get(role, 404)
    assert other.get(address(kept)).status_code == status
    for verb in ("save", "rename", "delete", "share", "unshare"):
        assert other.post(address(kept, verb), {"title": "x"}).status_code == status
    assert other.get(f"/t/acme/playground/shared/{uuid4()}").status_code == status
    kept.refresh_from_db()
    assert (kept.title, kept.revision, kept.shared_as) == ("Plans", 1, None)


@pytest.mark.parametrize("role", ROLES)
def test_a_shared_one_is_read_in_the_tenant_and_nowhere_else(
    tenant: Tenant, member: Membership, role: str
) -> None:
    kept = keep(member)
    where = f"/t/acme/playground/shared/{kept.share()}"
    page = client_of(tenant, role).get(where)
    assert page.status_code == {"viewer": 403, "nobody": 302, "outsider": 404}.get(role, 200)
    if page.status_code == 200:
        shown = page.content.decode()
        assert SECRET in shown and "data-read-only" in shown and "Shared by" in shown
        assert ("Continue from here" in shown) == (role != "operator")
    read = AuditEntry.objects.filter(tenant=tenant, action="read conversation")
    assert read.exists() == (role == "operator")
    kept.unshare()
    assert client_of(tenant, "owner").get(where).status_code == 404


def test_a_link_leads_nowhere_under_another_tenants_address(member: Membership) -> None:
    link, elsewhere = keep(member).share(), make_tenant("globex")
    client = client_of(elsewhere, "owner")
    assert client.get(f"/t/globex/playground/shared/{link}").status_code == 404
    assert client.post(f"/t/globex/playground/shared/{link}/copy").status_code == 404


def test_continuing_makes_a_copy_of_ones_own(tenant: Tenant, member: Membership) -> None:
    kept = keep(member)
    where = f"/t/acme/playground/shared/{kept.share()}/copy"
    reader = client_of(tenant, "admin")
    page = reader.post(where, follow=True)
    copy = Conversation.objects.exclude(pk=kept.pk).get()
    assert page.redirect_chain == [(address(copy), 302)]
    assert (copy.panes, copy.shared_as, copy.revision) == (kept.panes, None, 1)
    assert client_of(tenant, "operator").post(where).status_code == 403
    assert client_of(tenant, "viewer").post(where).status_code == 403
    copy.delete()
    kept.refresh_from_db()


def test_copying_a_conversation_is_refused_at_the_maximum(
    client: Client, member: Membership
) -> None:
    link = keep(member).share()
    full = [Conversation(member=member, title="t", panes="[]") for _ in range(MAX_CONVERSATIONS)]
    Conversation.objects.bulk_create(full)
    page = client.post(f"/t/acme/playground/shared/{link}/copy", follow=True)
    assert page.status_code == 200 and "Delete some first" in page.content.decode()


def test_operators_look_and_keep_nothing(tenant: Tenant) -> None:
    client = client_of(tenant, "operator")
    assert send(client).status_code == 403
    assert 'id="save"' not in client.get("/t/acme/playground").content.decode()


def test_sharing_shows_the_link_until_it_is_revoked(client: Client, member: Membership) -> None:
    kept = keep(member)
    page = client.post(address(kept, "share"), follow=True)
    kept.refresh_from_db()
    link = f"http://testserver/t/acme/playground/shared/{kept.shared_as}"
    assert link in page.content.decode()
    page = client.post(address(kept, "unshare"), follow=True)
    assert "private again" in page.content.decode() and link not in page.content.decode()


def test_its_page_holds_it_and_says_no_script(client: Client, member: Membership) -> None:
    panes = [PANE | {"nodes": [NODES[0] | {"content": "</script><script>alert(1)"}], "leaf": 1}]
    kept = Conversation.objects.keep(member, "<b>Plans", json.dumps(panes))
    page = client.get(address(kept))
    shown = page.content.decode()
    assert page.context["panes"] == panes and "&lt;b&gt;Plans" in shown
    assert "<script>alert" not in shown and f'data-kept="{address(kept)}"' in shown


def test_the_list_is_searched_renamed_and_deleted_from(client: Client, member: Membership) -> None:
    plans, other = keep(member, "Plans for May"), keep(member, "Bugs")
    colleague = Membership.objects.get(user=make_member(member.tenant, "developer"))
    keep(colleague, "Theirs")
    everything = client.get(LIST).content.decode()
    assert "Plans for May" in everything and "Bugs" in everything and "Theirs" not in everything
    found = client.get(LIST, {"q": "plans"}).content.decode()
    assert "Plans for May" in found and "Bugs" not in found
    assert "No conversation matches" in client.get(LIST, {"q": "nothing"}).content.decode()
    renamed = client.post(address(plans, "rename"), {"title": "June", "list": "1"})
    assert renamed["Location"] == LIST
    assert client.post(address(other, "rename"), {"title": "Bug"})["Location"] == address(other)
    client.post(address(other, "rename"), {"title": "x" * 121})
    assert set(Conversation.objects.filter(member=member).values_list("title", flat=True)) == {
        "June",
        "Bug",
    }
    assert client.post(address(other, "delete"))["Location"] == LIST
    assert list(Conversation.objects.filter(member=member)) == [plans]
    assert client.get(address(plans, "delete")).status_code == 405


def test_a_long_list_has_pages(
    client: Client, member: Membership, django_assert_max_num_queries: Any
) -> None:
    rows = [Conversation(member=member, title=f"Talk {at}", panes="[]") for at in range(60)]
    Conversation.objects.bulk_create(rows)
    with django_assert_max_num_queries(12):
        first = client.get(LIST)
    second = client.get(LIST, {"before": first.context["last"].pk})
    titles = [[one.title for one in page.context["conversations"]] for page in (first, second)]
    assert [len(page) for page in titles] == [50, 10]
    assert not set(titles[0]) & set(titles[1])
    assert client.get(LIST, {"before": 10**6}).status_code == 404


def test_an_empty_list_says_what_to_do(client: Client) -> None:
    assert "No saved conversations yet" in client.get(LIST).content.decode()


def test_a_page_of_one_asks_few_questions(
    client: Client, member: Membership, django_assert_max_num_queries: Any
) -> None:
    kept = keep(member)
    with django_assert_max_num_queries(13):  # one, the first time, notes the session
        client.get(address(kept))
    with django_assert_max_num_queries(12):
        client.get(f"/t/acme/playground/shared/{kept.share()}")


def test_a_suspended_tenant_keeps_nothing_new(client: Client, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(status=Tenant.Status.SUSPENDED)
    assert send(client).status_code == 403


def test_another_site_cannot_save_for_somebody(member: Membership) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(member.user)
    assert send(client).status_code == 403


def test_neither_logs_nor_the_audit_log_hold_what_was_said(
    client: Client, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    send(client)
    kept = Conversation.objects.get()
    send(client, address(kept, "save"), revision=1)
    client.post(address(kept, "rename"), {"title": f"{SECRET}!"})
    client.post(address(kept, "share"))
    client.get(f"/t/acme/playground/shared/{Conversation.objects.get().shared_as}")
    client.post(address(kept, "delete"))
    assert AuditEntry.objects.filter(kind="conversation", actor_kind="user").count() == 3
    for entry in AuditEntry.objects.all():
        assert SECRET not in f"{entry.name}{entry.before}{entry.after}"
    out, err = capsys.readouterr()
    assert SECRET not in caplog.text + out + err
