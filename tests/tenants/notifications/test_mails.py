"""Emails of notifications: their recipients and their text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.core import mail as outbox
from django.utils import timezone

from tenants.models import Delivery, Notification, Tenant, User
from tenants.models.notifications import OF_INSTALLATION, OF_TENANTS, NotificationKind
from tenants.notifications import mail, sending
from tests.tenants.making import make_member, make_user

pytestmark = pytest.mark.django_db

ALERT = {
    "rule": "errors", "metric": "error_share", "threshold": 5.0, "minutes": 5, "requests": 120,
    "value": 12.5, "raised_at": "2026-11-22T20:05:00+00:00",
}  # fmt: skip
SAID: Mapping[NotificationKind, Mapping[str, Any]] = {
    NotificationKind.ADAPTER_READY: {"adapter": "support", "version": 3, "digest": "ab"},
    NotificationKind.ADAPTER_REJECTED: {
        "adapter": "support",
        "version": 4,
        "reason": "rank 128 is above 64",
    },
    NotificationKind.BUDGET_REACHED: {
        "budget": "cost_per_month",
        "percent": 80,
        "used": 8_000_000,
        "limit": 10_000_000,
    },
    NotificationKind.KEY_EXPIRING: {
        "key": "ci",
        "prefix": "abc",
        "expires_at": "2026-11-30T09:05:00+00:00",
    },
    NotificationKind.ALERT_RAISED: ALERT,
    NotificationKind.ALERT_RESOLVED: {**ALERT, "value": None, "requests": 3},
    NotificationKind.ENGINE_LOST: {"engine": "gpu-1", "last_seen_at": "2026-11-22T20:05:00+00:00"},
    NotificationKind.LEDGER_DRIFT: {
        "engine": "gpu-1",
        "journal": "j1",
        "requests": 2,
        "tokens": 31,
    },
    NotificationKind.ISOLATION_FAILED: {"base_model": "base", "findings": ["it leaks"]},
    NotificationKind.ROLLOUT_STOPPED: {
        "rollout": "r1",
        "state": "rolled back",
        "reason": "4 % failed.",
    },
}


def person(tenant: Tenant, role: str) -> User:
    user = make_member(tenant, role)
    User.objects.filter(pk=user.pk).update(email=f"{role}@example.com")
    return user


def post(kind: NotificationKind, tenant: Tenant | None = None) -> None:
    Notification.objects.post(kind, SAID[kind], tenant=tenant)


def mailed() -> list[str]:
    """The recipients of all deliveries by email, after what was posted is addressed."""
    mail.address(timezone.now())
    found = Delivery.objects.filter(user__isnull=False).order_by("user__email")
    return list(found.values_list("user__email", flat=True))


@pytest.mark.parametrize(
    ("kind", "people"),
    [
        (
            NotificationKind.ADAPTER_READY,
            ["admin@example.com", "developer@example.com", "owner@example.com"],
        ),
        (NotificationKind.BUDGET_REACHED, ["admin@example.com", "owner@example.com"]),
        (NotificationKind.ENGINE_LOST, ["operator@example.com"]),
    ],
)
def test_people_are_mailed_by_their_roles(
    tenant: Tenant, kind: NotificationKind, people: list[str]
) -> None:
    for role in ("owner", "admin", "developer", "viewer"):
        person(tenant, role)
    make_member(tenant, "owner")  # without an email address
    User.objects.filter(pk=person(tenant, "owner").pk).update(is_active=False)
    make_user("operator", is_staff=True, email="operator@example.com")
    post(kind, tenant if kind in OF_TENANTS else None)
    assert mailed() == people
    assert mailed() == people  # only once


def test_muting_an_event_affects_only_ones_own_mails(tenant: Tenant) -> None:
    owner, _ = person(tenant, "owner"), person(tenant, "admin")
    mail.mute(owner, tenant, [NotificationKind.KEY_EXPIRING])
    post(NotificationKind.KEY_EXPIRING, tenant)
    assert mailed() == ["admin@example.com"]
    mail.mute(owner, tenant, [])
    post(NotificationKind.KEY_EXPIRING, tenant)
    assert mailed() == ["admin@example.com", "admin@example.com", "owner@example.com"]


def test_mails_per_day_are_bounded(tenant: Tenant) -> None:
    person(tenant, "owner")
    for _ in range(mail.MAX_A_DAY + 3):
        post(NotificationKind.ADAPTER_REJECTED, tenant)
    assert len(mailed()) == mail.MAX_A_DAY


def test_old_events_are_not_mailed(tenant: Tenant) -> None:
    person(tenant, "owner")
    post(NotificationKind.ADAPTER_READY, tenant)
    Notification.objects.update(at=timezone.now() - mail.FRESH - timedelta(minutes=1))
    assert mailed() == []


@pytest.mark.parametrize("kind", [*OF_TENANTS, *OF_INSTALLATION])
def test_each_kind_has_its_words(tenant: Tenant, kind: NotificationKind, settings: Any) -> None:
    settings.CONSOLE_URL = "https://console.example.com"
    whose = tenant if kind in OF_TENANTS else None
    assert (kind in OF_TENANTS) != (kind in OF_INSTALLATION)
    subject, text = mail.written(Notification(kind=kind, data=SAID[kind], tenant=whose))
    assert "\n" not in subject and subject.endswith(f"({tenant.name if whose else 'Lorikeet'})")
    page = f"/t/{tenant.slug}/notifications" if whose else "/operate/notifications"
    assert text.endswith(f"https://console.example.com{page}\n") and "None" not in text


def test_subject_and_text_of_a_mail(tenant: Tenant, settings: Any) -> None:
    settings.CURRENCY = "usd"
    tenant.name = "Acme\r\nBcc: everybody@example.com"
    told = Notification(
        kind=NotificationKind.BUDGET_REACHED,
        data=SAID[NotificationKind.BUDGET_REACHED],
        tenant=tenant,
    )
    subject, text = mail.written(told)
    assert subject == "80% of a budget is used (Acme Bcc: everybody@example.com)"
    assert "Cost per month: 8.00 USD of 10.00 USD" in text
    for scope, named in (
        ({"key": "ci", "prefix": "abc"}, "Cost per month of the API key ci (lk_abc): 8.00"),
        ({"adapter": "support"}, "Cost per month of the adapter support: 8.00"),
    ):
        told.data = {**SAID[NotificationKind.BUDGET_REACHED], **scope}
        assert named in mail.written(told)[1]


async def _send() -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        sender = sending.Sender(client)
        await sender.start_due()
        await sender.finish()


async def test_a_mail_is_sent_once_and_again_where_the_server_fails(
    transactional_db: None, settings: Any
) -> None:
    def make() -> None:
        tenant = Tenant.objects.create(slug="acme", name="Acme")
        person(tenant, "owner")
        post(NotificationKind.ADAPTER_READY, tenant)

    await sync_to_async(make)()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    await _send()
    delivery = await Delivery.objects.aget()
    assert delivery.state == "waiting" and "refused" in delivery.error
    await sync_to_async(delivery.replay)()
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    for _ in range(2):
        await _send()
    (one,) = outbox.outbox
    assert one.to == ["owner@example.com"]
    assert one.subject == "Version 3 of the adapter support is ready (Acme)"
    assert one.extra_headers["Auto-Submitted"] == "auto-generated"


async def test_without_a_mail_server_nobody_is_mailed(
    transactional_db: None, settings: Any
) -> None:
    def make() -> None:
        tenant = Tenant.objects.create(slug="acme", name="Acme")
        person(tenant, "owner")
        post(NotificationKind.ADAPTER_READY, tenant)

    settings.EMAIL_BACKEND = mail.NO_MAIL
    await sync_to_async(make)()
    await _send()
    assert not await Delivery.objects.aexists()
