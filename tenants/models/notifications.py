"""Notifications for webhooks and users: an outbox and its deliveries, and how far users have read.

A notification is written in the transaction of the event that it reports: by a trigger if that is a
change of a row (`sql/notifications.sql`), else by `tenants.notifications.watching`. The
same function writes a delivery for each webhook that subscribes to its kind; a worker adds one for
each user who is emailed (`tenants.notifications.mail`), and sends them all
(`tenants.notifications.sending`).
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import RandomUUID
from django.db import connection, models, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from tenants.errors import TooManyTargets, TooManyTests, WebhookGone
from tenants.models.accounts import Role, Tenant, User

MAX_TESTS = 5
"""Test events that a tenant, or the installation, may have sent in a minute."""
MAX_TARGETS = 20
"""At most how many webhooks a tenant, or the installation, has."""
SECRET_BYTES = 32
OVERLAP = timedelta(hours=24)
KEPT_FOR = timedelta(days=30)
LOCK = 0x54475453
"""The first key of the database's advisory locks: "TGTS"."""


class NotificationKind(models.TextChoices):
    """The kinds of notifications; the values are the `type` of webhooks."""

    ADAPTER_READY = "adapter.ready", "Adapter ready"
    ADAPTER_REJECTED = "adapter.rejected", "Adapter rejected"
    BUDGET_REACHED = "budget.reached", "Budget 80% or 100% used"
    KEY_EXPIRING = "key.expiring", "API key expires within a week"
    ALERT_RAISED = "alert.raised", "Alert raised"
    ALERT_RESOLVED = "alert.resolved", "Alert resolved"
    ENGINE_LOST = "engine.lost", "Engine lost"
    LEDGER_DRIFT = "ledger.drift", "Ledger differs from an engine"
    ISOLATION_FAILED = "isolation.failed", "Isolation check failed"
    ROLLOUT_STOPPED = "rollout.stopped", "Rollout rolled back or aborted"
    WEBHOOK_TEST = "webhook.test", "Test of a webhook"


OF_TENANTS: Mapping[NotificationKind, Role] = {
    NotificationKind.ADAPTER_READY: Role.DEVELOPER,
    NotificationKind.ADAPTER_REJECTED: Role.DEVELOPER,
    NotificationKind.BUDGET_REACHED: Role.ADMIN,
    NotificationKind.KEY_EXPIRING: Role.DEVELOPER,
    NotificationKind.ALERT_RAISED: Role.DEVELOPER,
    NotificationKind.ALERT_RESOLVED: Role.DEVELOPER,
}
"""The kinds of tenants, each with the least role whose members see it and are emailed."""
OF_INSTALLATION = (
    NotificationKind.ENGINE_LOST,
    NotificationKind.LEDGER_DRIFT,
    NotificationKind.ISOLATION_FAILED,
    NotificationKind.ROLLOUT_STOPPED,
)
"""The kinds about which operators are emailed."""


@contextmanager
def _locked(tenant_id: int | None) -> Iterator[None]:
    """A transaction in which nobody else adds a target or a test of this tenant, or of the
    installation."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s::int)", [LOCK, tenant_id or 0])
        yield


class TargetQuerySet(models.QuerySet["Target"]):
    def of(self, tenant: Tenant | None) -> TargetQuerySet:
        """The webhooks of a tenant, or (None) those of the installation."""
        return self.filter(tenant=tenant)

    def add(self, tenant: Tenant | None, url: str, kinds: list[str], by: User | None) -> Target:
        """Create a target with its own secret.

        Raises:
            TooManyTargets: there are MAX_TARGETS.
        """
        with _locked(None if tenant is None else tenant.pk):
            if self.of(tenant).count() >= MAX_TARGETS:
                raise TooManyTargets
            return self.create(tenant=tenant, url=url, kinds=kinds, created_by=by)


def new_secret() -> str:
    """A secret in the format of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def first_secrets() -> list[str]:
    return [new_secret()]


class Target(models.Model):
    """A webhook that gets notifications of some kinds."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, related_name="targets")
    url = models.CharField(max_length=500)
    kinds = ArrayField(models.CharField(max_length=32))
    # The audit log omits columns of this name.
    secrets = ArrayField(
        models.CharField(max_length=64), default=first_secrets, editable=False, db_column="password"
    )
    """The current secret, and the previous one, which also signs for OVERLAP."""
    rotated_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    """When it answered that it is gone (410); since then it gets nothing."""

    objects = TargetQuerySet.as_manager()

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.url

    def rotate(self) -> str:
        """Make and return a new secret; deliveries are also signed with the old one for OVERLAP."""
        with transaction.atomic():
            known = Target.objects.select_for_update().get(pk=self.pk).secrets
            self.secrets, self.rotated_at = [new_secret(), known[0]], timezone.now()
            self.save(update_fields=["secrets", "rotated_at"])
        return self.secrets[0]

    def test(self) -> Delivery:
        """Have a test event sent to this webhook alone, once.

        Raises:
            WebhookGone: it answered 410, so nothing is sent to it any more.
            TooManyTests: MAX_TESTS were sent in the last minute.
        """
        if self.ended_at is not None:
            raise WebhookGone
        kind, now = NotificationKind.WEBHOOK_TEST, timezone.now()
        with _locked(self.tenant_id):
            recent = Notification.objects.filter(
                tenant=self.tenant_id, kind=kind, at__gt=now - timedelta(minutes=1)
            )
            if recent.count() >= MAX_TESTS:
                raise TooManyTests
            notification = Notification.objects.create(
                tenant_id=self.tenant_id, kind=kind, data={}, once="", mailed=True, at=now
            )
            return Delivery.objects.create(notification=notification, target=self)

    def signing_secrets(self, now: datetime) -> list[str]:
        """The secrets to sign with, the newest first."""
        overlaps = self.rotated_at is not None and now < self.rotated_at + OVERLAP
        return self.secrets if overlaps else self.secrets[:1]


class NotificationQuerySet(models.QuerySet["Notification"]):
    def post(
        self,
        kind: NotificationKind,
        data: Mapping[str, Any],
        *,
        tenant: Tenant | None = None,
        once: str = "",
    ) -> bool:
        """Write a notification and its deliveries, in the caller's transaction. Returns whether
        they were written: not if this kind was already written with the same non-empty `once`."""
        whose = None if tenant is None else tenant.pk
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT tenants_notify_of(%s, %s, %s::jsonb, %s)",
                [kind.value, whose, json.dumps(data), once],
            )
            return bool(cursor.fetchone()[0])

    def long_past(self) -> NotificationQuerySet:
        """Notifications that were written more than KEPT_FOR ago."""
        return self.filter(at__lt=timezone.now() - KEPT_FOR)


class Notification(models.Model):
    """One event to report; `data` is that of the payload."""

    id = models.UUIDField(primary_key=True, db_default=RandomUUID())
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, related_name="+")
    kind = models.CharField(max_length=32, choices=NotificationKind)
    data = models.JSONField()
    once = models.CharField(max_length=200)
    """Identifies an event that is reported at most once; empty: no such bound."""
    at = models.DateTimeField(db_default=Now())
    mailed = models.BooleanField(db_default=False)
    """Whether its deliveries by email have been added."""

    objects = NotificationQuerySet.as_manager()

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "kind", "once"],
                condition=~Q(once=""),
                nulls_distinct=False,
                name="notification_once",
            )
        ]
        indexes = [
            models.Index(fields=["at"], name="notification_by_time"),
            models.Index(fields=["tenant", "at"], name="notification_by_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M}"

    @property
    def message_id(self) -> str:
        """The `webhook-id` of all its deliveries."""
        return f"msg_{self.id.hex}"


class DeliveryState(models.TextChoices):
    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"
    """It was retried for three days, or its target is gone."""


class Muted(models.Model):
    """The kinds that a user wants no emails about, as a member of a tenant or as an operator."""

    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, related_name="+")
    kinds = ArrayField(models.CharField(max_length=32))

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "tenant"], nulls_distinct=False, name="muted_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.user}: {', '.join(self.kinds)}"


class ReadMark(models.Model):
    """Up to when a user has read the notifications of a tenant, or of the installation."""

    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, related_name="+")
    until = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "tenant"], nulls_distinct=False, name="read_mark_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.until:%Y-%m-%d %H:%M}"


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def to_webhooks(self, tenant: Tenant | None) -> DeliveryQuerySet:
        """Deliveries to a tenant's webhooks, or (None) to the installation's."""
        found = self.filter(target__isnull=False, target__tenant=tenant)
        return found.select_related("notification", "target")


class Delivery(models.Model):
    """One notification for one webhook, or by email for one user. A test is tried once.

    `due_at` is the time of the next attempt, `tried_at` that of the last one; `status` is the HTTP
    status, `error` why the last attempt failed.
    """

    notification = models.ForeignKey(Notification, models.CASCADE, related_name="deliveries")
    target = models.ForeignKey(Target, models.CASCADE, null=True, related_name="deliveries")
    user = models.ForeignKey(User, models.CASCADE, null=True, related_name="+")
    state = models.CharField(max_length=16, choices=DeliveryState, db_default=DeliveryState.WAITING)
    attempts = models.PositiveSmallIntegerField(db_default=0)
    due_at = models.DateTimeField(db_default=Now())
    tried_at = models.DateTimeField(null=True)
    status = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=300, db_default="")
    duration_ms = models.PositiveIntegerField(null=True)
    """How long the last attempt took."""

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["notification", "target", "user"],
                nulls_distinct=False,
                name="delivery_once",
            ),
            models.CheckConstraint(
                condition=Q(target__isnull=True) ^ Q(user__isnull=True), name="delivery_to_one"
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(state="waiting"), name="delivery_due"),
        ]

    def __str__(self) -> str:
        return f"{self.notification} to {self.target or self.user}"

    def replay(self) -> None:
        """Schedule it for delivery now, whatever its state."""
        Delivery.objects.filter(pk=self.pk).update(
            state=DeliveryState.WAITING, attempts=0, due_at=Now()
        )
