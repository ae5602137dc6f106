"""Compares the model of a finished job with its base model and with the version before it, on rows
of the validation file: an eval of them, with a run for each model.

A console creates the eval and its runs, which alone can seal their batches; a worker reads the rows
from the file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack

import procrastinate
from django.db import transaction
from procrastinate.contrib.django import app as django_app

from inference.errors import InferenceError, TuningNotPossible
from tenants.adapters import quota, sandbox
from tenants.adapters.jobs import Backoff
from tenants.batches import jobs as batches
from tenants.evals import runs, starting
from tenants.evals.sources import Completions, EvalSampling, MessagesOfRow, RowsOfFile
from tenants.files import blobs, keeping
from tenants.models import (
    AdapterVersion,
    ApiKey,
    Eval,
    EvalRun,
    FineTuningJob,
    Purpose,
    State,
    StoredFile,
)
from tenants.models.evals import EvalStatus
from tenants.tuning_states import TuningStatus

app: procrastinate.App = django_app

MOST_ROWS = 50
MOST_TOKENS = 512
"""Of an answer, and never more than a quarter of the base model's context."""
THRESHOLD = 0.5
"""The similarity with which a row passes."""
CONFIG = {
    "item_schema": {
        "type": "object",
        "properties": {"messages": {"type": "array"}, "expected": {"type": "string"}},
        "required": ["messages", "expected"],
    },
    "include_sample_schema": True,
}
CRITERION = {
    "type": "text_similarity",
    "name": "similar to the expected answer",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.expected }}",
    "evaluation_metric": "fuzzy_match",
    "pass_threshold": THRESHOLD,
}
BASE, BEFORE = "base model", "version before"
"""The names of the runs of other models."""


def files_of(job: FineTuningJob) -> dict[str, StoredFile]:
    """The job's files that are still there, by their ids."""
    ids = [job.training_file_id, job.validation_file_id]
    return job.tenant.files.current().in_bulk([id for id in ids if id is not None])


def hindrance(job: FineTuningJob, files: Collection[str]) -> str:
    """Why the job can't be compared, in words; empty if it can. `files` are the ids of those that
    are there (`files_of`)."""
    if job.status != TuningStatus.SUCCEEDED:
        return "Only a job that has succeeded can be compared."
    if job.version is None or job.version.state != State.READY:
        return "The job's model was deleted or archived."
    if job.validation_file_id is None:
        return "The job has no validation file, and rows that it was trained on prove nothing."
    if job.validation_file_id == job.training_file_id:
        return "The job's validation file is its training file: it was trained on all rows."
    if not {job.training_file_id, job.validation_file_id} <= set(files):
        return "A file of the job was deleted, so it is not known which rows it was not trained on."
    return ""


def models_of(job: FineTuningJob) -> dict[str, str]:
    """The models that are compared, by the names of their runs; the job's own is the last."""
    assert job.version is not None
    found = {BASE: job.base_model.name}
    if (before := _before(job, job.version)) is not None:
        found[BEFORE] = _pinned(before)
    return found | {job.adapter_name: _pinned(job.version)}


def _before(job: FineTuningJob, version: AdapterVersion) -> AdapterVersion | None:
    """The newest earlier ready version of the adapter, else the model of the last job with the same
    suffix that is ready."""
    own = version.adapter.versions.filter(state=State.READY, number__lt=version.number)
    if (found := own.select_related("adapter").order_by("-number").first()) is not None:
        return found
    if not job.suffix:
        return None
    earlier = job.tenant.tuning_jobs.filter(
        status=TuningStatus.SUCCEEDED,
        suffix=job.suffix,
        created_at__lt=job.created_at,
        version__state=State.READY,
    )
    newest = earlier.select_related("version__adapter").order_by("-created_at").first()
    return newest.version if newest is not None else None


def compare(job: FineTuningJob, key: ApiKey) -> Eval:
    """Have the models answer with this key, each once: what is under way or completed is not
    started again. Sets `job.comparison`, and returns it.

    Raises:
        TuningNotPossible: see `hindrance`.
        RateLimitExceeded: the tenant has too many evals or unfinished runs.
    """
    if why := hindrance(job, files_of(job)):
        raise TuningNotPossible(why)
    with transaction.atomic():
        tenant = quota.locked(job.tenant_id)  # somebody else may compare it now
        job.refresh_from_db(fields=["comparison"])
        if job.comparison is None:
            job.comparison = _new_eval(job)
            job.save(update_fields=["comparison"])
        asked = {run.name for run in runs_of(job) if is_asked(run)}
        lacking = {name: model for name, model in models_of(job).items() if name not in asked}
        if lacking:
            starting.require_room(tenant, len(lacking))
            file = _rows_file(job)
            for name, model in lacking.items():
                run = EvalRun(eval=job.comparison, key=key, name=name)
                starting.save(run, _source(job, model, file), file)
                later = prepare.configure(lock=runs.lock_of_run(run.pk))
                later.defer(job_id=job.pk, run_id=run.pk)
    return job.comparison


def runs_of(job: FineTuningJob) -> list[EvalRun]:
    """The last run of each model, in the order of `models_of`; empty if nothing is compared."""
    if job.comparison_id is None:
        return []
    names = (BASE, BEFORE, job.adapter_name)
    mine = EvalRun.objects.filter(eval=job.comparison_id, name__in=names)
    mine = mine.defer("source", "metadata", "by_criterion", "usage")
    last = {run.name: run for run in mine.order_by("name", "-created_at", "-pk").distinct("name")}
    return [last[name] for name in names if name in last]


def is_asked(run: EvalRun) -> bool:
    """Whether the run has its result, or will have."""
    return run.status not in (EvalStatus.FAILED, EvalStatus.CANCELED)


def _pinned(version: AdapterVersion) -> str:
    return f"{version.adapter.name}@{version.number}"


def _new_eval(job: FineTuningJob) -> Eval:
    name, about = f"{job.adapter_name} on held-out rows", {"fine_tuning_job": job.pk}
    eval = Eval(tenant=job.tenant, name=name, metadata=about, config=CONFIG, criteria=[CRITERION])
    starting.create(eval)
    return eval


def _rows_file(job: FineTuningJob) -> StoredFile:
    """The file that will have the rows."""
    return StoredFile.objects.create(
        tenant=job.tenant,
        purpose=Purpose.EVALS,
        filename=f"{job.adapter_name}_held_out.jsonl",
        size_bytes=0,
        expires_at=keeping.expiry(runs.KEPT_S),
    )


def _source(job: FineTuningJob, model: str, file: StoredFile) -> Completions:
    most = max(1, min(MOST_TOKENS, job.base_model.max_model_len // 4))
    return Completions(
        source=RowsOfFile(file.pk),
        model=model,
        input_messages=MessagesOfRow("item.messages"),
        sampling_params=EvalSampling(temperature=0, max_completion_tokens=most),
    )


# --- Reading the rows ----------------------------------------------------------------------------


@app.task(name="prepare_comparison", queue=batches.QUEUE, retry=Backoff())
def prepare(job_id: str, run_id: str) -> None:
    """Have the run go on once its file has the rows, which the first run of the file writes."""
    run = EvalRun.objects.unfinished().select_related("file").filter(pk=run_id).first()
    found = FineTuningJob.objects.select_related("tenant", "training_file", "validation_file")
    job = found.filter(pk=job_id).first()
    if run is None or job is None:
        return
    try:
        if not blobs.exists(run.file_id):
            _write_rows(job, run.file)
    except (runs.RunFault, InferenceError) as fault:
        runs.fail(run, fault)
    else:
        runs.go_on_later(run)


def _write_rows(job: FineTuningJob, file: StoredFile) -> None:
    """Raises RunFault without rows, and StorageFull."""
    with ExitStack() as opened:
        try:
            held = opened.enter_context(blobs.open(str(job.validation_file_id)))
            trained = opened.enter_context(blobs.open(job.training_file_id))
        except FileNotFoundError:
            raise runs.RunFault("file_missing", "A file of the job was deleted.") from None
        out = opened.enter_context(blobs.made(file.pk))
        task = {"task": "held_out", "method": job.method, "most": MOST_ROWS}
        size = sum(one.seek(0, 2) for one in (held, trained))
        files = {"held": (held, "rb"), "trained": (trained, "rb"), "out": (out, "r+b")}
        try:
            found = sandbox.run(task, files, sandbox.SandboxLimits.for_bytes(size))
        except sandbox.LimitExceeded as error:
            raise runs.RunFault("too_expensive", f"A limit was exceeded: {error}.") from None
        except sandbox.Crashed:
            raise runs.RunFault("unreadable", "The files could not be read.") from None
        if not found["written"]:
            raise runs.RunFault("no_rows", f"No row can be compared: {_left_out(found)}.")
        with transaction.atomic():
            tenant, size = quota.locked(job.tenant_id), out.seek(0, 2)
            keeping.require_room(tenant, size)
            empty = StoredFile.objects.filter(pk=file.pk, size_bytes=0)
            if empty.update(size_bytes=size):  # else the job of another run was as quick
                job.report(
                    f"It is compared on {found['written']} of {found['usable']} held-out rows. "
                    f"Left out: {_left_out(found)}."
                )


def _left_out(found: Mapping[str, int]) -> str:
    return (
        f"{found['trained']} that were also trained on, {found['unusable']} with tools or without "
        "a text to expect"
    )
