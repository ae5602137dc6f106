"""What webhooks are told of: an outbox, and who gets what of it.

A notification is written in the transaction of what it tells of: by a trigger where that is a
change of a row (`migrations/0035_notifications.py`), by `tenants.notifications.watching` where
nobody changes one. The same function writes a delivery for each target that wants its kind; workers
make these (`tenants.notifications.sending`).
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import RandomUUID
from django.db import connection, models, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from tenants.errors import TooManyTargets
from tenants.models.accounts import Tenant, User

MAX_TARGETS = 20
"""Of one tenant, or of the installation."""
SECRET_BYTES = 32
KEPT_FOR = timedelta(days=30)
LOCK = 0x54475453
"""Of the database's advisory locks: "TGTS"."""


class Kind(models.TextChoices):
    """What is told of; the values are the `type` of webhooks."""

    ADAPTER_READY = "adapter.ready", "Adapter ready"
    ADAPTER_REJECTED = "adapter.rejected", "Adapter rejected"
    BUDGET_REACHED = "budget.reached", "80 or 100 % of a budget used"
    KEY_EXPIRING = "key.expiring", "API key expires within a week"
    ENGINE_LOST = "engine.lost", "Engine lost"
    LEDGER_DRIFT = "ledger.drift", "Ledger differs from an engine"
    ISOLATION_FAILED = "isolation.failed", "Check of isolation failed"
    ROLLOUT_STOPPED = "rollout.stopped", "Rollout rolled back or aborted"


OF_TENANTS = (
    Kind.ADAPTER_READY,
    Kind.ADAPTER_REJECTED,
    Kind.BUDGET_REACHED,
    Kind.KEY_EXPIRING,
)
OF_INSTALLATION = (
    Kind.ENGINE_LOST,
    Kind.LEDGER_DRIFT,
    Kind.ISOLATION_FAILED,
    Kind.ROLLOUT_STOPPED,
)


class TargetQuerySet(models.QuerySet["Target"]):
    def of(self, tenant: Tenant | None) -> TargetQuerySet:
        """Those of a tenant, or of the installation."""
        return self.filter(tenant=tenant)

    def add(self, tenant: Tenant | None, url: str, kinds: list[str], by: User | None) -> Target:
        """A new target, with a secret of its own.

        Raises:
            TooManyTargets: there are MAX_TARGETS.
        """
        whose = 0 if tenant is None else tenant.pk
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s::int)", [LOCK, whose])
            if self.of(tenant).count() >= MAX_TARGETS:
                raise TooManyTargets
            return self.create(tenant=tenant, url=url, kinds=kinds, created_by=by)


def new_secret() -> str:
    """As Standard Webhooks writes one."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


class Target(models.Model):
    """A webhook, which gets notifications of some kinds."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, related_name="targets")
    url = models.CharField(max_length=500)
    kinds = ArrayField(models.CharField(max_length=32))
    # By this name of its column the audit log leaves it out.
    secret = models.CharField(
        max_length=64, default=new_secret, editable=False, db_column="password"
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    """When it said that it is gone (410): it gets nothing any more."""

    objects = TargetQuerySet.as_manager()

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.url


class NotificationQuerySet(models.QuerySet["Notification"]):
    def post(
        self,
        kind: Kind,
        data: Mapping[str, Any],
        *,
        tenant: Tenant | None = None,
        once: str = "",
    ) -> bool:
        """Write a notification and its deliveries, in the caller's transaction; whether that was
        done: with `once` not if one of this kind was written with the same."""
        whose = None if tenant is None else tenant.pk
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT tenants_notify_of(%s, %s, %s::jsonb, %s)",
                [kind.value, whose, json.dumps(data), once],
            )
            return bool(cursor.fetchone()[0])

    def long_past(self) -> NotificationQuerySet:
        """Those that were written KEPT_FOR ago."""
        return self.filter(at__lt=timezone.now() - KEPT_FOR)


class Notification(models.Model):
    """Something that happened, as it is told: `data` is the payload's."""

    id = models.UUIDField(primary_key=True, db_default=RandomUUID())
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, related_name="+")
    kind = models.CharField(max_length=32, choices=Kind)
    data = models.JSONField()
    once = models.CharField(max_length=200)
    """Empty, or what it is told of once for."""
    at = models.DateTimeField(db_default=Now())

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
        indexes = [models.Index(fields=["at"], name="notification_by_time")]

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M}"


class DeliveryState(models.TextChoices):
    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"
    """It was tried for three days, or its target is gone."""


class Delivery(models.Model):
    """One notification for one target. Times are when it is next to be tried, and last was;
    `status` is that of HTTP, `error` why it was not delivered the last time."""

    notification = models.ForeignKey(Notification, models.CASCADE, related_name="deliveries")
    target = models.ForeignKey(Target, models.CASCADE, related_name="deliveries")
    state = models.CharField(max_length=16, choices=DeliveryState, db_default=DeliveryState.WAITING)
    attempts = models.PositiveSmallIntegerField(db_default=0)
    due_at = models.DateTimeField(db_default=Now())
    tried_at = models.DateTimeField(null=True)
    status = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=300, db_default="")

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["notification", "target"], name="delivery_once"),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(state="waiting"), name="delivery_due"),
        ]

    def __str__(self) -> str:
        return f"{self.notification} to {self.target}"

    def replay(self) -> None:
        """Deliver it again from now on, whatever became of it."""
        Delivery.objects.filter(pk=self.pk).update(
            state=DeliveryState.WAITING, attempts=0, due_at=Now()
        )
