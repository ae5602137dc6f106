"""The pages of webhooks and their deliveries: who sees what, and what they take."""

from __future__ import annotations

import pytest
from django.test import Client

from tenants.models import Delivery, Notification, Target, Tenant
from tenants.models.notifications import Kind
from tests.frontend.clients import client_of
from tests.tenants.making import make_tenant
from tests.tenants.test_notifications import listen


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 200), ("admin", 200), ("operator", 200), ("developer", 403), ("viewer", 403),
     ("outsider", 404), ("nobody", 302)],
)  # fmt: skip
def test_who_manages_webhooks(tenant: Tenant, role: str, status: int) -> None:
    client, target = client_of(tenant, role), listen(tenant)
    Notification.objects.post(Kind.KEY_EXPIRING, {}, tenant=tenant)
    where = f"/t/{tenant.slug}/notifications"
    assert client.get(where).status_code == status
    delivery = Delivery.objects.get()
    changed = 302 if status == 200 else status
    assert client.post(f"{where}/{delivery.pk}/replay").status_code == changed
    assert client.post(f"{where}/{target.pk}/remove").status_code == changed
    assert Target.objects.exists() == (status != 200)


def test_a_secret_is_shown_once_and_others_targets_are_not_found(tenant: Tenant) -> None:
    admin, where = client_of(tenant, "admin"), f"/t/{tenant.slug}/notifications"
    page = admin.post(where, {"url": "https://hooks.example/x", "kinds": ["adapter.ready"]})
    target = Target.objects.get()
    assert target.secret in page.content.decode()
    assert target.secret not in admin.get(where).content.decode()
    for url in ("http://hooks.example/", "https://"):
        assert admin.post(where, {"url": url, "kinds": ["adapter.ready"]}).status_code == 422
    wrong = {"url": "https://hooks.example/x", "kinds": ["engine.lost"]}
    assert admin.post(where, wrong).status_code == 422
    other = listen(make_tenant("other"))
    whole = listen(None)
    for one in (other, whole):
        assert admin.post(f"{where}/{one.pk}/remove").status_code == 404
    assert admin.get("/operate/notifications").status_code == 404
    operator: Client = client_of(tenant, "operator")
    assert whole.url in operator.get("/operate/notifications").content.decode()
    assert operator.post("/operate/notifications", wrong).status_code == 200
    assert operator.post(f"/operate/notifications/{whole.pk}/remove").status_code == 302
