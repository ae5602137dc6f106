"""Fine-tuning jobs: a file of dialogues, from which a trainer makes an adapter.

A job moves from state to state by compare-and-set (`tenants.tuning_states`). While it trains it
belongs to a background job of a trainer (`claimed_by`); `run` counts the claims, and a trainer
without the latest one cannot write to it. The saved state from which training goes on is stored
like a file, under the job's id (`tenants.files.blobs`).
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, get_args

from django.db import models, transaction
from django.db.models import Aggregate, Count, F, Max, OuterRef, Q, Subquery, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce
from django.utils import timezone

from inference.errors import TuningNotPossible, short
from tenants.models.accounts import Tenant
from tenants.models.adapters import AdapterVersion, BaseModel
from tenants.models.evals import Eval
from tenants.models.files import StoredFile
from tenants.models.keys import ApiKey
from tenants.models.training_limits import WINDOW, TrainedJob, TrainingRoom, limits_of
from tenants.naming import ACTIVE, tuned_adapter, tuned_name
from tenants.tuning_states import ENDED, SUPERVISED, Method, TuningStatus, before

STATUSES = [(status.value, status.value) for status in TuningStatus]
_ENDED = sorted(status.value for status in ENDED)
METHODS = [(name, name) for name in get_args(Method)]
ROOM_FIELDS = ("tenant", "expected_tokens", "trained_tokens")
"""Of a queued job: what `must_wait` reads."""
MAX_SUFFIX = 40
AUDITED = "tuning job"
"""The kind of a job in the audit log."""
ID_DIGITS = 8
"""Of a job's id, at the end of its adapter's name."""


def new_job_id() -> str:
    return f"ftjob-{secrets.token_hex(12)}"


def new_event_id() -> str:
    """An id that sorts by time."""
    return f"ftevent-{time.time_ns():016x}{secrets.token_hex(4)}"


def new_checkpoint_id() -> str:
    return f"ftckpt_{secrets.token_hex(12)}"


class FineTuningJobQuerySet(models.QuerySet["FineTuningJob"]):
    def unfinished(self) -> FineTuningJobQuerySet:
        return self.filter(finished_at=None)

    def reading(self, *file_ids: str) -> FineTuningJobQuerySet:
        """Unfinished jobs that need one of these files."""
        found = Q(training_file__in=file_ids) | Q(validation_file__in=file_ids)
        return self.unfinished().filter(found)

    def claim(
        self, claimed_by: int, base_models: Collection[str], beside: Sequence[FineTuningJob] = ()
    ) -> FineTuningJob | None:
        """The job that this background job of a trainer is to train, beside those that it trains:
        one that it had before its trainer was killed, or the next one that waits on one of these
        base models. None if there is none, or if it can't be trained beside them: it is on another
        base model, or its process crashed before.

        The next one is of the tenant with the fewest jobs in training, then of the one with the
        fewest trained tokens of late, then the oldest. A job for whose tokens the tenant's limit
        has no room now is passed over.
        """
        with transaction.atomic():
            here = self.filter(base_model__name__in=base_models, version=None)
            mine = here.filter(status=TuningStatus.RUNNING, claimed_by=claimed_by)
            waiting = here.filter(status=TuningStatus.QUEUED, tenant__status=ACTIVE)
            waiting = waiting.exclude(pk__in=[*must_wait(list(waiting.only(*ROOM_FIELDS)))])
            ordered = waiting.order_by(_running(), _recent_tokens(), "created_at")
            locks: dict[str, Any] = {"of": ("self",), "skip_locked": True}
            job = (
                mine.exclude(pk__in=[one.pk for one in beside]).first()
                or ordered.select_for_update(**locks).first()
            )
            if job is None or not all(job.goes_beside(one) for one in beside):
                return None
            if job.status == TuningStatus.QUEUED and limits_of([job.tenant_id]):
                # One at a time: another trainer may be claiming one of the same tenant.
                Tenant.objects.select_for_update(no_key=True).get(pk=job.tenant_id)
                if must_wait([job]):
                    return None
            self.filter(pk=job.pk).update(
                status=TuningStatus.RUNNING,
                claimed_by=claimed_by,
                run=F("run") + 1,
                waits_until=None,
            )
        return self.select_related("tenant", "base_model").get(pk=job.pk)


class FineTuningJob(models.Model):
    """`key` pays for it: that of the program that made it, or of the member's playground.
    `hyperparameters` are as asked for until the files are read, then the numbers that are used.
    `actor` made the job, and so the adapter. `version` is the result, also while it is checked;
    `metrics` are the last ones. `crashes` counts the ends of its training process that nobody
    wanted."""

    id = models.CharField(primary_key=True, max_length=32, default=new_job_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="tuning_jobs")
    key = models.ForeignKey(ApiKey, models.CASCADE, related_name="+")
    base_model = models.ForeignKey(BaseModel, models.CASCADE, related_name="+")
    # A job that has ended outlives its files, and still names them.
    training_file = models.ForeignKey(
        StoredFile, models.DO_NOTHING, related_name="+", db_constraint=False
    )
    validation_file = models.ForeignKey(
        StoredFile, models.DO_NOTHING, null=True, related_name="+", db_constraint=False
    )
    method = models.CharField(max_length=16, choices=METHODS, default=SUPERVISED)
    hyperparameters = models.JSONField()
    suffix = models.CharField(max_length=MAX_SUFFIX)
    seed = models.PositiveIntegerField()
    metadata = models.JSONField(null=True)
    actor = models.JSONField(null=True)
    status = models.CharField(
        max_length=16, choices=STATUSES, default=TuningStatus.VALIDATING_FILES
    )
    error = models.JSONField(null=True)
    metrics = models.JSONField(default=dict)
    held = models.JSONField(null=True)
    """While the version is checked: rows with the trainer's log-probabilities
    (`tenants.tuning.child.protocol.HeldRow`)."""
    trained_tokens = models.BigIntegerField(default=0)
    expected_tokens = models.BigIntegerField(db_default=0, default=0)
    """Of the whole training: estimated once the files are read, counted once it begins."""
    waits_until = models.DateTimeField(null=True)
    """While it is queued for want of the tenant's trained tokens: when this is reported again."""
    version = models.ForeignKey(AdapterVersion, models.SET_NULL, null=True, related_name="+")
    comparison = models.ForeignKey(Eval, models.SET_NULL, null=True, related_name="+")
    """Of its model with others (`tenants.tuning.comparison`)."""
    run = models.PositiveIntegerField(default=0)
    claimed_by = models.BigIntegerField(null=True)
    crashes = models.PositiveSmallIntegerField(default=0)
    idempotency_key = models.CharField(max_length=255, default="")
    """That of the request that made it; empty if it had none."""
    body_sha256 = models.CharField(max_length=64, default="")
    """Of that request's body."""
    created_at = models.DateTimeField(default=timezone.now)
    estimated_finish = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    objects = FineTuningJobQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="tuning_of_tenant"),
            models.Index(fields=["status"], name="tuning_to_do", condition=Q(finished_at=None)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=_ENDED, finished_at__isnull=False)
                | (~Q(status__in=_ENDED) & Q(finished_at__isnull=True)),
                name="tuning_finished_at_its_end",
            ),
            models.UniqueConstraint(
                fields=["key", "idempotency_key"],
                condition=~Q(idempotency_key=""),
                name="tuning_made_once",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def adapter_name(self) -> str:
        return tuned_adapter(self.suffix, self.pk[-ID_DIGITS:])

    @property
    def tokens_to_train(self) -> int:
        """How many are left, as far as is known."""
        return max(0, self.expected_tokens - self.trained_tokens)

    def goes_beside(self, other: FineTuningJob) -> bool:
        """Whether it can be trained in one process with another."""
        return self.base_model_id == other.base_model_id and not self.crashes

    @property
    def status_words(self) -> str:
        return self.status.replace("_", " ")

    @property
    def fine_tuned_model(self) -> str:
        """The name by which the tenant's requests call the result."""
        return tuned_name(self.base_model.name, self.tenant.slug, self.adapter_name)

    def advance(self, status: TuningStatus, **fields: Any) -> bool:
        """Move to this state, if the present state allows that and no other trainer has claimed the
        job since this object was read; returns whether it did."""
        if status in ENDED:
            fields |= {"finished_at": timezone.now(), "held": None}
        if status != TuningStatus.RUNNING:
            fields |= {"claimed_by": None, "estimated_finish": None}
        here = FineTuningJob.objects.filter(pk=self.pk, run=self.run, status__in=before(status))
        changed = here.update(status=status, **fields)
        with suppress(FineTuningJob.DoesNotExist):  # deleted with its tenant
            self.refresh_from_db()
        return bool(changed)

    def note(self, **fields: Any) -> bool:
        """Set fields of a running job that no other trainer has claimed; returns whether it is
        one."""
        here = FineTuningJob.objects.filter(
            pk=self.pk, run=self.run, status=TuningStatus.RUNNING, version=None
        )
        return bool(here.update(**fields))

    def fail(self, code: str, message: str, param: str | None = None) -> bool:
        """End it with this error; returns whether it had not ended."""
        error = {"code": code, "message": short(message), "param": param}
        failed = self.advance(TuningStatus.FAILED, error=error)
        if failed:
            self.report(message, level="error")
        return failed

    def report(self, message: str, data: dict[str, Any] | None = None, level: str = "info") -> None:
        """Add an event; one with data is about metrics."""
        self.events.create(message=short(message), data=data, level=level)

    def require(self, status: TuningStatus, verb: str) -> None:
        """Move to a state that a user asks for.

        Raises:
            TuningNotPossible: its state, or its being checked after the training, forbids it.
        """
        if self.version_id is not None or not self.advance(status):
            being = "checked" if self.version_id is not None else self.status
            raise TuningNotPossible(f"A job that is {being} cannot be {verb}.")
        self.report(f"The job was {verb}.")


class TuningEvent(models.Model):
    """What happened to a job, and the metrics of its training."""

    id = models.CharField(primary_key=True, max_length=40, default=new_event_id, editable=False)
    job = models.ForeignKey(FineTuningJob, models.CASCADE, related_name="events")
    level = models.CharField(max_length=8)
    message = models.CharField(max_length=400)
    data = models.JSONField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return self.message


class TuningCheckpoint(models.Model):
    """The metrics at the end of an epoch."""

    id = models.CharField(
        primary_key=True, max_length=32, default=new_checkpoint_id, editable=False
    )
    job = models.ForeignKey(FineTuningJob, models.CASCADE, related_name="checkpoints")
    step = models.PositiveIntegerField()
    metrics = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["job", "step"], name="tuning_checkpoint_once")
        ]

    def __str__(self) -> str:
        return f"{self.job_id}:{self.step}"


def must_wait(jobs: Collection[FineTuningJob]) -> Mapping[str, TrainingRoom]:
    """Of these queued jobs, by their ids, those for whose tokens their tenant's limit has no room
    now."""
    rooms = training_rooms(limits_of({job.tenant_id for job in jobs}))
    return {
        job.pk: room
        for job in jobs
        if (room := rooms.get(job.tenant_id)) is not None and not room.has(job.tokens_to_train)
    }


def training_rooms(limits: Mapping[int, int]) -> Mapping[int, TrainingRoom]:
    """By tenant: its limit, and what it has trained and is training."""
    if not limits:
        return {}
    since = timezone.now() - WINDOW
    of_late = Q(finished_at=None) | Q(finished_at__gte=since)
    mine = FineTuningJob.objects.filter(of_late, tenant__in=limits)
    jobs = mine.only(*ROOM_FIELDS, "status", "version", "created_at", "finished_at")
    earlier = _trained_until(since, [job.pk for job in jobs if job.created_at < since])
    found: dict[int, list[TrainedJob]] = defaultdict(list)
    for job in jobs:
        is_training = job.status == TuningStatus.RUNNING and job.version_id is None
        coming = job.tokens_to_train if is_training else 0
        tokens = job.trained_tokens - earlier.get(job.pk, 0) + coming
        found[job.tenant_id].append(TrainedJob(max(0, tokens), job.finished_at))
    return {id: TrainingRoom(limit, found[id]) for id, limit in limits.items()}


def _trained_until(since: datetime, jobs: Sequence[str]) -> Mapping[str, int]:
    """The tokens that each job had trained by then, as its events say."""
    events = TuningEvent.objects.filter(
        job__in=jobs, created_at__lt=since, data__trained_tokens__isnull=False
    )
    tokens = Max(Cast(KT("data__trained_tokens"), models.BigIntegerField()))
    found = events.order_by().values("job").annotate(tokens=tokens)
    return dict(found.values_list("job", "tokens"))


def _of_tenant(figure: Aggregate, which: Q) -> Coalesce:
    """A figure over jobs of the outer row's tenant."""
    rows = FineTuningJob.objects.filter(which, tenant=OuterRef("tenant"))
    found = rows.order_by().values("tenant").annotate(figure=figure).values("figure")
    return Coalesce(Subquery(found), 0)


def _running() -> Coalesce:
    return _of_tenant(Count("*"), Q(status=TuningStatus.RUNNING, version=None))


def _recent_tokens() -> Coalesce:
    since = timezone.now() - WINDOW
    of_late = Q(finished_at=None) | Q(finished_at__gte=since)
    return _of_tenant(Sum("trained_tokens"), of_late)
