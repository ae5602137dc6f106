"""Actions on several rows of a list at once: each row by itself, and each in the audit log."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from frontend.lists import PAGE
from tenants.batch_states import Status
from tenants.models import (
    ApiKey,
    AuditEntry,
    Batch,
    Conversation,
    Delivery,
    EngineCredential,
    Invitation,
    Notification,
    QuarantinedEntry,
    Role,
    State,
    Tenant,
    User,
)
from tenants.models.fleet.quarantine import Decision
from tenants.models.notifications import DeliveryState, NotificationKind
from tenants.naming import ISOLATION_TENANTS
from tests.frontend.clients import address, client_of, user_of
from tests.frontend.operate.test_credentials import quarantined
from tests.tenants.making import (
    make_adapter,
    make_batch,
    make_key,
    make_member,
    make_tenant,
    make_user,
    make_version,
)
from tests.tenants.notifications.test_notifications import listen


def sent(client: Client, where: str, *rows: Any) -> str:
    """The page that follows the action."""
    answer = client.post(where, {"row": [str(row) for row in rows]}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def noted(tenant: Tenant) -> int:
    return AuditEntry.objects.filter(tenant=tenant).count()


def test_keys_are_revoked_each_by_itself(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    keys = [make_key(tenant)[0] for _ in range(3)]
    foreign = make_key(make_tenant())[0]
    page = owner.get(address(tenant, "keys")).content.decode()
    assert page.count('name="row"') == 3 and 'formaction="/t/acme/keys/revoke"' in page
    before = noted(tenant)
    said = sent(owner, address(tenant, "keys/revoke"), keys[0].pk, keys[1].pk, foreign.pk, "x")
    assert "2 keys are revoked." in said and "you may not change it" in said
    revoked = ApiKey.objects.exclude(revoked_at=None)
    assert set(revoked) == set(keys[:2]) and noted(tenant) == before + 2
    assert owner.get(address(tenant, "keys")).content.decode().count('name="row"') == 1
    assert "No key was selected" in sent(owner, address(tenant, "keys/revoke"))


def test_a_developer_ends_only_keys_of_his_own(tenant: Tenant) -> None:
    developer = client_of(tenant, "developer")
    own = make_key(tenant, created_by=user_of(developer))[0]
    other = make_key(tenant)[0]
    said = sent(developer, address(tenant, "keys/revoke"), own.pk, other.pk)
    assert "1 key is revoked." in said
    assert list(ApiKey.objects.exclude(revoked_at=None)) == [own]
    viewer = client_of(tenant, "viewer")
    assert viewer.post(address(tenant, "keys/revoke"), {"row": other.pk}).status_code == 403
    assert b'name="row"' not in viewer.get(address(tenant, "keys")).content


def test_members_are_removed_but_for_oneself(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    for role in ("viewer", "developer"):
        make_member(tenant, role)
    rows = [member.pk for member in tenant.memberships.all()]
    before = noted(tenant)
    said = sent(owner, address(tenant, "members/remove"), *rows)
    assert "2 members are removed." in said and "choose “Leave tenant”" in said
    assert tenant.memberships.get().user == user_of(owner) and noted(tenant) == before + 2
    admin = client_of(tenant, "admin")
    assert "you may not change it" in sent(admin, address(tenant, "members/remove"), rows[0])


def test_versions_are_archived_and_deleted_unless_in_use(tenant: Tenant) -> None:
    developer, adapter = client_of(tenant, "developer"), make_adapter(tenant)
    live, *others = (make_version(adapter) for _ in range(3))
    adapter.aliases.create(name="live", version=live)
    where = address(tenant, "adapters/support")
    page = developer.get(f"{where}/").content.decode()
    assert page.count('name="row"') == 3
    for what in ("archive", "delete"):
        assert f'formaction="{where}/versions/{what}"' in page
    said = sent(developer, f"{where}/versions/archive", live.number, others[0].number)
    assert "1 version is archived." in said
    others[0].refresh_from_db()
    assert others[0].state == State.ARCHIVED
    before = noted(tenant)
    said = sent(developer, f"{where}/versions/delete", *(one.number for one in (live, *others)))
    assert "2 versions are deleted." in said
    assert list(adapter.versions.all()) == [live] and noted(tenant) >= before + 2


def test_batches_are_cancelled_unless_they_ended(tenant: Tenant) -> None:
    developer, (key, _) = client_of(tenant, "developer"), make_key(tenant)
    running, ended = make_batch(key), make_batch(key)
    Batch.objects.filter(pk=ended.pk).update(status=Status.CANCELLED, ended_at=timezone.now())
    page = developer.get(address(tenant, "batches")).content.decode()
    assert page.count('name="row"') == 1 and f'value="{running.pk}"' in page
    said = sent(developer, address(tenant, "batches/cancel"), running.pk, ended.pk)
    assert "1 batch is cancelled." in said and "Cannot cancel a batch with status" in said
    running.refresh_from_db()
    assert running.status == Status.CANCELLING
    found = AuditEntry.objects.filter(action="cancelled batch")
    assert [one.name for one in found] == [running.pk]


def test_quarantined_entries_are_decided(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    first, second, third = (quarantined(tenant, f"r{number}") for number in range(3))
    said = sent(operator, "/operate/quarantine/dismiss", first.pk, second.pk)
    assert "2 entries are dismissed." in said
    said = sent(operator, "/operate/quarantine/dismiss", second.pk, third.pk)
    assert "1 entry is dismissed." in said
    assert set(QuarantinedEntry.objects.values_list("status", flat=True)) == {Decision.DISMISSED}


def test_invitations_are_withdrawn_but_not_those_of_owners_by_admins(tenant: Tenant) -> None:
    owner, admin = client_of(tenant, "owner"), client_of(tenant, "admin")
    first, second, top = (
        Invitation.objects.invite(tenant, role=Role(role), note="", by=user_of(owner))[0]
        for role in ("viewer", "developer", "owner")
    )
    foreign, _ = Invitation.objects.invite(
        make_tenant(), role=Role.VIEWER, note="", by=user_of(owner)
    )
    where = address(tenant, "members/invitations/withdraw")
    page = admin.get(address(tenant, "members")).content.decode()
    assert page.count('form="invited" name="row"') == 2 and f'formaction="{where}"' in page
    before = noted(tenant)
    said = sent(admin, where, first.pk, second.pk, top.pk, foreign.pk)
    assert "2 invitations are withdrawn." in said and "you may not change it" in said
    assert set(Invitation.objects.open()) == {top, foreign} and noted(tenant) == before + 2
    assert "1 invitation is withdrawn." in sent(owner, where, top.pk)
    viewer = client_of(tenant, "viewer")
    assert viewer.post(where, {"row": top.pk}).status_code == 403


def test_deliveries_are_sent_again(tenant: Tenant) -> None:
    admin, operator = client_of(tenant, "admin"), client_of(tenant, "operator")
    other = make_tenant("other")
    of_tenant, of_other, of_all = (delivered(one) for one in (tenant, other, None))
    where = address(tenant, "notifications/replay")
    page = admin.get(address(tenant, "notifications")).content.decode()
    assert page.count('name="row"') == 1 and f'formaction="{where}"' in page
    said = sent(admin, where, of_tenant.pk, of_other.pk, of_all.pk)
    assert "1 delivery is being sent again." in said and "no longer exists" in said
    assert set(Delivery.objects.filter(state=DeliveryState.WAITING)) == {of_tenant}
    where = "/operate/notifications/replay"
    assert f'formaction="{where}"' in operator.get("/operate/notifications").content.decode()
    assert "1 delivery is being sent again." in sent(operator, where, of_all.pk, of_other.pk)
    assert set(Delivery.objects.filter(state=DeliveryState.WAITING)) == {of_tenant, of_all}
    for role, status in (("developer", 403), ("outsider", 404)):
        answer = client_of(tenant, role).post(address(tenant, "notifications/replay"))
        assert answer.status_code == status
    assert admin.post(where).status_code == 404


def delivered(tenant: Tenant | None) -> Delivery:
    """A failed delivery to a webhook of this tenant, or of the installation."""
    target = listen(tenant)
    kind = NotificationKind.KEY_EXPIRING if tenant else NotificationKind.ENGINE_LOST
    Notification.objects.post(kind, {}, tenant=tenant)
    delivery = Delivery.objects.get(target=target)
    Delivery.objects.filter(pk=delivery.pk).update(state=DeliveryState.FAILED)
    return delivery


def test_conversations_of_ones_own_are_deleted(tenant: Tenant) -> None:
    client, other = client_of(tenant, "developer"), client_of(tenant, "owner")
    own, others = (
        [
            Conversation.objects.keep(tenant.memberships.get(user=user_of(one)), title, "[]")
            for title in "abc"
        ]
        for one in (client, other)
    )
    where = address(tenant, "playground/conversations/delete")
    page = client.get(address(tenant, "playground/conversations")).content.decode()
    assert page.count('name="row"') == 3 and f'formaction="{where}"' in page
    said = sent(client, where, own[0].pk, own[1].pk, others[0].pk)
    assert "2 conversations are deleted." in said and "you may not change it" in said
    assert set(Conversation.objects.all()) == {own[2], *others}
    viewer = client_of(tenant, "viewer")
    assert viewer.post(where, {"row": own[2].pk}).status_code == 403


def test_tenants_are_suspended_and_activated(tenant: Tenant) -> None:
    operator, other, third = client_of(tenant, "operator"), make_tenant(), make_tenant()
    isolation = make_tenant(ISOLATION_TENANTS[0], internal=True)
    page = operator.get("/operate/tenants").content.decode()
    assert page.count('name="row"') == 3
    before = noted(tenant)
    assert 'formaction="/operate/suspend-tenants"' in page
    said = sent(operator, "/operate/suspend-tenants", tenant.pk, other.pk, isolation.pk)
    assert "2 tenants are suspended." in said and "no longer exists" in said
    assert set(Tenant.objects.filter(status="suspended")) == {tenant, other}
    assert noted(tenant) == before + 1
    assert 'formaction="/operate/activate-tenants"' in page
    said = sent(operator, "/operate/activate-tenants", tenant.pk, third.pk)
    assert "2 tenants are active." in said
    assert set(Tenant.objects.filter(status="suspended")) == {other}


def test_users_are_deactivated_and_activated_but_for_the_last_operator(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    me, gone, others = user_of(operator), make_user(is_active=False), [make_user(), make_user()]
    page = operator.get("/operate/users").content.decode()
    assert page.count('name="row"') == 3 and 'formaction="/operate/users/deactivate"' in page
    assert f'name="row" value="{me.pk}"' not in page
    said = sent(operator, "/operate/users/deactivate", me.pk, *(user.pk for user in others))
    assert "2 users are deactivated." in said and "at least one operator" in said
    assert list(User.objects.filter(is_active=True)) == [me]
    noted = AuditEntry.objects.filter(kind="user", after={"is_active": False})
    assert noted.count() == 2
    said = sent(operator, "/operate/users/activate", gone.pk, others[0].pk)
    assert "2 users are active." in said
    assert set(User.objects.filter(is_active=False)) == {others[1]}


def test_credentials_of_engines_are_revoked(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    first, second, third = (
        EngineCredential.objects.issue(name=f"gpu-{number}")[0] for number in range(3)
    )
    where = "/operate/engines/credentials/revoke"
    page = operator.get("/operate/engines/credentials").content.decode()
    assert page.count('name="row"') == 3 and f'formaction="{where}"' in page
    before = AuditEntry.objects.count()
    assert "2 credentials are revoked." in sent(operator, where, first.pk, second.pk)
    assert list(EngineCredential.objects.live()) == [third]
    assert AuditEntry.objects.count() == before + 2
    page = operator.get("/operate/engines/credentials").content.decode()
    assert page.count('name="row"') == 1


@pytest.mark.parametrize(
    "what",
    [
        "quarantine/bill",
        "quarantine/dismiss",
        "suspend-tenants",
        "activate-tenants",
        "users/deactivate",
        "users/activate",
        "engines/credentials/revoke",
    ],
)
def test_only_operators_decide(tenant: Tenant, what: str) -> None:
    owner = client_of(tenant, "owner")
    assert owner.post(f"/operate/{what}", {"row": tenant.pk}).status_code == 404


def test_one_page_is_the_most_at_once(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    keys = [make_key(tenant)[0].pk for _ in range(PAGE + 1)]
    assert f"{PAGE} keys are revoked." in sent(owner, address(tenant, "keys/revoke"), *keys)
