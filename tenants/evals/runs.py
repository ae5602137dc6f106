"""The background jobs of eval runs.

`go_on_with` takes a run from stage to stage. Each stage is one transaction: a job that is killed
repeats it. While a batch of the run is not over, the job is queued again for a little later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import msgspec
import procrastinate
import structlog
from django.conf import settings
from django.db import transaction
from procrastinate.contrib.django import app as django_app

from inference.errors import BatchEnded, InferenceError, RateLimitExceeded, short
from inference.operations.chat import CHAT
from tenants.adapters import quota, sandbox
from tenants.adapters.jobs import Backoff
from tenants.batch_states import ENDED, Status
from tenants.batches import jobs as batches
from tenants.batches.starting import batch_of, new_batch, start
from tenants.evals.criteria import ByModel, Offered
from tenants.evals.stages import EvalResult
from tenants.files import blobs, keeping
from tenants.models import Batch, EvalItem, EvalRun, Purpose, StoredFile
from tenants.models.evals import EvalStage, EvalStatus
from tenants.models.files import new_file_id
from tenants.queueing import has_job
from tenants.storage import scratch

app: procrastinate.App = django_app
log = structlog.get_logger(__name__)

POLL_S = 2
"""How often a run looks whether its batch is over."""
FULL_S = 15
"""How long it waits if the tenant has too many batches."""
KEPT_S = 7 * 24 * 3600
"""How long the requests and the answers of its batches are kept."""
AT_ONCE = 100
"""Results stored at a time."""

_results = msgspec.json.Decoder(EvalResult)


class RunFault(Exception):
    """The run fails; the message says why, the code is that of OpenAI's error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def lock_of_run(run_id: str) -> str:
    """The lock of its background jobs."""
    return f"eval-{run_id}"


def go_on_later(run: EvalRun, seconds: int = 0) -> None:
    """Have a worker go on with the run, once the current transaction commits."""
    schedule_in: Any = {"seconds": seconds} if seconds else None
    go_on_with.configure(lock=lock_of_run(run.pk), schedule_in=schedule_in).defer(run_id=run.pk)


@app.task(name="go_on_with_eval", queue=batches.QUEUE, retry=Backoff())
def go_on_with(run_id: str) -> None:
    """Take a run as far as it gets now."""
    found = EvalRun.objects.unfinished().select_related("eval__tenant", "key", "file")
    run = found.filter(pk=run_id).first()
    try:
        while run is not None:
            if any(batch.status not in ENDED for batch in run.batches):
                return go_on_later(run, POLL_S)
            STAGES[EvalStage(run.stage)](run)
            run = found.filter(pk=run_id).first()
    except RateLimitExceeded:  # the tenant has too many batches
        go_on_later(run, FULL_S)  # type: ignore[arg-type]
    except (RunFault, InferenceError) as fault:
        assert run is not None
        fail(run, fault)


def fail(run: EvalRun, fault: RunFault | InferenceError) -> None:
    """End the run with this fault."""
    error = {"code": fault.code, "message": short(str(fault))}
    run.note(status=EvalStatus.FAILED, error=error)
    log.info("eval_run_failed", run=run.pk, code=fault.code)


def sealed(run: EvalRun) -> EvalRun:
    """The new run, with seals for its batches."""
    run.seals = {}
    for field in ("samples", "verdicts"):
        batch = new_batch(run.key, CHAT, at=run.created_at)
        run.seals[field] = {"id": batch.pk, "seal": batch.seal}
    return run


def cancel(run: EvalRun) -> bool:
    """End the run and its batches; returns whether it had not ended."""
    canceled = run.note(status=EvalStatus.CANCELED)
    for batch in run.batches:
        try:
            batch.cancel()
        except BatchEnded:
            continue
    return canceled


@app.periodic(cron="*/5 * * * *")
@app.task(name="tend_evals", queueing_lock="tend_evals")
def tend_evals(timestamp: int) -> None:
    """Every five minutes: queue the jobs of runs that lost theirs."""
    for run in EvalRun.objects.unfinished():
        if not has_job(lock_of_run(run.pk)):
            go_on_later(run)


# --- Stages --------------------------------------------------------------------------------------


def _read(run: EvalRun) -> None:
    with _computed(run, "sample") as (found, out):
        if found["faults"]:
            faults = [f"Line {line}: {fault}" if line else fault for line, fault in found["faults"]]
            raise RunFault("invalid_rows", " ".join(faults))
        stage = {"stage": EvalStage.ASK, "status": EvalStatus.IN_PROGRESS, "total": found["rows"]}
        if run.model:
            _ask(run, "samples", out, **stage)
        else:
            run.note(**stage)


def _judge(run: EvalRun) -> None:
    if (batch := run.samples) is not None:
        _require_answers(batch)
    criteria = msgspec.convert(run.eval.criteria, list[Offered])
    if not any(isinstance(one, ByModel) for one in criteria):
        run.note(stage=EvalStage.GRADE)
        return
    with _computed(run, "ask") as (found, out):
        if found["asked"]:
            _ask(run, "verdicts", out, stage=EvalStage.GRADE)
        else:
            run.note(stage=EvalStage.GRADE)


def _grade(run: EvalRun) -> None:
    if (batch := run.verdicts) is not None:
        _require_answers(batch)
    with _computed(run, "grade") as (found, out), transaction.atomic():
        run.items.all().delete()
        EvalItem.objects.bulk_create(_items(run, out), batch_size=AT_ONCE)
        run.note(
            status=EvalStatus.COMPLETED,
            by_criterion=found["by_criterion"],
            usage=found["usage"],
            **found["counts"],
        )
    log.info("eval_run_completed", run=run.pk, **found["counts"])


STAGES = {EvalStage.READ: _read, EvalStage.ASK: _judge, EvalStage.GRADE: _grade}


def _require_answers(batch: Batch) -> None:
    """Raises RunFault unless its lines were answered; a line may have failed."""
    if batch.status == Status.COMPLETED:
        return
    message = (
        batch.errors[0]["message"] if batch.errors else f"Its batch {batch.pk} is {batch.status}."
    )
    raise RunFault(f"batch_{batch.status}", message)


def _items(run: EvalRun, out: IO[bytes]) -> Iterator[EvalItem]:
    for line in out:
        result = _results.decode(line)
        yield EvalItem(
            run=run,
            number=result.number,
            status=result.status,
            body=line.decode(),
            outcomes="".join(grade.outcome[0] for grade in result.grades),
            scores=[grade.score for grade in result.grades],
        )


def _ask(run: EvalRun, field: str, requests: IO[bytes], **fields: Any) -> None:
    """Start a batch with these requests, and note it in the run with these fields.

    Raises:
        RateLimitExceeded: the tenant has too many batches.
        InferenceError: it has no room for the requests.
    """
    id = new_file_id()
    try:
        with blobs.made(id) as kept:
            while piece := requests.read(1 << 20):
                kept.write(piece)
            size = kept.tell()
        with transaction.atomic():
            tenant = quota.locked(run.eval.tenant_id)
            keeping.require_room(tenant, size)
            file = StoredFile.objects.create(
                id=id,
                tenant=tenant,
                purpose=Purpose.BATCH,
                filename=f"{run.pk}_{field}.jsonl",
                size_bytes=size,
                expires_at=keeping.expiry(KEPT_S),
            )
            about = {"eval": run.eval_id, "eval_run": run.pk}
            batch = batch_of(
                run.key,
                CHAT,
                run.created_at,
                **run.seals[field],
                input_file=file,
                metadata=about,
                output_seconds=KEPT_S,
            )
            start(batch, tenant)
            if not run.note(**{field: batch}, **fields):  # it was cancelled
                batch.cancel()
    except BaseException:
        blobs.remove(id)
        raise


@contextmanager
def _computed(run: EvalRun, stage: str) -> Iterator[tuple[Mapping[str, Any], IO[bytes]]]:
    """What a child process found in this stage, and the file that it wrote.

    Raises:
        RunFault: the rows can't be read, or take more than the limits of a child.
    """
    files: dict[str, tuple[IO[bytes], str]] = {}
    with ExitStack() as opened:
        try:
            files["rows"] = opened.enter_context(blobs.open(run.file_id)), "rb"
            for name, batch in (("answers", run.samples), ("verdicts", run.verdicts)):
                for role in ("output", "error"):
                    id = getattr(batch, f"{role}_file_id", None)
                    if id is not None:
                        files[f"{name}_{role}"] = opened.enter_context(blobs.open(id)), "rb"
        except FileNotFoundError:
            raise RunFault("file_missing", "A file of the run was deleted.") from None
        out = opened.enter_context(scratch())
        task = {
            "task": "eval",
            "stage": stage,
            "source": run.source,
            "criteria": run.eval.criteria,
            "schema": run.eval.config["item_schema"],
            "max_rows": settings.EVAL_ROWS,
        }
        size = sum(file.seek(0, 2) for file, _ in files.values())
        limits = sandbox.SandboxLimits.for_bytes(size)
        try:
            found = sandbox.run(task, {**files, "out": (out, "r+b")}, limits)
        except sandbox.LimitExceeded as error:
            raise RunFault("too_expensive", f"A limit was exceeded: {error}.") from None
        except sandbox.Crashed:
            raise RunFault("unreadable", "The rows could not be read.") from None
        out.seek(0)
        yield found, out
