"""From a file to a version that is ready, with a real training process; what is killed, paused or
cancelled on the way; and whose job is next."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django import Settings

from demo import BASE, MODEL_NAME
from inference.errors import TuningNotPossible
from tenants.adapters.jobs import judge_version
from tenants.batches.jobs import QUEUE as READING
from tenants.files import blobs
from tenants.models import (
    Adapter,
    AuditEntry,
    BaseModel,
    FineTuningJob,
    State,
    Tenant,
    TuningEvent,
    UsageEvent,
    UsageSum,
)
from tenants.tuning import billing, jobs, training
from tenants.tuning.jobs import TRAINING_QUEUE, end_tuning, read_files, tend_tuning
from tenants.tuning.training import MOST_CRASHES, LeftJob, Trainer
from tenants.tuning_states import TuningStatus
from tests.adapters.working import run_worker
from tests.stack.running import command_of
from tests.tenants.making import make_adapter, make_tenant, make_version
from tests.tuning.conftest import FakeGateway, MakeFile, MakeJob
from tests.tuning.rows import NUMBERS, ROWS, dialogue

pytestmark = pytest.mark.timeout(900)  # what trains has the lowest priority
ACTOR = {"kind": "key", "id": 1, "name": "a key", "address": "", "request_id": ""}
DEFAULT = "default"


@pytest.fixture(autouse=True)
def quick(settings: Settings) -> None:
    settings.TUNING_THREADS, settings.TUNING_SAVE_S, settings.TUNING_RANK = 1, 0, 4


class Watched(Event):
    """An event that is looked at after each message of a training process."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def is_set(self) -> bool:
        self._act()
        return super().is_set()


@pytest.fixture
def trainer(request: pytest.FixtureRequest) -> Iterator[Trainer]:
    """The trainer of this process."""
    jobs.trainers.own = Trainer({MODEL_NAME: BASE})
    yield jobs.trainers.own
    jobs.trainers.own = None


def children() -> list[psutil.Process]:
    """The training processes of this process."""
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if "tenants.tuning.child" in command_of(one)]


def status(job: FineTuningJob) -> str:
    job.refresh_from_db()
    return job.status


def error(job: FineTuningJob) -> dict[str, Any]:
    """The error of a job that has failed."""
    assert status(job) == TuningStatus.FAILED and job.error is not None
    found: dict[str, Any] = job.error
    return found


def digest(job: FineTuningJob) -> str:
    """The digest of the two files that it became."""
    return Adapter.objects.get(name=job.adapter_name).versions.get().digest


def test_a_killed_training_goes_on_and_becomes_a_ready_version(
    make_job: MakeJob,
    make_file: MakeFile,
    trainer: Trainer,
    gateway: FakeGateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The process gets at most some fifteen steps ahead, of which the pipe holds the messages.
    monkeypatch.setattr(training, "MAX_LINE_BYTES", 512)
    fields = {"hyperparameters": NUMBERS | {"n_epochs": 12}, "suffix": "parrot", "actor": ACTOR}
    job = make_job(**fields, validation_file=make_file(ROWS[:1]))
    free = {"cached_prompt": 0, "output": 0, "tier": "training"}
    for days, prompt in ((-1, 3_000_000), (1, 5_000_000)):
        starts_at = timezone.now() + timedelta(days=days)
        job.base_model.prices.create(prompt=prompt, starts_at=starts_at, **free)
    run_worker(READING)
    assert status(job) == TuningStatus.QUEUED
    killed: list[int] = []

    def kill_once() -> None:
        if not killed and blobs.exists(job.pk):
            (child,) = children()
            killed.append(child.pid)
            child.kill()

    trainer.stopping = Watched(kill_once)
    run_worker(TRAINING_QUEUE)
    assert status(job) == TuningStatus.RUNNING and killed
    assert (job.crashes, job.run) == (1, 2)
    version = job.version
    assert version is not None and version.state == State.VALIDATING
    with pytest.raises(TuningNotPossible, match="checked cannot be cancelled"):
        jobs.cancel(job)

    run_worker(DEFAULT)
    assert status(job) == TuningStatus.SUCCEEDED and job.finished_at
    version.refresh_from_db()
    assert version.state == State.READY
    lineage = version.report["training"]
    assert (lineage["job"], lineage["hyperparameters"]) == (job.pk, job.hyperparameters)
    assert len(lineage["training_file_sha256"]) == len(lineage["base_model_sha256"]) == 64
    assert lineage["metrics"] == job.metrics and job.metrics["full_valid_loss"] > 0
    assert lineage["trained_tokens"] == job.trained_tokens == job.expected_tokens > 0
    assert not blobs.exists(job.pk) and not children()
    assert job.checkpoints.count() == 12
    last: Any = job.events.filter(data__isnull=False)[0].data
    assert (last["step"], last["total_steps"]) == (36, 36) and last["estimated_finish"]
    messages = [event.message for event in job.events.all()]
    assert messages[0] == f"The job succeeded: the model is {job.fine_tuned_model}."
    assert any(one.startswith("Training goes on after step") for one in messages)
    assert AuditEntry.objects.get(kind="adapter").actor_name == "a key"

    end_tuning(job_id=job.pk)
    billing.bill(job)  # as by a worker that was killed before the job ended
    line = UsageEvent.objects.get()
    assert (line.id, line.key_id, line.adapter) == (job.pk, job.key_id, job.adapter_name)
    assert (line.prompt_tokens, line.completion_tokens) == (job.trained_tokens, 0)
    assert line.cost == 3_000_000 * job.trained_tokens
    assert UsageSum.objects.filter(span="month").get().cost == line.cost

    other = make_job(**fields | {"suffix": ""})
    trainer.stopping = Event()
    run_worker(READING, TRAINING_QUEUE)
    assert status(other) == TuningStatus.RUNNING and other.crashes == 0
    assert digest(other) == digest(job), "as if nothing had been killed"


def test_jobs_on_one_base_model_are_trained_at_once(
    make_job: MakeJob, make_file: MakeFile, tenant: Tenant, trainer: Trainer, caplog: Any
) -> None:
    """Of two tenants, one of which fails; nothing of one is found with another."""
    other = make_tenant()
    secrets = ["Pieces of eight!", "Green leaves!"]
    mine, theirs = (
        make_job(owner, training_file=make_file([dialogue(answer=said)] * 4, owner))
        for owner, said in zip((tenant, other), secrets, strict=True)
    )
    broken = make_job(other, training_file=make_file([dialogue(answer="ho " * 2000)], other))
    run_worker(READING)
    seen: set[int] = set()
    trainer.stopping = Watched(lambda: seen.update(child.pid for child in children()))
    run_worker(TRAINING_QUEUE)
    assert len(seen) == 1, "processes"
    assert error(broken)["code"] == "invalid_file"
    assert status(mine) == status(theirs) == TuningStatus.RUNNING
    assert mine.version and theirs.version
    assert (mine.version.adapter.tenant, theirs.version.adapter.tenant) == (tenant, other)
    assert mine.metrics != theirs.metrics and mine.trained_tokens > 0
    told = [*TuningEvent.objects.values_list("message", "data"), mine.version.report, caplog.text]
    assert not any(secret in str(told) for secret in secrets)
    pulls = ProcrastinateJob.objects.filter(queue_name=TRAINING_QUEUE)
    assert set(pulls.values_list("status", flat=True)) == {"succeeded"}


def test_a_job_is_paused_while_it_trains(make_job: MakeJob, trainer: Trainer) -> None:
    job = make_job(hyperparameters=NUMBERS | {"n_epochs": 50})
    run_worker(READING)

    def pause_once() -> None:
        trains = FineTuningJob.objects.filter(pk=job.pk, status=TuningStatus.RUNNING).first()
        if trains is not None and job.events.filter(data__isnull=False).exists():
            trains.require(TuningStatus.PAUSED, "paused")

    trainer.stopping = Watched(pause_once)
    run_worker(TRAINING_QUEUE)
    assert status(job) == TuningStatus.PAUSED
    assert blobs.exists(job.pk) and not children() and not Adapter.objects.exists()

    jobs.resume(job)
    trainer.stopping = Event()
    trainer.stopping.set()  # as at a trainer's end: it saves its state, and another goes on
    claimed = FineTuningJob.objects.claim(1, [MODEL_NAME])
    assert claimed is not None
    assert [*trainer.train(claimed, lambda beside: None)] == [LeftJob(claimed, unfinished=True)]
    assert any("goes on after step" in event.message for event in job.events.all())


def test_the_adapter_of_a_trainer_that_was_killed_goes_with_its_cancelled_job(
    make_job: MakeJob, tenant: Tenant
) -> None:
    """It was killed after it had kept the adapter, before it could note that."""
    job = make_job()
    make_version(make_adapter(tenant, job.adapter_name))
    other = make_adapter(tenant, "other")
    jobs.cancel(job)
    assert [*Adapter.objects.all()] == [other]


def test_a_cancelled_job_is_killed(make_job: MakeJob, trainer: Trainer) -> None:
    job = make_job()
    run_worker(READING)
    seen: list[psutil.Process] = []

    def cancel_once() -> None:
        if not seen:
            seen.extend(children())
            jobs.cancel(FineTuningJob.objects.get(pk=job.pk))

    trainer.stopping = Watched(cancel_once)
    run_worker(TRAINING_QUEUE)
    assert status(job) == TuningStatus.CANCELLED and seen
    assert not any(one.is_running() for one in seen) and not Adapter.objects.exists()


def test_a_process_that_always_crashes_fails_its_job(make_job: MakeJob, trainer: Trainer) -> None:
    job = make_job()
    run_worker(READING)

    def crash() -> None:
        for child in children():
            child.send_signal(signal.SIGSEGV)

    trainer.stopping = Watched(crash)
    run_worker(TRAINING_QUEUE)
    assert error(job)["code"] == "training_failed" and job.crashes == MOST_CRASHES


def test_what_only_the_trainer_finds_fails_the_job(
    make_job: MakeJob, make_file: MakeFile, trainer: Trainer
) -> None:
    job = make_job(training_file=make_file([dialogue(), dialogue(answer="ho " * 2000)]))
    run_worker(READING, TRAINING_QUEUE)
    assert error(job)["param"] == "training_file"
    assert "Line 2: It has" in error(job)["message"] and "512" in error(job)["message"]


def test_invalid_files_fail_the_job_with_their_lines(
    make_job: MakeJob, make_file: MakeFile
) -> None:
    job = make_job(validation_file=make_file(b'{"messages": []}\n\n{\n'))
    read_files(job_id=job.pk)
    found = error(job)
    assert (found["code"], found["param"]) == ("invalid_file", "validation_file")
    assert found["message"].startswith("Line 1: `messages` has 0 messages")
    assert "(and 1 others" in found["message"]
    faults = [event.message for event in job.events.filter(level="error")]
    assert any(one.startswith("Line 3: It is not a valid row") for one in faults)


def test_rows_are_bounded(make_job: MakeJob, settings: Settings) -> None:
    settings.TUNING_ROWS = 3
    job = make_job()
    read_files(job_id=job.pk)
    assert "more than 3 rows" in error(job)["message"]


def test_a_missing_file_fails_the_job(make_job: MakeJob, trainer: Trainer) -> None:
    job = make_job()
    jobs.queue(job)
    blobs.remove(job.training_file_id)
    claimed = FineTuningJob.objects.claim(1, [MODEL_NAME])
    assert claimed is not None
    assert [*trainer.train(claimed, lambda beside: None)] == [LeftJob(claimed)]
    assert error(job)["code"] == "file_missing"
    unread = make_job()
    blobs.remove(unread.training_file_id)
    read_files(job_id=unread.pk)
    assert status(unread) == TuningStatus.FAILED


# --- Whose job is next ---------------------------------------------------------------------------


def queued(make_job: MakeJob, owner: Tenant) -> FineTuningJob:
    job = make_job(owner)
    jobs.queue(job)
    return job


def test_the_next_job_is_of_the_tenant_that_trained_least(
    make_job: MakeJob, tenant: Tenant
) -> None:
    second, third = make_tenant(), make_tenant()
    waiting = [queued(make_job, owner) for owner in (tenant, tenant, second, third)]
    ended = {"status": TuningStatus.SUCCEEDED, "trained_tokens": 500}
    now = timezone.now()
    make_job(tenant, **ended | {"trained_tokens": 10**6}, finished_at=now - timedelta(days=2))
    make_job(second, **ended, finished_at=now)
    claimed = [FineTuningJob.objects.claim(number, [MODEL_NAME]) for number in range(1, 6)]
    assert claimed == [waiting[0], waiting[3], waiting[2], waiting[1], None]


def test_files_that_cannot_be_read_now_hold_up_no_other_job(
    make_job: MakeJob, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = make_job(), make_job()
    run_worker(READING)
    copy = training._copy

    def copied(id: str, target: Path) -> str:
        if id == bad.training_file_id:
            raise OSError("The storage is away.")
        return copy(id, target)

    monkeypatch.setattr(training, "_copy", copied)
    job = FineTuningJob.objects.claim(1, [MODEL_NAME])
    assert job == good
    claim = partial(FineTuningJob.objects.claim, 1, [MODEL_NAME])
    left = []
    for one in trainer.train(job, claim):
        left.append(one)
        if one.unfinished:
            jobs.queue(one.job)
    assert [one.job for one in left] == [bad, good]
    assert left[1].version and left[1].job.note(version=left[1].version)
    again = claim()
    assert again == bad
    with pytest.raises(OSError, match="away"):
        [*trainer.train(again, claim)]
    bad.refresh_from_db()
    assert (bad.status, bad.crashes) == (TuningStatus.RUNNING, 1), "to be retried alone"


def test_which_jobs_are_trained_beside_others(make_job: MakeJob, tenant: Tenant) -> None:
    first, second, crashed, elsewhere = (queued(make_job, tenant) for _ in range(4))
    base = BaseModel.objects.create(name="other", max_model_len=512, max_lora_rank=16, modules={})
    FineTuningJob.objects.filter(pk=crashed.pk).update(crashes=1)
    FineTuningJob.objects.filter(pk=elsewhere.pk).update(base_model=base)
    bases, claim = [MODEL_NAME, "other"], FineTuningJob.objects.claim
    assert claim(1, bases) == first
    assert claim(1, bases, [first]) == second
    assert claim(1, bases, [first, second]) is None, "the next one crashed: it is trained alone"
    assert claim(2, bases) == crashed
    assert claim(1, bases, [first, second]) is None, "and the next one is on another base model"
    assert claim(3, bases) == elsewhere
    assert claim(1, bases) in (first, second), "goes on"
    assert claim(1, bases, [second]) == first


def test_which_jobs_wait(make_job: MakeJob, tenant: Tenant) -> None:
    job = queued(make_job, tenant)
    assert FineTuningJob.objects.claim(1, ["another base"]) is None
    Tenant.objects.filter(pk=tenant.pk).update(status="suspended")
    assert FineTuningJob.objects.claim(1, [MODEL_NAME]) is None
    Tenant.objects.filter(pk=tenant.pk).update(status="active")
    assert FineTuningJob.objects.claim(1, [MODEL_NAME]) == job
    again = FineTuningJob.objects.claim(1, [MODEL_NAME])
    assert again == job and again.run == 2, "its trainer was killed"
    assert not job.note(trained_tokens=5), "and no longer writes"
    assert again.note(trained_tokens=6)
    assert not job.advance(TuningStatus.FAILED)


def test_jobs_on_a_base_model_that_a_trainer_lacks_are_pulled_again(
    make_job: MakeJob, tenant: Tenant
) -> None:
    jobs.trainers.own = Trainer({"another base": Path("/nowhere")})
    try:
        queued(make_job, tenant)
        run_worker(TRAINING_QUEUE)
    finally:
        jobs.trainers.own = None
    pulls = ProcrastinateJob.objects.filter(queue_name=TRAINING_QUEUE)
    assert sorted(pulls.values_list("status", flat=True)) == ["succeeded", "todo"]
    assert pulls.get(status="todo").scheduled_at


def test_what_lost_its_background_job_gets_another(make_job: MakeJob, tenant: Tenant) -> None:
    unread, waits, runs = make_job(), queued(make_job, tenant), queued(make_job, tenant)
    FineTuningJob.objects.filter(pk=runs.pk).update(status=TuningStatus.RUNNING, claimed_by=99)
    ProcrastinateJob.objects.all().delete()
    for _ in range(2):
        tend_tuning(timestamp=0)
        names = ProcrastinateJob.objects.values_list("task_name", flat=True)
        assert sorted(names) == ["read_tuning_files", "train_next", "train_next"]
    assert status(runs) == status(waits) == TuningStatus.QUEUED
    assert status(unread) == TuningStatus.VALIDATING_FILES


# --- The end -------------------------------------------------------------------------------------


def judged(make_job: MakeJob, tenant: Tenant, state: State, **fields: Any) -> FineTuningJob:
    """A running job whose version has this state."""
    job = make_job()
    adapter = Adapter.objects.create(
        tenant=tenant, name=job.adapter_name, base_model=job.base_model
    )
    version, _ = adapter.add_version("a" * 64, state=state, **fields)
    FineTuningJob.objects.filter(pk=job.pk).update(status=TuningStatus.RUNNING, version=version)
    return job


def test_a_rejected_version_fails_its_job(make_job: MakeJob, tenant: Tenant) -> None:
    report = {"findings": [{"code": "no_effect", "message": "It changes nothing."}]}
    job = judged(make_job, tenant, State.REJECTED, report=report)
    end_tuning(job_id=job.pk)
    assert "changes nothing" in error(job)["message"]


IDS = [5, 17, 40]
HELD = [{"ids": IDS, "base": [-2.0, -3.0], "adapted": [-1.0, -1.5]}]


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([{"ids": IDS, "base": [-2.0, -3.0], "adapted": [-1.0, -1.51]}], State.READY),
        ([{"ids": IDS, "base": [-2.0, -3.1], "adapted": [-1.0, -1.6]}], State.READY),
        ([{"ids": IDS, "base": [-2.0, -3.0], "adapted": [-1.0, -1.6]}], State.REJECTED),
        ([], State.READY),
    ],
    ids=["alike", "as far off as the base model", "unlike", "not computed"],
)
def test_a_version_answers_as_its_trainer_computed(
    make_job: MakeJob, tenant: Tenant, gateway: FakeGateway, rows: list[Any], state: State
) -> None:
    job = judged(make_job, tenant, State.PROBING)
    FineTuningJob.objects.filter(pk=job.pk).update(held=HELD)
    version = Adapter.objects.get().versions.get()
    version.report = {"training": {"job": job.pk}}
    version.save()
    gateway.say({"rows": rows})
    judge_version(version_id=version.pk)
    end_tuning(job_id=job.pk)
    ((_, _, asked),) = gateway.asked
    assert asked["rows"] == [IDS]
    version.refresh_from_db()
    assert version.state == state and ("not_compared" in version.report["trainer"]) != bool(rows)
    if state == State.REJECTED:
        assert version.report["findings"][0]["code"] == "differs_from_trainer"
        assert "by up to 0.1 (allowed: 0.02)" in error(job)["message"]
    job.refresh_from_db()
    assert job.held is None


def test_a_deleted_adapter_fails_its_job(make_job: MakeJob, tenant: Tenant) -> None:
    job = judged(make_job, tenant, State.PROBING)
    Adapter.objects.get().discard()
    end_tuning(job_id=job.pk)
    assert error(job)["code"] == "adapter_deleted"


def test_a_version_whose_jobs_were_lost_is_judged_again(make_job: MakeJob, tenant: Tenant) -> None:
    job = judged(make_job, tenant, State.PROBING)
    ProcrastinateJob.objects.all().delete()
    for _ in range(2):
        tend_tuning(timestamp=0)
    end_tuning(job_id=job.pk)
    assert status(job) == TuningStatus.RUNNING
    names = ProcrastinateJob.objects.order_by("id").values_list("task_name", flat=True)
    assert list(names) == ["end_tuning", "judge_version", "end_tuning"]
