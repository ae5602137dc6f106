"""The background jobs of fine-tuning. Workers read a job's files and end a job whose version they
have judged; trainers (`manage.py trainer`) alone run the queue TRAINING_QUEUE.

A `train_next` names no job: it has a trainer pull the job that is next by fairness
(`FineTuningJobQuerySet.claim`), and others on its base model beside it. There is one for each job
that waits. From then on it belongs to the jobs that it pulled: if its trainer is killed,
`tend_queue` has another trainer run it, which goes on with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import procrastinate
import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from procrastinate.contrib.django import app as django_app
from procrastinate.contrib.django.models import ProcrastinateJob

from inference.errors import TuningNotPossible, short
from tenants.adapters import sandbox
from tenants.adapters.jobs import Backoff, judge_later, lock_of
from tenants.batches import jobs as batches
from tenants.files import blobs
from tenants.limits.kinds import TRAINED
from tenants.models import AdapterVersion, FineTuningJob, State, StoredFile
from tenants.models.training_limits import WINDOW, limits_of
from tenants.models.tuning import must_wait
from tenants.queueing import UNFINISHED, has_job
from tenants.tuning import billing
from tenants.tuning.child.rows import MAX_BYTES
from tenants.tuning.hyperparameters import chosen
from tenants.tuning.training import LeftJob, Trainer
from tenants.tuning_states import TuningStatus

app: procrastinate.App = django_app
log = structlog.get_logger(__name__)

TRAINING_QUEUE = "training"
ELSEWHERE_S = 30
"""After so long another trainer may pull jobs on base models that this one lacks."""


@dataclass
class Trainers:
    """The trainer of this process, if it is one."""

    own: Trainer | None = None


trainers = Trainers()


# --- Reading the files ---------------------------------------------------------------------------


def _lock(job: FineTuningJob) -> str:
    return f"tuning-{job.pk}"


def read_later(job: FineTuningJob) -> None:
    """Have a worker read the job's files, once the current transaction commits."""
    read_files.configure(lock=_lock(job)).defer(job_id=job.pk)


@app.task(name="read_tuning_files", queue=batches.QUEUE, retry=Backoff())
def read_files(job_id: str) -> None:
    """Read a job's files: the job is queued, or fails with the faults of each line."""
    found = FineTuningJob.objects.select_related("training_file", "validation_file")
    job = found.filter(pk=job_id).first()
    if job is None or job.status != TuningStatus.VALIDATING_FILES:
        return
    read = _rows(job, job.training_file, "training_file")
    held = job.validation_file
    if read["rows"] and held and not _rows(job, held, "validation_file")["rows"]:
        return
    if rows := read["rows"]:
        numbers = chosen(job.method, job.hyperparameters, rows)
        tokens = int(numbers["n_epochs"] * read["tokens"])
        fits = not _exceeds_limit(job, tokens)
        if fits and queue(job, hyperparameters=numbers, expected_tokens=tokens):
            job.report(f"The files are valid: {rows} rows to train on. The job is queued.")
            tell_waiting([job])
    log.info("tuning_files_read", job=job.pk, rows=rows, status=job.status)


def _exceeds_limit(job: FineTuningJob, tokens: int) -> bool:
    """Whether the tenant may never train so many in 24 hours, with which the job fails."""
    limit = limits_of([job.tenant_id]).get(job.tenant_id)
    if limit is None or tokens <= limit:
        return False
    return job.fail(
        "training_limit_exceeded",
        f"The job takes about {tokens:,} tokens over all epochs; the tenant's limit "
        f"`{TRAINED.name}` is {limit:,}.",
        "training_file",
    )


def tell_waiting(jobs: Collection[FineTuningJob]) -> None:
    """Note in their events which of these queued jobs wait for room in their tenant's limit of
    trained tokens, and until when; of each once until then."""
    now = timezone.now()
    waiting = [job for job in jobs if job.waits_until is None or job.waits_until <= now]
    for id, room in must_wait(waiting).items():
        job = next(one for one in waiting if one.pk == id)
        free_at = room.free_at(job.tokens_to_train)
        when = f"at {free_at:%Y-%m-%d %H:%M} UTC at the latest" if free_at else "later"
        until = free_at or now + WINDOW
        queued = FineTuningJob.objects.filter(pk=id, status=TuningStatus.QUEUED)
        if queued.update(waits_until=until):
            job.report(
                f"It waits: the tenant's limit `{TRAINED.name}` is {room.limit:,}, of which "
                f"{room.trained:,} are used; the job takes about {job.tokens_to_train:,}. It can "
                f"be trained {when}."
            )


def _rows(job: FineTuningJob, file: StoredFile, param: str) -> Mapping[str, Any]:
    """The number of the file's `rows`, and about how many `tokens` they have; no rows if the job
    has failed, because they are not valid."""
    task = {"task": "rows", "max_rows": settings.TUNING_ROWS, "method": job.method}
    if file.size_bytes > MAX_BYTES:
        message = f"The file has {file.size_bytes} bytes; at most {MAX_BYTES} are allowed."
        return _refuse(job, param, message)
    limits = sandbox.SandboxLimits.for_bytes(file.size_bytes)
    try:
        with blobs.open(file.pk) as opened:
            found = sandbox.run(task, {"rows": (opened, "rb")}, limits)
    except sandbox.LimitExceeded as error:
        return _refuse(job, param, f"Reading the file exceeded a resource limit ({error}).")
    except (sandbox.Crashed, FileNotFoundError):
        return _refuse(job, param, "The file could not be read.")
    faults = [f"Line {line}: {message}" if line else message for line, message in found["faults"]]
    for fault in faults:
        job.report(short(fault), level="error")
    if not faults:
        return found
    more = f" (and {len(faults) - 1} others: see the job's events)" if faults[1:] else ""
    return _refuse(job, param, f"{faults[0]}{more}")


def _refuse(job: FineTuningJob, param: str, message: str) -> Mapping[str, Any]:
    job.fail("invalid_file", message, param)
    return {"rows": 0}


# --- Training ------------------------------------------------------------------------------------


def queue(job: FineTuningJob, **fields: object) -> bool:
    """Have the job trained, or trained further, if its state allows that; returns whether it
    does."""
    with transaction.atomic():
        queued = job.advance(TuningStatus.QUEUED, **fields)
        if queued:
            train_next.defer()
    return queued


def is_anything_to_train() -> bool:
    """Whether a trainer that starts now would find a background job of its own."""
    pulls = ProcrastinateJob.objects.filter(queue_name=TRAINING_QUEUE, status="todo")
    return bool(pulls.exclude(scheduled_at__gt=timezone.now()).exists())


@app.task(name="train_next", queue=TRAINING_QUEUE, retry=Backoff(), pass_context=True)
def train_next(context: procrastinate.JobContext) -> None:
    """Train the job that is next, in a trainer, and others beside it.

    Raises:
        OSError: files can't be read or written now; the job can be gone on with.
    """
    trainer = trainers.own
    if trainer is None:
        raise RuntimeError("only `manage.py trainer` trains")
    assert context.job.id is not None
    claim = partial(FineTuningJob.objects.claim, context.job.id, trainer.bases.keys())
    job = claim()
    if job is None:
        if FineTuningJob.objects.filter(status=TuningStatus.QUEUED).exists():
            train_next.configure(schedule_in={"seconds": ELSEWHERE_S}).defer()
        return
    for left in trainer.train(job, claim):
        _leave(left)


def _leave(left: LeftJob) -> None:
    job = left.job
    if left.version is not None:
        _judge(job, left.version)
    elif left.unfinished:
        queue(job)
    if not FineTuningJob.objects.unfinished().filter(pk=job.pk).exists():
        blobs.remove(job.pk)
    log.info("tuning_left", job=job.pk, status=job.status)


def _judge(job: FineTuningJob, version: AdapterVersion) -> None:
    """Have the job end with the verdict on its version. If it was cancelled meanwhile, the adapter
    is deleted."""
    with transaction.atomic():
        if job.note(version=version):
            return end_later(job, version)
    job.refresh_from_db()
    if job.status == TuningStatus.CANCELLED:
        _discard_adapter(job)


def _discard_adapter(job: FineTuningJob) -> None:
    """Delete the adapter of a cancelled job, if a trainer has kept it: it may have been killed
    before it could note that."""
    for adapter in job.tenant.adapters.filter(name=job.adapter_name):
        adapter.discard()


def end_later(job: FineTuningJob, version: AdapterVersion) -> None:
    """Have a worker end the job after the version's present jobs, which judge it."""
    end_tuning.configure(lock=lock_of(version.pk)).defer(job_id=job.pk)


@app.task(name="end_tuning", retry=Backoff())
def end_tuning(job_id: str) -> None:
    """End a job whose version was judged."""
    found = FineTuningJob.objects.select_related("version", "tenant", "base_model")
    job = found.filter(pk=job_id, status=TuningStatus.RUNNING).first()
    if job is None:
        return
    version = job.version
    if version is None:
        job.fail("adapter_deleted", "The adapter was deleted while it was checked.")
    elif version.state in (State.READY, State.ARCHIVED):
        billing.bill(job)
        if job.advance(TuningStatus.SUCCEEDED):
            job.report(f"The job succeeded: the model is {job.fine_tuned_model}.")
    elif version.state == State.REJECTED:
        findings = [finding["message"] for finding in version.report["findings"]]
        job.fail("adapter_rejected", f"The adapter was rejected: {findings[0]}")
    else:  # the job that judges it was lost: it would have come before this one
        judge_later(version)
        return end_later(job, version)
    blobs.remove(job.pk)
    log.info("tuning_ended", job=job.pk, status=job.status)


def pause(job: FineTuningJob) -> None:
    """Have the trainer save the job's state and leave it.

    Raises:
        TuningNotPossible: it has ended, is paused, or is trained already.
    """
    job.require(TuningStatus.PAUSED, "paused")


def resume(job: FineTuningJob) -> None:
    """Have a paused job trained further.

    Raises:
        TuningNotPossible: it is not paused.
    """
    if job.status != TuningStatus.PAUSED or not queue(job):
        raise TuningNotPossible(f"A job that is {job.status} cannot be resumed.")
    job.report("The job was resumed.")
    tell_waiting([job])


def cancel(job: FineTuningJob) -> None:
    """End the job without a result.

    Raises:
        TuningNotPossible: it has ended, or is trained already.
    """
    job.require(TuningStatus.CANCELLED, "cancelled")
    _discard_adapter(job)
    blobs.remove(job.pk)


@app.periodic(cron="*/5 * * * *")
@app.task(name="tend_tuning", queueing_lock="tend_tuning")
def tend_tuning(timestamp: int) -> None:
    """Every five minutes: queue the background jobs of fine-tuning jobs that lost theirs."""
    pulls = ProcrastinateJob.objects.filter(task_name=train_next.name, status__in=UNFINISHED)
    known = set(pulls.values_list("pk", flat=True))
    for job in FineTuningJob.objects.unfinished().select_related("version"):
        if job.status == TuningStatus.VALIDATING_FILES and not has_job(_lock(job)):
            read_later(job)
        elif job.status == TuningStatus.RUNNING and job.version is not None:
            if not has_job(lock_of(job.version.pk)):
                end_later(job, job.version)
        elif job.status == TuningStatus.RUNNING and job.claimed_by not in known:
            queue(job)
    waiting = FineTuningJob.objects.filter(status=TuningStatus.QUEUED)
    tell_waiting(waiting)
    for _ in range(waiting.count() - pulls.filter(status="todo").count()):
        train_next.defer()
