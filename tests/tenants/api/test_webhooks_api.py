"""Webhooks and their deliveries over the management API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tenants.models import AuditEntry, Delivery, Notification, Target, Tenant
from tenants.models.notifications import MAX_TARGETS, MAX_TESTS, DeliveryState, NotificationKind
from tests.tenants.callers import person
from tests.tenants.making import make_tenant
from tests.tenants.notifications.test_notifications import listen

pytestmark = pytest.mark.django_db

NEW = {"url": "https://hooks.example/x?token=1", "events": ["key.expiring", "adapter.ready"]}


def test_a_webhook_from_its_making_to_its_end(tenant: Tenant) -> None:
    ask, admin = person(tenant, "admin")
    made = ask("POST", "webhooks", NEW)
    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")
    secret = made.json()["secret"]
    (row,) = ask("GET", "webhooks").json()["results"]
    assert row["events"] == ["adapter.ready", "key.expiring"] and "secret" not in row
    assert (row["created_by"], row["ended_at"]) == (admin.username, None)
    rotated = ask("POST", f"webhooks/{row['id']}/rotate")
    assert (rotated.status_code, rotated["Cache-Control"]) == (200, "no-store")
    assert Target.objects.get().secrets == [rotated.json()["secret"], secret]
    assert ask("GET", f"webhooks/{row['id']}").json()["rotated_at"] is not None
    assert ask("DELETE", f"webhooks/{row['id']}").status_code == 204
    logged = AuditEntry.objects.filter(kind="webhook").order_by("id")
    assert [one.action for one in logged] == ["created", "changed", "deleted"]
    assert {one.actor_name for one in logged} == {admin.username}
    assert secret not in str(list(logged.values()))


@pytest.mark.parametrize(
    "change",
    [{"url": "http://hooks.example/"}, {"url": "https://a@b/"}, {"url": 1}, {"events": []},
     {"events": ["engine.lost"]}, {"events": "adapter.ready"}, {"secret": "whsec_AAAA"},
     {"url": "https://x/" + "a" * 500}],
)  # fmt: skip
def test_an_invalid_webhook_is_refused(tenant: Tenant, change: dict[str, Any]) -> None:
    ask, _ = person(tenant, "owner")
    assert ask("POST", "webhooks", NEW | change).status_code == 400
    assert not Target.objects.exists()


def test_a_test_event_goes_to_one_webhook_and_is_bounded(tenant: Tenant) -> None:
    ask, _ = person(tenant, "admin")
    target = listen(tenant)
    listen(tenant, "https://hooks.example/other")
    others = [listen(make_tenant("other")), listen(None)]
    sent = ask("POST", f"webhooks/{target.pk}/test").json()
    assert (sent["event"], sent["webhook"], sent["state"]) == ("webhook.test", target.pk, "waiting")
    assert Delivery.objects.get().target == target
    for other in others:
        assert ask("POST", f"webhooks/{other.pk}/test").status_code == 404
    for _ in range(MAX_TESTS - 1):
        assert ask("POST", f"webhooks/{target.pk}/test").status_code == 200
    refused = ask("POST", f"webhooks/{target.pk}/test")
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_tests")
    assert Delivery.objects.count() == MAX_TESTS
    Notification.objects.update(at=timezone.now() - timedelta(minutes=2))
    Target.objects.update(ended_at=timezone.now())
    assert ask("POST", f"webhooks/{target.pk}/test").json()["code"] == "webhook_gone"
    assert ask("POST", "webhooks", {**NEW, "events": ["webhook.test"]}).status_code == 400


def test_the_number_of_webhooks_is_bounded(tenant: Tenant) -> None:
    for _ in range(MAX_TARGETS):
        listen(tenant)
    ask, _ = person(tenant, "owner")
    answer = ask("POST", "webhooks", NEW)
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_webhooks")


def test_deliveries_are_listed_and_sent_again(tenant: Tenant) -> None:
    ask, _ = person(tenant, "owner")
    target, other = listen(tenant), listen(tenant, "https://hooks.example/other")
    Notification.objects.post(NotificationKind.KEY_EXPIRING, {"key": "ci"}, tenant=tenant)
    Notification.objects.post(NotificationKind.ADAPTER_READY, {"adapter": "a"}, tenant=tenant)
    Delivery.objects.filter(target=target).update(
        state=DeliveryState.FAILED, attempts=10, status=500, error="The webhook answered 500."
    )
    assert ask("GET", "webhook-deliveries").json()["count"] == 4
    found = ask("GET", "webhook-deliveries", state="failed", event="key.expiring").json()
    (row,) = found["results"]
    assert row | {"webhook": target.pk, "data": {"key": "ci"}, "status": 500, "attempts": 10} == row
    assert row["message_id"].startswith("msg_") and row["error"] == "The webhook answered 500."
    assert ask("GET", "webhook-deliveries", webhook=other.pk).json()["count"] == 2
    again = ask("POST", f"webhook-deliveries/{row['id']}/replay").json()
    assert (again["state"], again["attempts"]) == ("waiting", 0)


def test_the_installations_are_apart(tenant: Tenant) -> None:
    ask, operator = person(tenant, "owner")
    operator.is_staff = True
    operator.save()
    listen(tenant)
    body = {"url": "https://hooks.example/ops", "events": ["engine.lost"]}
    assert ask("POST", "installation/webhooks", body).status_code == 201
    assert ask("POST", "installation/webhooks", NEW).status_code == 400
    Notification.objects.post(NotificationKind.ENGINE_LOST, {"engine": "gpu-1"})
    urls = [row["url"] for row in ask("GET", "installation/webhooks").json()["results"]]
    assert urls == [body["url"]]
    assert ask("GET", "installation/webhook-deliveries").json()["count"] == 1
    assert ask("GET", "webhook-deliveries").json()["count"] == 0
