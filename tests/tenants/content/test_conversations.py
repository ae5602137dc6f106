"""Conversations that members keep: bounds, sharing, deletion with their member and tenant, and the
audit log."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from tenants.errors import ConversationChanged, ConversationTooLarge, TooManyConversations
from tenants.models import AuditEntry, Conversation, Membership, Tenant
from tenants.models.saved.conversations import MAX_BYTES, MAX_CONVERSATIONS
from tests.tenants.making import make_member, make_tenant

pytestmark = pytest.mark.django_db
SECRET = "the launch is on Friday"


@pytest.fixture
def member() -> Membership:
    tenant = make_tenant("acme")
    make_member(tenant, "owner")
    return Membership.objects.get(user=make_member(tenant, "developer"))


def keep(member: Membership, panes: str = f'["{SECRET}"]') -> Conversation:
    return Conversation.objects.keep(member, f"About {SECRET}", panes)


def test_a_conversation_is_its_members_alone(member: Membership) -> None:
    kept = keep(member)
    tenant, user = member.tenant, member.user
    other = make_member(tenant, "admin")
    elsewhere = make_tenant()
    assert list(Conversation.objects.of(tenant, user)) == [kept]
    assert not Conversation.objects.of(tenant, other)
    assert not Conversation.objects.of(elsewhere, user)
    assert not Conversation.objects.of(tenant, None)


def test_changes_follow_what_was_read(member: Membership) -> None:
    kept = keep(member)
    other_tab = Conversation.objects.get()
    kept.update('["more"]', 1)
    assert kept.revision == 2
    with pytest.raises(ConversationChanged):
        other_tab.update('["less"]', 1)
    kept.refresh_from_db()
    assert (kept.panes, kept.revision) == ('["more"]', 2)
    assert kept.updated_at > kept.created_at


def test_a_conversation_has_a_bound_in_bytes_here_and_in_the_database(member: Membership) -> None:
    kept = keep(member, "é" * (MAX_BYTES // 2))
    for too_large in ("x" * (MAX_BYTES + 1), "é" * (MAX_BYTES // 2 + 1)):
        with pytest.raises(ConversationTooLarge):
            keep(member, too_large)
        with pytest.raises(ConversationTooLarge):
            kept.update(too_large, 1)
    with pytest.raises(IntegrityError), transaction.atomic():
        Conversation.objects.update(panes="x" * (MAX_BYTES + 1))


def test_members_keep_so_many_and_no_more(member: Membership) -> None:
    rows = [Conversation(member=member, title="t", panes="[]") for _ in range(MAX_CONVERSATIONS)]
    Conversation.objects.bulk_create(rows)
    with pytest.raises(TooManyConversations, match=str(MAX_CONVERSATIONS)):
        keep(member)
    colleague = Membership.objects.get(user=make_member(member.tenant, "developer"))
    assert keep(colleague).pk


def test_a_link_is_good_in_its_tenant_until_it_is_revoked(member: Membership) -> None:
    kept, tenant = keep(member), member.tenant
    link = kept.share()
    assert kept.share() == link
    assert Conversation.objects.shared_in(tenant, link) == kept
    assert Conversation.objects.shared_in(make_tenant(), link) is None
    assert Conversation.objects.shared_in(tenant, uuid4()) is None
    kept.unshare()
    assert Conversation.objects.shared_in(tenant, link) is None
    assert kept.share() != link


def test_conversations_are_deleted_with_their_membership_or_tenant(member: Membership) -> None:
    keep(member)
    member.remove()
    assert not Conversation.objects.exists()
    keep(Membership.objects.get())
    Tenant.objects.all().delete()
    assert not Conversation.objects.exists()


def test_the_log_says_that_and_never_what(member: Membership) -> None:
    kept = keep(member)
    kept.update(f'["{SECRET}", "{SECRET}"]', 1)
    kept.rename(f"{SECRET}!")
    kept.share()
    kept.unshare()
    id = kept.pk
    kept.delete()
    entries = AuditEntry.objects.filter(kind="conversation").order_by("id")
    assert [(one.action, one.before, one.after) for one in entries] == [
        ("created", None, {"shared": False}),
        ("changed", {"shared": False}, {"shared": True}),
        ("changed", {"shared": True}, {"shared": False}),
        ("deleted", {"shared": False}, None),
    ]
    assert {(one.tenant_id, one.object_id, one.name) for one in entries} == {
        (member.tenant_id, id, str(id))
    }
    for entry in AuditEntry.objects.all():
        assert SECRET not in f"{entry.name}{entry.before}{entry.after}"
