"""Responses that run in the background: one row for each, as long as the response is stored.

Prompt and answer are in its content alone, encrypted. The row has its status and its lease: a
worker leases it as it does a batch (`tenants.batches.response_leases`).
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from inference.operations.responses.framing import (
    CANCELLED,
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    INCOMPLETE,
    LIVE,
    QUEUED,
)
from tenants.models.accounts import Tenant
from tenants.models.content import StoredContent
from tenants.models.keys import ApiKey

STATUSES = (QUEUED, IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED, CANCELLED)
RUNS = Q(status__in=LIVE)


class BackgroundResponse(models.Model):
    """`run` counts its leases, `turn` is the last turn in which a gateway began it; `once` is the
    digest of its idempotency key and body. `code` is that of the error which ended it, if its
    content does not have it."""

    id = models.CharField(primary_key=True, max_length=40, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="+", db_index=False)
    key = models.ForeignKey(ApiKey, models.CASCADE, related_name="+", db_index=False)
    # The database deletes it with its content, which gateways delete without the ORM.
    content = models.OneToOneField(
        StoredContent, models.DO_NOTHING, related_name="background", db_constraint=False
    )
    status = models.CharField(
        max_length=16, choices=[(one, one) for one in STATUSES], default=QUEUED
    )
    code = models.CharField(max_length=64, db_default="", default="")
    size_bytes = models.PositiveIntegerField()
    """The size of its body."""
    seal = models.CharField(max_length=64)
    once = models.CharField(max_length=64, default="")
    run = models.PositiveIntegerField(db_default=0, default=0)
    turn = models.BigIntegerField(db_default=0, default=0)
    leased_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    """If it has not ended by then, it has failed."""

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "created_at"], name="background_to_run", condition=RUNS),
            models.Index(fields=["key", "once"], name="background_once", condition=~Q(once="")),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=STATUSES), name="background_status_known"
            ),
        ]

    def __str__(self) -> str:
        return self.id
