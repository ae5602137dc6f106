"""Journal entries of engines that match nothing a gateway dispatched to them: kept, shown, and
billed only if an operator decides so (`tenants.billing.quarantine`)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.models.accounts import User
from tenants.models.fleet.engines import EngineCredential


class Decision(models.TextChoices):
    """The operator's decision on an entry."""

    OPEN = "open"
    BILLED = "billed"
    DISMISSED = "dismissed"


class QuarantinedEntry(models.Model):
    """One entry of an engine's journal. Written by gateways, changed once, by a decision.

    Its content is not trusted, so the entry is kept as text (JSON, as on the wire); `request_id`,
    `engine_id` and the counts are cut to fit their columns. `key` identifies an entry within its
    credential, so that an entry which is sent again is kept once.
    """

    REASONS: ClassVar[dict[str, str]] = {
        "malformed": "The entry's figures are impossible.",
        "unsigned": "The entry has no signature of a gateway that dispatched the request.",
        "not_dispatched": (
            "No gateway dispatched this: the request, attempt, tenant, key, adapter, "
            "model or price differs."
        ),
        "another_engine": "The request was dispatched to an engine with another credential.",
        "over_bounds": "The entry has more tokens than its request could use.",
        "not_billable": "The ledger cannot accept the entry.",
    }
    """The message for each reason code."""

    received_at = models.DateTimeField(db_default=Now())
    credential = models.ForeignKey(
        EngineCredential,
        models.DO_NOTHING,
        null=True,
        db_constraint=False,
        related_name="quarantined",
    )
    engine_id = models.CharField(max_length=255)
    journal = models.CharField(max_length=64)
    key = models.CharField(max_length=64)
    request_id = models.CharField(max_length=64)
    attempt = models.BigIntegerField()
    reason = models.CharField(max_length=32)
    detail = models.TextField(blank=True)
    prompt_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    entry = models.TextField()
    status = models.CharField(max_length=16, choices=Decision, db_default=Decision.OPEN)
    decided_at = models.DateTimeField(null=True)
    decided_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "quarantined entries"
        constraints = [
            models.UniqueConstraint(
                fields=["credential", "key"], nulls_distinct=False, name="quarantined_once"
            ),
            models.CheckConstraint(
                condition=Q(status="open", decided_at__isnull=True)
                | Q(status__in=["billed", "dismissed"], decided_at__isnull=False),
                name="quarantine_decided",
            ),
        ]
        indexes = [
            models.Index(fields=["credential"], condition=Q(status="open"), name="quarantine_open"),
            models.Index(fields=["journal"], name="quarantine_by_journal"),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}, attempt {self.attempt}"

    @property
    def why(self) -> str:
        return self.REASONS.get(self.reason, self.reason)
