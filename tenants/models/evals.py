"""Evals: what is asked of rows and their answers, its runs, and the results.

A run goes from stage to stage in background jobs (`tenants.evals.runs`), which hold its lock. The
stages that ask models do so in batches of the run's key.
"""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.models.accounts import Tenant
from tenants.models.batches import Batch
from tenants.models.files import StoredFile
from tenants.models.keys import ApiKey

MAX_NAME = 200
MOST_GRADES = 32
"""Of one result: `evals.criteria.MAX_CRITERIA`."""


def new_eval_id() -> str:
    return f"eval_{secrets.token_hex(12)}"


def new_run_id() -> str:
    return f"evalrun_{secrets.token_hex(12)}"


def new_item_id() -> str:
    return f"outputitem_{secrets.token_hex(12)}"


class EvalStatus(models.TextChoices):
    """As in OpenAI's API."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"


class EvalStage(models.TextChoices):
    """What happens next: the rows are read, their answers judged by models, or graded."""

    READ = "read"
    ASK = "ask"
    GRADE = "grade"


ENDED = (EvalStatus.COMPLETED, EvalStatus.CANCELED, EvalStatus.FAILED)


class Eval(models.Model):
    """`config` describes the rows (`tenants.evals.sources`), `criteria` are the graders
    (`tenants.evals.criteria`); they never change."""

    id = models.CharField(primary_key=True, max_length=32, default=new_eval_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="evals")
    name = models.CharField(max_length=MAX_NAME)
    metadata = models.JSONField(null=True)
    config = models.JSONField()
    criteria = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["tenant", "-created_at", "-id"], name="evals_of_tenant")]

    def __str__(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        """Its name, or its id if it has none."""
        return self.name or self.pk


class EvalRunQuerySet(models.QuerySet["EvalRun"]):
    def unfinished(self) -> EvalRunQuerySet:
        return self.filter(ended_at=None)

    def listed(self) -> EvalRunQuerySet:
        """Without what lists do not show, which can have megabytes."""
        return self.defer("source", "metadata", "error", "by_criterion", "usage")


class EvalRun(models.Model):
    """`file` has the rows, also those that were in the request. `model` answers them; it is empty
    if the rows have answers. `samples` and `verdicts` are the batches of answers and of graders.
    They are sealed with the run, because workers can't (`seals` has the id and the seal of each).
    `by_criterion` has the sums of each criterion, in their order; `usage` those of each model."""

    id = models.CharField(primary_key=True, max_length=32, default=new_run_id, editable=False)
    eval = models.ForeignKey(Eval, models.CASCADE, related_name="runs")
    key = models.ForeignKey(ApiKey, models.CASCADE, related_name="+")
    name = models.CharField(max_length=MAX_NAME)
    metadata = models.JSONField(null=True)
    source = models.JSONField()
    model = models.CharField(max_length=300)
    # A run that has ended outlives its file, and still names it.
    file = models.ForeignKey(StoredFile, models.DO_NOTHING, related_name="+", db_constraint=False)
    samples = models.ForeignKey(Batch, models.SET_NULL, null=True, related_name="+")
    verdicts = models.ForeignKey(Batch, models.SET_NULL, null=True, related_name="+")
    seals = models.JSONField()
    stage = models.CharField(max_length=8, choices=EvalStage, default=EvalStage.READ)
    status = models.CharField(max_length=16, choices=EvalStatus, default=EvalStatus.QUEUED)
    error = models.JSONField(null=True)
    total = models.PositiveIntegerField(default=0)
    passed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    errored = models.PositiveIntegerField(default=0)
    by_criterion = models.JSONField(default=list)
    usage = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    objects = EvalRunQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["eval", "-created_at", "-id"], name="runs_of_eval"),
            models.Index(fields=["status"], name="runs_to_do", condition=Q(ended_at=None)),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def label(self) -> str:
        """Its name, or the end of its id if it has none."""
        return self.name or f"evalrun_…{self.pk[-6:]}"

    @property
    def status_words(self) -> str:
        return self.status.replace("_", " ")

    @property
    def share(self) -> float | None:
        """The share of its rows that passed, once they are graded."""
        graded = self.status == EvalStatus.COMPLETED and self.total
        return self.passed / self.total if graded else None

    @property
    def duration_s(self) -> float:
        """From its creation to its end, or until now."""
        return ((self.ended_at or timezone.now()) - self.created_at).total_seconds()

    @property
    def batches(self) -> list[Batch]:
        """Those that it has begun."""
        return [batch for batch in (self.samples, self.verdicts) if batch is not None]

    def note(self, **fields: Any) -> bool:
        """Set fields, unless it has ended; returns whether it has not."""
        if fields.get("status") in ENDED:
            fields["ended_at"] = timezone.now()
        noted = bool(EvalRun.objects.unfinished().filter(pk=self.pk).update(**fields))
        self.refresh_from_db()
        return noted


class EvalItem(models.Model):
    """The result for the row at line `number`; `body` is an `evals.stages.EvalResult` as JSON.
    `outcomes` has the first letter of each grade's outcome, and `scores` its score, so that runs
    can be compared without reading bodies."""

    id = models.CharField(primary_key=True, max_length=40, default=new_item_id, editable=False)
    run = models.ForeignKey(EvalRun, models.CASCADE, related_name="items", db_index=False)
    number = models.PositiveIntegerField()
    status = models.CharField(max_length=8)
    body = models.TextField()
    outcomes = models.CharField(max_length=MOST_GRADES, default="")
    scores = ArrayField(models.FloatField(null=True), db_default=[], default=list)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="eval_item_once")]

    def __str__(self) -> str:
        return f"{self.run_id}:{self.number}"
