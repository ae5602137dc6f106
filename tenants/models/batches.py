"""Batches: many requests in one file, answered within a day in the batch lane.

A batch moves from state to state by compare-and-set (`tenants.batch_states`). Its lines are run by
the worker that leases it: `run` counts the leases, and a worker without the latest one cannot write
to it (`tenants.batches.leases`). An answered line has a row until the batch has its files.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone

from inference.errors import BatchEnded
from inference.gateway.lines.frames import OpenBatch
from inference.gateway.lines.seals import new_batch_id
from tenants.batch_states import ENDED, Status, before
from tenants.models.accounts import Tenant
from tenants.models.files import StoredFile
from tenants.models.keys import ApiKey

TIMES = {
    Status.IN_PROGRESS: "in_progress_at",
    Status.CANCELLING: "cancelling_at",
    Status.FINALIZING: "finalizing_at",
    **dict.fromkeys(ENDED, "ended_at"),
}
"""The field that records when each state began."""
STATUSES = [(status.value, status.value) for status in Status]
_ENDED = sorted(status.value for status in ENDED)


class BatchQuerySet(models.QuerySet["Batch"]):
    def unfinished(self) -> BatchQuerySet:
        return self.filter(ended_at=None)


class Batch(models.Model):
    """Requests of the key that made it; `seal` proves to gateways that the key did (`seals`).

    `total`, `completed` and `failed` count lines; token counts are those of answered lines. What is
    billed is in the ledger, where a line's id is its `seals.line_id`. `ending` is the state that
    follows `finalizing`. `errors` are the faults of the file, or why the batch ended early.
    """

    id = models.CharField(primary_key=True, max_length=32, default=new_batch_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="batches")
    key = models.ForeignKey(ApiKey, models.CASCADE, related_name="+")
    # A batch that has ended outlives its files, and still names them.
    input_file = models.ForeignKey(
        StoredFile, models.DO_NOTHING, related_name="batches", db_constraint=False
    )
    output_file = models.ForeignKey(
        StoredFile, models.DO_NOTHING, null=True, related_name="+", db_constraint=False
    )
    error_file = models.ForeignKey(
        StoredFile, models.DO_NOTHING, null=True, related_name="+", db_constraint=False
    )
    operation = models.CharField(max_length=32)
    endpoint = models.CharField(max_length=64)
    metadata = models.JSONField(null=True)
    output_seconds = models.PositiveIntegerField(null=True)
    """How long its output is kept; null: until it is deleted."""
    seal = models.CharField(max_length=64)
    idempotency_key = models.CharField(max_length=255, default="")
    """The idempotency key of the request that made it; empty if it had none."""
    status = models.CharField(max_length=16, choices=STATUSES, default=Status.VALIDATING)
    ending = models.CharField(max_length=16, choices=STATUSES, default=Status.COMPLETED)
    errors = models.JSONField(default=list)
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    run = models.PositiveIntegerField(default=0)
    leased_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True)
    """With its lines' ids it identifies their entries in the ledger, so it never changes."""
    cancelling_at = models.DateTimeField(null=True)
    finalizing_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = BatchQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="batches_of_tenant"),
            models.Index(
                fields=["leased_until"],
                name="batches_to_run",
                condition=Q(ended_at=None),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=_ENDED, ended_at__isnull=False)
                | (~Q(status__in=_ENDED) & Q(ended_at__isnull=True)),
                name="batch_ended_at_its_end",
            ),
            models.UniqueConstraint(
                fields=["key", "idempotency_key"],
                condition=~Q(idempotency_key=""),
                name="batch_made_once",
            ),
            models.CheckConstraint(
                condition=Q(completed__lte=models.F("total") - models.F("failed")),
                name="batch_counts_its_lines",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def done(self) -> int:
        """The number of answered lines."""
        return self.completed + self.failed

    @property
    def share(self) -> float:
        """The share of its lines that are answered."""
        return self.done / self.total if self.total else 0.0

    @property
    def status_words(self) -> str:
        return self.status.replace("_", " ")

    def asks_as(self, other: Batch) -> bool:
        """Whether both ask for the same."""
        asked = ("input_file_id", "operation", "metadata", "output_seconds")
        return all(getattr(self, field) == getattr(other, field) for field in asked)

    def opening(self) -> OpenBatch:
        """The description of it that gateways get."""
        created_at = self.created_at.timestamp()
        return OpenBatch(self.pk, self.key_id, created_at, self.operation, self.seal)

    def advance(self, status: Status, **fields: Any) -> bool:
        """Move to this state and set its time, if the present state allows that; returns whether
        it did."""
        now = timezone.now()
        values = {TIMES[status]: now, "status": status, **fields}
        changed = Batch.objects.filter(pk=self.pk, status__in=before(status)).update(**values)
        self.refresh_from_db()
        return bool(changed)

    def cancel(self) -> None:
        """End it as soon as possible, with the answers that it has; no effect if it is being
        cancelled already.

        Raises:
            BatchEnded: it has ended, or is being finalized.
        """
        if self.status == Status.VALIDATING and self.advance(Status.CANCELLED):
            return
        fields = {"ending": Status.CANCELLED}
        if not self.advance(Status.CANCELLING, **fields) and self.status != Status.CANCELLING:
            raise BatchEnded(f"Cannot cancel a batch with status '{self.status}'.")


class BatchLine(models.Model):
    """The answer to line `number` of a batch, from 1; kept until the batch has its files."""

    pk = models.CompositePrimaryKey("batch_id", "number")
    batch = models.ForeignKey(Batch, models.CASCADE, related_name="lines", db_index=False)
    number = models.PositiveIntegerField()
    status_code = models.PositiveSmallIntegerField()
    body = models.BinaryField()
    """The answer's body, as JSON."""
    first_token_ms = models.FloatField(null=True)
    total_ms = models.FloatField(null=True)
    """How long its engine took, without waiting for its turn and loading the adapter."""

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return f"{self.batch_id}:{self.number}"
