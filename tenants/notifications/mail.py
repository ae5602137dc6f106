"""Notifications by email: a tenant's to its members by role, the installation's to operators.

Only if there is a mail server. Nobody is sent kinds that they muted, nor more than MAX_A_DAY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.mail import DNS_NAME, EmailMessage
from django.db import transaction
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.urls import reverse

from inference.interfaces.directory import MICRO
from tenants.limits.kinds import KINDS
from tenants.limits.kinds import LimitKind as LimitKind
from tenants.models import Role, Tenant, User
from tenants.models.alerts import Metric
from tenants.models.notifications import (
    OF_INSTALLATION,
    OF_TENANTS,
    Delivery,
    Muted,
    Notification,
    NotificationKind,
)
from tenants.permissions import RANK

NO_MAIL = "gateway.mail.PrivateFiles"
"""The email backend that delivers nothing."""
FRESH = timedelta(days=1)
"""Older notifications are not emailed any more, for example when a mail server is first set up."""
AT_ONCE = 100
MAX_A_DAY = 50
"""Emails to one person; bounded because the address was never verified."""
MAX_SUBJECT = 200


def is_sent() -> bool:
    """Whether there is a mail server."""
    return bool(settings.EMAIL_BACKEND != NO_MAIL)


def kinds_of(tenant: Tenant | None, role: Role | None = None) -> list[NotificationKind]:
    """The kinds that a member in this role is emailed unless muted. Without a tenant: those of the
    installation, for operators."""
    if tenant is None:
        return list(OF_INSTALLATION)
    rank = -1 if role is None else RANK.index(role)
    return [kind for kind, least in OF_TENANTS.items() if rank >= RANK.index(least)]


def muted_by(user: User, tenant: Tenant | None) -> list[str]:
    found = Muted.objects.filter(user=user, tenant=tenant).first()
    return found.kinds if found else []


def mute(user: User, tenant: Tenant | None, kinds: Iterable[str]) -> None:
    """Set the kinds that this person is not emailed; all others are unmuted."""
    Muted.objects.update_or_create(user=user, tenant=tenant, defaults={"kinds": sorted(kinds)})


def address(now: datetime) -> None:
    """Create the deliveries to people of fresh notifications that have none yet."""
    fresh = Notification.objects.filter(mailed=False, at__gt=now - FRESH)
    with transaction.atomic():
        notifications = list(fresh.select_for_update(skip_locked=True).order_by("at")[:AT_ONCE])
        for one in notifications:
            people = _recipients(one, now)
            Delivery.objects.bulk_create(Delivery(notification=one, user=who) for who in people)
        Notification.objects.filter(pk__in=[one.pk for one in notifications]).update(mailed=True)


def _recipients(notification: Notification, now: datetime) -> QuerySet[User]:
    """The users to email the notification to."""
    muted = Muted.objects.filter(tenant=notification.tenant_id, kinds__contains=[notification.kind])
    of_today = Delivery.objects.filter(
        user=OuterRef("pk"), notification__at__gt=now - timedelta(days=1)
    )
    found = User.objects.filter(is_active=True).exclude(email="")
    if notification.tenant_id is None:
        found = found.filter(is_staff=True)
    else:
        least = RANK.index(OF_TENANTS[NotificationKind(notification.kind)])
        tenant = notification.tenant_id
        found = found.filter(memberships__tenant=tenant, memberships__role__in=RANK[least:])
    return (
        found.exclude(pk__in=muted.values("user"))
        .annotate(
            mails=Coalesce(
                Subquery(of_today.order_by().values("user").annotate(n=Count("*")).values("n")), 0
            )
        )
        .filter(mails__lt=MAX_A_DAY)
    )


def send(delivery: Delivery) -> None:
    """Hand the email to the mail server.

    Raises:
        OSError, ValueError: it was not accepted.
    """
    assert delivery.user is not None
    subject, text = written(delivery.notification)
    headers = {
        # A repeated attempt has the same id, and no auto-responder answers it.
        "Message-ID": f"<{delivery.notification_id.hex}.{delivery.user_id}@{DNS_NAME}>",
        "Auto-Submitted": "auto-generated",
    }
    EmailMessage(subject, text, None, [delivery.user.email], headers=headers).send()


def described(notification: Notification) -> Words:
    """A title of the notification, and lines that say more."""
    kind = NotificationKind(notification.kind)
    try:
        return WORDS[kind](notification.data)
    except KeyError:  # another release's data
        return kind.label, []


def written(notification: Notification) -> tuple[str, str]:
    """The subject and the text of the email."""
    if notification.tenant is None:
        whose, where = "Lorikeet", reverse("operate_notifications")
        why = "You receive this email because you are an operator of this installation."
    else:
        tenant = notification.tenant
        whose, where = tenant.name, reverse("notifications", args=[tenant.slug])
        why = f"You receive this email because you are a member of {tenant.name}."
    title, details = described(notification)
    lines = [
        f"{title}.", "", *details, *([""] if details else []),
        f"{why} Change your notification settings:", f"{settings.CONSOLE_URL}{where}",
    ]  # fmt: skip
    subject = " ".join(f"{title} ({whose})".split())
    return subject[:MAX_SUBJECT], "\n".join(lines) + "\n"


Data = Mapping[str, Any]
Words = tuple[str, Sequence[str]]
"""A title, and lines that say more."""


def _adapter(state: str) -> Callable[[Data], Words]:
    def words(data: Data) -> Words:
        reason = [str(data["reason"])] if "reason" in data and state == "was rejected" else []
        return f"Version {data['version']} of the adapter {data['adapter']} {state}", reason

    return words


def _budget(data: Data) -> Words:
    kind = KINDS[data["budget"]]
    label = f"{kind.label}{_scope(data)}"
    used, limit = (_amount(kind, data[name]) for name in ("used", "limit"))
    more = (
        ["Further requests are refused until the budget renews."] if data["percent"] == 100 else []
    )
    return f"{data['percent']}% of a budget is used", [f"{label}: {used} of {limit}", *more]


def _scope(data: Data) -> str:
    """What a budget is of, if not of the whole tenant."""
    if "key" in data:
        return f" of the API key {data['key']} (lk_{data['prefix']})"
    return f" of the adapter {data['adapter']}" if "adapter" in data else ""


def _amount(kind: LimitKind, value: int) -> str:
    if not kind.is_money:
        return f"{value:,}"
    return f"{value / MICRO:,.2f} {settings.CURRENCY.upper()}"


def _key(data: Data) -> Words:
    expires = datetime.fromisoformat(data["expires_at"])
    return (
        f"The API key {data['key']} expires on {expires:%-d %B %Y}",
        [f"It starts with lk_{data['prefix']} and expires at {expires:%H:%M} UTC."],
    )


def _engine(data: Data) -> Words:
    connected_at = datetime.fromisoformat(data["last_seen_at"])
    return (
        f"The engine {data['engine']} was lost",
        [f"It was last connected on {connected_at:%-d %B %Y} at {connected_at:%H:%M} UTC."],
    )


def _drift(data: Data) -> Words:
    lacks = f"{data['requests']:,} requests, {data['tokens']:,} tokens"
    return (
        f"The ledger differs from the journal of the engine {data['engine']}",
        [f"Journal {data['journal']}: {lacks}."],
    )


def _isolation(data: Data) -> Words:
    return (
        f"The isolation check of {data['base_model']} failed",
        [str(one) for one in data["findings"]],
    )


def _rollout(data: Data) -> Words:
    return f"The rollout {data['rollout']} was {data['state']}", [str(data["reason"])]


def _alert(state: str) -> Callable[[Data], Words]:
    def words(data: Data) -> Words:
        share = data["metric"] == Metric.ERROR_SHARE
        figure = "Failed or refused" if share else "TTFT p95"
        unit, value = "%" if share else " ms", data["value"]
        now = "too few requests to judge" if value is None else f"{value:g}{unit}"
        window = f"{data['requests']:,} requests in {data['minutes']} min"
        limit = f"threshold {data['threshold']:g}{unit}"
        return f"Alert {state}: {data['rule']}", [f"{figure}: {now}, {limit}, {window}"]

    return words


WORDS: Mapping[NotificationKind, Callable[[Data], Words]] = {
    NotificationKind.ADAPTER_READY: _adapter("is ready"),
    NotificationKind.ADAPTER_REJECTED: _adapter("was rejected"),
    NotificationKind.BUDGET_REACHED: _budget,
    NotificationKind.KEY_EXPIRING: _key,
    NotificationKind.ALERT_RAISED: _alert("raised"),
    NotificationKind.ALERT_RESOLVED: _alert("resolved"),
    NotificationKind.ENGINE_LOST: _engine,
    NotificationKind.LEDGER_DRIFT: _drift,
    NotificationKind.ISOLATION_FAILED: _isolation,
    NotificationKind.ROLLOUT_STOPPED: _rollout,
}
