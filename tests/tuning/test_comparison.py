"""A finished job is compared with its base model and with the version before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django import Settings

from inference.errors import RateLimitExceeded, TuningNotPossible
from tenants.files import blobs
from tenants.models import BaseModel, EvalItem, EvalRun, FineTuningJob, State, Tenant
from tenants.tuning import comparison
from tests.evals.conftest import completion, go_on
from tests.tenants.making import make_adapter, make_key, make_version
from tests.tuning.conftest import MakeFile, MakeJob
from tests.tuning.rows import dialogue

pytestmark = pytest.mark.django_db(transaction=True)

HELD = [dialogue(f"What is {n} plus 1?", f"Squawk! It is {n + 1}.") for n in range(5, 9)]
"""The first of them is in the training file."""


@pytest.fixture
def make_finished(tenant: Tenant, make_job: MakeJob, make_file: MakeFile) -> Callable[..., Any]:
    """Makes jobs that have succeeded, with their adapters."""

    def made(**fields: Any) -> FineTuningJob:
        if "validation_file" not in fields:
            fields["validation_file"] = make_file(HELD)
        given = {"status": "succeeded", "finished_at": timezone.now(), "suffix": "parrot"}
        job = make_job(**(given | fields))
        job.version = make_version(make_adapter(tenant, job.adapter_name))
        job.save()
        return job

    return made


@pytest.fixture
def job(make_finished: Callable[..., Any]) -> FineTuningJob:
    found: FineTuningJob = make_finished()
    return found


def answered(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The base model answers worse."""
    question = body["messages"][-1]["content"]
    number = int(question.split()[2]) + 1
    right = "@" in body["model"]
    return 200, completion(f"Squawk! It is {number}." if right else f"{number}, I think")


def asked(job: FineTuningJob) -> list[EvalRun]:
    """The runs of the job's comparison, after all of their jobs."""
    key = make_key(job.tenant)[0]
    comparison.compare(job, key)
    for run in comparison.runs_of(job):
        comparison.prepare(job.pk, run.pk)
        go_on(run.pk, answered)
    return comparison.runs_of(job)


def test_a_job_is_compared_on_rows_that_it_was_not_trained_on(
    job: FineTuningJob, make_finished: Callable[..., Any], base: BaseModel
) -> None:
    base_run, own = asked(job)
    assert (base_run.model, own.model) == (base.name, f"{job.adapter_name}@1")
    assert {one.status for one in (base_run, own)} == {"completed"}
    assert (base_run.total, own.total, own.passed) == (3, 3, 3)
    assert job.comparison is not None
    assert job.comparison.metadata == {"fine_tuning_job": job.pk}
    assert base_run.file_id == own.file_id
    scores = dict(own.items.values_list("number", "scores"))
    assert scores == {1: [1.0], 2: [1.0], 3: [1.0]}
    assert not base_run.items.filter(scores=[1.0]).exists()
    item = json.loads(EvalItem.objects.get(run=own, number=1).body)
    assert item["item"]["expected"] == "Squawk! It is 7."
    assert item["sample"]["output_text"] == "Squawk! It is 7."
    told = [event.message for event in job.events.all() if "compared" in event.message]
    assert told == [
        "It is compared on 3 of 3 held-out rows. Left out: 1 that were also trained on, 0 with "
        "tools or without a text to expect."
    ]
    assert own.source["sampling_params"] == {
        "temperature": 0,
        "max_completion_tokens": base.max_model_len // 4,
    }


def test_two_clicks_start_it_once(job: FineTuningJob) -> None:
    key = make_key(job.tenant)[0]
    first = comparison.compare(job, key)
    again = comparison.compare(FineTuningJob.objects.get(pk=job.pk), key)
    assert first == again and EvalRun.objects.count() == 2
    locks = ProcrastinateJob.objects.filter(task_name="prepare_comparison")
    assert {one.lock for one in locks} == {f"eval-{run.pk}" for run in EvalRun.objects.all()}


def test_two_workers_that_write_the_rows_say_so_once(job: FineTuningJob) -> None:
    comparison.compare(job, make_key(job.tenant)[0])
    first, second = comparison.runs_of(job)
    comparison.prepare(job.pk, first.pk)
    blobs.remove(first.file_id)
    comparison.prepare(job.pk, second.pk)
    assert blobs.exists(first.file_id)
    first.file.refresh_from_db()
    assert first.file.size_bytes > 0
    assert job.events.filter(message__startswith="It is compared").count() == 1


def test_a_model_whose_run_failed_is_asked_again_alone(job: FineTuningJob) -> None:
    _, own = asked(job)
    EvalRun.objects.filter(pk=own.pk).update(status="failed")
    base_run, again = asked(job)
    assert EvalRun.objects.count() == 3 and again.pk != own.pk
    assert (base_run.status, again.status, again.total) == ("completed", "completed", 3)


def test_the_last_job_of_the_suffix_is_the_version_before(
    make_finished: Callable[..., Any],
) -> None:
    earlier, _other = make_finished(), make_finished(suffix="other")
    job = make_finished()
    assert list(comparison.models_of(job).items()) == [
        ("base model", job.base_model.name),
        ("version before", f"{earlier.adapter_name}@1"),
        (job.adapter_name, f"{job.adapter_name}@1"),
    ]
    assert [run.name for run in asked(job)] == [*comparison.models_of(job)]
    earlier.version.adapter.versions.update(state=State.ARCHIVED)
    assert len(comparison.models_of(job)) == 2
    assert len(comparison.models_of(make_finished(suffix=""))) == 2


def test_a_ready_version_of_the_adapter_before_the_job_comes_first(job: FineTuningJob) -> None:
    assert job.version is not None
    job.version = make_version(job.version.adapter)
    job.save()
    assert comparison.models_of(job)["version before"] == f"{job.adapter_name}@1"


def test_why_a_job_cannot_be_compared(
    job: FineTuningJob, make_finished: Callable[..., Any], make_job: MakeJob, make_file: MakeFile
) -> None:
    file = make_file()
    deleted = make_finished()
    deleted.training_file.delete()
    archived = make_finished()
    archived.version.adapter.versions.update(state=State.ARCHIVED)
    for one, why in (
        (make_job(), "Only a job that has succeeded"),
        (make_finished(validation_file=None), "no validation file"),
        (make_finished(training_file=file, validation_file=file), "is its training file"),
        (FineTuningJob.objects.get(pk=deleted.pk), "A file of the job was deleted"),
        (FineTuningJob.objects.get(pk=archived.pk), "was deleted or archived"),
    ):
        with pytest.raises(TuningNotPossible, match=why):
            comparison.compare(one, make_key(one.tenant)[0])
    assert (
        comparison.hindrance(job, comparison.files_of(job)) == "" and not EvalRun.objects.exists()
    )


def test_without_a_row_to_ask_its_runs_fail_and_say_so(
    make_finished: Callable[..., Any], make_file: MakeFile
) -> None:
    job = make_finished(validation_file=make_file(HELD[:1]))
    key = make_key(job.tenant)[0]
    comparison.compare(job, key)
    for run in comparison.runs_of(job):
        comparison.prepare(job.pk, run.pk)
    for run in comparison.runs_of(job):
        assert run.status == "failed" and run.error is not None
        assert run.error["message"].startswith("No row can be compared: 1 that were also trained")
        assert not blobs.exists(run.file_id)


def test_a_tenant_without_room_for_runs(job: FineTuningJob, settings: Settings) -> None:
    settings.TENANT_BATCHES = 1
    with pytest.raises(RateLimitExceeded, match="at most 1"):
        comparison.compare(job, make_key(job.tenant)[0])
    assert not EvalRun.objects.exists() and job.tenant.evals.count() == 0
