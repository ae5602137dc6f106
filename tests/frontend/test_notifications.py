"""The pages of webhooks and their deliveries: permissions, contents, and what the forms accept."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from tenants.models import Delivery, Muted, Notification, Target, Tenant
from tenants.models.notifications import NotificationKind
from tests.frontend.clients import client_of, user_of
from tests.tenants.making import make_tenant
from tests.tenants.notifications.test_notifications import listen


@pytest.mark.parametrize(
    ("role", "sees", "edits"),
    [("owner", 200, 302), ("admin", 200, 302), ("operator", 200, 302), ("developer", 200, 403),
     ("viewer", 403, 403), ("outsider", 404, 404), ("nobody", 302, 302)],
)  # fmt: skip
def test_who_sees_and_manages_webhooks(tenant: Tenant, role: str, sees: int, edits: int) -> None:
    client, target = client_of(tenant, role), listen(tenant)
    Notification.objects.post(NotificationKind.KEY_EXPIRING, {}, tenant=tenant)
    where = f"/t/{tenant.slug}/notifications"
    page = client.get(where)
    assert page.status_code == sees
    assert (target.url in page.content.decode()) == (sees == 200 and edits == 302)
    delivery = Delivery.objects.get()
    new = {"url": "https://hooks.example/new", "kinds": ["adapter.ready"]}
    assert client.post(where, new).status_code == edits
    assert client.post(f"{where}/{delivery.pk}/replay").status_code == edits
    assert client.post(f"{where}/{target.pk}/rotate").status_code == edits
    assert client.post(f"{where}/{target.pk}/remove").status_code == edits
    changed = edits == 302 and role != "nobody"
    assert list(Target.objects.values_list("url", flat=True)) == [
        new["url"] if changed else target.url
    ]


def test_the_answer_to_a_test_event_is_shown(tenant: Tenant) -> None:
    admin, target = client_of(tenant, "admin"), listen(tenant)
    where = f"/t/{tenant.slug}/notifications"
    assert f'aria-label="Send test: {target}"' in admin.get(where).text
    shown = admin.post(f"{where}/{target.pk}/test", follow=True).text
    assert "No worker has sent the test event yet." in shown and "webhook.test" in shown
    for role, status in (("developer", 403), ("outsider", 404)):
        assert client_of(tenant, role).post(f"{where}/{target.pk}/test").status_code == status
    other = listen(make_tenant("other"))
    assert admin.post(f"{where}/{other.pk}/test").status_code == 404
    operator, whole = client_of(tenant, "operator"), listen(None)
    assert operator.post(f"/operate/notifications/{whole.pk}/test").status_code == 302
    assert Delivery.objects.count() == 2


def test_a_secret_is_shown_once_and_loading_the_page_again_adds_nothing(tenant: Tenant) -> None:
    admin, where = client_of(tenant, "admin"), f"/t/{tenant.slug}/notifications"
    new = {"url": "https://hooks.example/x", "kinds": ["adapter.ready"]}
    assert admin.post(where, new)["Location"] == where
    target = Target.objects.get()
    (secret,) = target.secrets
    assert secret in admin.get(where).content.decode()
    assert secret not in admin.get(where).content.decode()
    admin.post(f"{where}/{target.pk}/rotate")
    target.refresh_from_db()
    assert target.secrets[0] in admin.get(where).content.decode() and target.secrets[1] == secret


def test_what_a_webhook_may_be_and_whose_it_is(tenant: Tenant) -> None:
    admin, where = client_of(tenant, "admin"), f"/t/{tenant.slug}/notifications"
    for url in ("http://hooks.example/", "https://", "https://a:b@hooks.example/"):
        assert admin.post(where, {"url": url, "kinds": ["adapter.ready"]}).status_code == 422
    wrong = {"url": "https://hooks.example/x", "kinds": ["engine.lost"]}
    assert admin.post(where, wrong).status_code == 422
    others, whole = listen(make_tenant("other")), listen(None)
    for one in (others, whole):
        for action in ("rotate", "remove"):
            assert admin.post(f"{where}/{one.pk}/{action}").status_code == 404
    assert admin.get("/operate/notifications").status_code == 404
    operator: Client = client_of(tenant, "operator")
    assert whole.url in operator.get("/operate/notifications").content.decode()
    assert operator.post("/operate/notifications", wrong).status_code == 302
    assert operator.post(f"/operate/notifications/{whole.pk}/remove").status_code == 302


def checked(client: Client, where: str) -> int:
    return len(
        re.findall('name="kinds" value="[a-z.]+" checked', client.get(where).content.decode())
    )


@pytest.mark.parametrize(("role", "offered"), [("admin", 6), ("developer", 5)])
def test_people_choose_what_they_are_mailed(tenant: Tenant, role: str, offered: int) -> None:
    client, where = client_of(tenant, role), f"/t/{tenant.slug}/notifications"
    assert checked(client, where) == offered
    chosen = ["adapter.ready", "engine.lost", "nonsense"]
    assert client.post(f"{where}/mail", {"kinds": chosen}).status_code == 302
    assert checked(client, where) == 1
    muted = Muted.objects.get()
    assert (muted.user, muted.tenant) == (user_of(client), tenant)
    assert len(muted.kinds) == offered - 1 and "adapter.ready" not in muted.kinds
    assert client.post(f"{where}/mail", {"kinds": muted.kinds}).status_code == 302
    muted.refresh_from_db()
    assert muted.kinds == ["adapter.ready"]


def test_operators_choose_what_they_are_mailed(tenant: Tenant) -> None:
    operator = client_of(tenant, "operator")
    assert "Email me about" not in operator.get(f"/t/{tenant.slug}/notifications").content.decode()
    assert operator.post("/operate/notifications/mail", {}).status_code == 302
    assert Muted.objects.get().tenant is None and len(Muted.objects.get().kinds) == 4
