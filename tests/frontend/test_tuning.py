"""The pages of fine-tuning: who sees them, starting a job, what is shown of it, changing it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django import DjangoAssertNumQueries, Settings

from frontend.views.tuning.curve import HEIGHT, WIDTH, LossCurve
from tenants.models import AuditEntry, FineTuningJob, Purpose, StoredFile, Tenant
from tenants.tuning import billing
from tenants.tuning_states import TuningStatus
from tests.frontend.clients import client_of
from tests.tenants.making import make_adapter, make_base, make_tenant, make_tuning_job, make_version

NUMBERS = ("n_epochs", "batch_size", "learning_rate_multiplier", "beta", "seed")
EMPTY = {**dict.fromkeys(NUMBERS, ""), "suffix": "", "method": "supervised"}


@pytest.fixture
def developer(tenant: Tenant) -> Client:
    return client_of(tenant, "developer")


@pytest.fixture
def file(tenant: Tenant) -> StoredFile:
    make_base()
    return make_file(tenant)


def make_file(tenant: Tenant, purpose: Purpose = Purpose.FINE_TUNE) -> StoredFile:
    return tenant.files.create(purpose=purpose, filename="rows.jsonl", size_bytes=3)


def at(tenant: Tenant, *rest: str) -> str:
    return "/".join([f"/t/{tenant.slug}/fine-tuning", *rest])


def test_who_sees_jobs(tenant: Tenant) -> None:
    job = make_tuning_job(tenant)
    paths = [at(tenant), at(tenant, "new"), at(tenant, job.pk)]
    expected = {"owner": 200, "developer": 200, "operator": 200, "viewer": 403, "outsider": 404}
    for role, status in expected.items():
        client = client_of(tenant, role)
        assert [client.get(path).status_code for path in paths] == [status] * 3
        if status != 200:
            assert client.post(at(tenant, "new")).status_code == status
            assert client.post(at(tenant, job.pk, "cancel")).status_code == status


def test_another_tenants_jobs_and_files_are_not_found(
    tenant: Tenant, file: StoredFile, developer: Client
) -> None:
    theirs = make_tuning_job(make_tenant("other"))
    assert theirs.pk not in developer.get(at(tenant)).text
    assert developer.get(at(tenant, theirs.pk)).status_code == 404
    assert developer.get(at(tenant, "%00")).status_code == 404
    assert developer.post(at(tenant, theirs.pk, "cancel")).status_code == 404
    for name in ("training_file", "validation_file"):
        body = {"model": "base", "training_file": file.pk, name: theirs.training_file_id}
        answer = developer.post(at(tenant, "new"), EMPTY | body)
        assert answer.status_code == 422 and name in answer.context["form"].errors
    assert not tenant.tuning_jobs.exists()


@pytest.mark.parametrize("sent", [True, False])
def test_a_job_is_started_of_a_file(
    tenant: Tenant, file: StoredFile, developer: Client, sent: bool
) -> None:
    held = make_file(tenant)
    asked: dict[str, Any] = {
        **EMPTY, "model": "base", "suffix": "Parrot", "n_epochs": "4", "validation_file": held.pk
    }  # fmt: skip
    upload = SimpleUploadedFile("new.jsonl", b'{"messages": []}\n')
    more = {"upload": upload} if sent else {"training_file": file.pk}
    answer = developer.post(at(tenant, "new"), asked | more)
    job = tenant.tuning_jobs.get()
    assert answer.headers["Location"] == at(tenant, job.pk)
    assert job.training_file.filename == ("new.jsonl" if sent else "rows.jsonl")
    assert job.validation_file == held and job.suffix == "parrot"
    numbers = {"n_epochs": 4, "batch_size": "auto", "learning_rate_multiplier": "auto"}
    assert job.hyperparameters == numbers and job.status == TuningStatus.VALIDATING_FILES
    assert job.actor and job.actor["kind"] == "user"
    assert AuditEntry.objects.get(kind="tuning job").name == job.pk
    assert ProcrastinateJob.objects.filter(args={"job_id": job.pk}).exists()


@pytest.mark.parametrize(
    ("sent", "field", "says"),
    [
        ({"model": "none"}, "model", "not one of the available"),
        ({"training_file": ""}, "training_file", "Choose a file here, or one to upload"),
        ({"n_epochs": "51"}, "n_epochs", "It is 51: it must be from 1 to 50."),
        ({"learning_rate_multiplier": "nan"}, "learning_rate_multiplier", "Enter a number."),
        ({"learning_rate_multiplier": "0"}, "learning_rate_multiplier", "from 0.0001 to 1000"),
        ({"seed": "-1"}, "seed", "greater than or equal to 0"),
        ({"method": "reinforcement"}, "method", "not one of the available"),
        ({"beta": "0.1"}, "beta", "of the method DPO"),
        ({"beta": "3", "method": "dpo"}, "beta", "from 0.001 to 2"),
        ({"suffix": "a b"}, "suffix", "must have 1 to 40 letters"),
        ({"suffix": "a" * 41}, "suffix", "at most 40"),
    ],
)
def test_a_wrong_form_says_what_is_wrong(
    tenant: Tenant, file: StoredFile, developer: Client, sent: dict[str, str], field: str, says: str
) -> None:
    body = EMPTY | {"model": "base", "training_file": file.pk} | sent
    answer = developer.post(at(tenant, "new"), body)
    assert answer.status_code == 422 and says in str(answer.context["form"].errors[field])
    assert not tenant.tuning_jobs.exists()


def test_a_file_of_another_purpose_cannot_be_chosen(
    tenant: Tenant, file: StoredFile, developer: Client
) -> None:
    wrong = make_file(tenant, Purpose.BATCH)
    body = EMPTY | {"model": "base", "training_file": wrong.pk}
    assert developer.post(at(tenant, "new"), body).status_code == 422


def test_too_many_jobs_are_refused(
    tenant: Tenant, file: StoredFile, developer: Client, settings: Settings
) -> None:
    settings.TENANT_TUNING_JOBS = 1
    make_tuning_job(tenant)
    body = EMPTY | {"model": "base", "training_file": file.pk}
    answer = developer.post(at(tenant, "new"), body)
    assert answer.status_code == 422 and "has 1 unfinished fine-tuning jobs" in answer.text


def test_a_file_leads_to_the_form(tenant: Tenant, file: StoredFile, developer: Client) -> None:
    link = f"{at(tenant, 'new')}?file={file.pk}"
    assert link in developer.get(f"/t/{tenant.slug}/files").text
    assert f'value="{file.pk}" selected' in developer.get(link).text


def test_the_curve_is_drawn_by_steps(tenant: Tenant) -> None:
    curve = LossCurve.of(make_tuning_job(tenant, reports=40))
    assert curve.share == 0.5 and curve.tokens_per_s == pytest.approx(450)
    first, *_, last = [tuple(map(float, pair.split())) for pair in curve.training[1:].split("L")]
    assert last[0] == WIDTH / 2 and first[0] == WIDTH / 80, "half of the steps are done"
    assert first[1] < last[1] < HEIGHT, "the loss falls"
    assert curve.validation.count("L") == 3


def test_nothing_is_drawn_without_reports(tenant: Tenant) -> None:
    curve = LossCurve.of(make_tuning_job(tenant))
    assert (curve.training, curve.last, curve.tokens_per_s, curve.highest) == ("", None, None, 0)


def test_a_job_shows_its_progress(tenant: Tenant, developer: Client) -> None:
    job = make_tuning_job(tenant, reports=60)
    page = developer.get(at(tenant, job.pk))
    assert "step 60 of 120" in page.text and "50%" in page.text and "linus" in page.text
    assert page.context["rows"][0].message.startswith("Step 60/120")
    older = developer.get(f"{at(tenant, job.pk)}?after={page.context['last'].pk}")
    assert len(older.context["rows"]) == 61 - len(page.context["rows"])
    seen = {"If-None-Match": f'"{page.context["fingerprint"]}"'}
    assert developer.get(at(tenant, job.pk), headers=seen).status_code == 304
    job.report("more")
    assert developer.get(at(tenant, job.pk), headers=seen).status_code == 200
    listed = developer.get(at(tenant))
    assert "support-" in listed.text and "54,000" in listed.text


def test_what_a_job_says_is_escaped(tenant: Tenant, developer: Client) -> None:
    said = "<script>alert(1)</script>"
    error = {"code": "invalid_file", "message": said, "param": "training_file"}
    job = make_tuning_job(tenant, status="failed", error=error, finished_at=timezone.now())
    job.report(said, level="error")
    page = developer.get(at(tenant, job.pk)).text
    assert said not in page and "&lt;script&gt;" in page


def test_a_model_that_is_ready_can_be_compared(tenant: Tenant, developer: Client) -> None:
    job = make_tuning_job(tenant, status="succeeded", finished_at=timezone.now())
    job.version = make_version(make_adapter(tenant, job.adapter_name))
    job.save()
    page = developer.get(at(tenant, job.pk)).text
    assert f"playground?model=base&amp;model={job.adapter_name}" in page
    assert job.fine_tuned_model in page
    assert f"/t/{tenant.slug}/adapters/{job.adapter_name}/versions/1" in page


def test_changes_are_those_that_the_state_allows(tenant: Tenant, developer: Client) -> None:
    job = make_tuning_job(tenant)

    def after(action: str) -> tuple[str, list[str]]:
        developer.post(at(tenant, job.pk, action))
        found = FineTuningJob.objects.get(pk=job.pk)
        return found.status, developer.get(at(tenant, job.pk)).context["changes"]

    assert developer.get(at(tenant, job.pk)).context["changes"] == ["pause", "cancel"]
    assert after("pause") == ("paused", ["resume", "cancel"])
    assert after("resume") == ("queued", ["pause", "cancel"])
    assert after("cancel") == ("cancelled", [])
    answer = developer.post(at(tenant, job.pk, "resume"), follow=True)
    assert "A job that is cancelled cannot be resumed." in answer.text
    assert AuditEntry.objects.filter(kind="tuning job", action="changed").count() == 3
    assert developer.post(at(tenant, job.pk, "delete")).status_code == 404


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_billed_shows_its_cost(tenant: Tenant, developer: Client) -> None:
    job = make_tuning_job(tenant, reports=10)
    price = {"tier": "training", "prompt": 2_000_000, "cached_prompt": 0, "output": 0}
    job.base_model.prices.create(starts_at=job.created_at, **price)
    job.version = make_version(make_adapter(tenant, job.adapter_name))
    billing.bill(job)
    job.status, job.finished_at = TuningStatus.SUCCEEDED, timezone.now()
    job.save()
    page = developer.get(at(tenant, job.pk))
    assert page.context["line"].cost == 9_000 * 2_000_000
    assert f"/t/{tenant.slug}/requests/{job.pk}" in page.text
    line = client_of(tenant, "owner").get(f"/t/{tenant.slug}/requests/{job.pk}").text
    assert job.adapter_name in line and "9,000" in line


@pytest.fixture
def finished(tenant: Tenant) -> FineTuningJob:
    """A job that can be compared."""
    job = make_tuning_job(
        tenant,
        status="succeeded",
        finished_at=timezone.now(),
        validation_file=make_file(tenant),
    )
    job.version = make_version(make_adapter(tenant, job.adapter_name))
    job.save()
    return job


def test_a_finished_job_is_compared_once(
    tenant: Tenant,
    finished: FineTuningJob,
    developer: Client,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    page = at(tenant, finished.pk)
    assert "Compare on held-out rows" in developer.get(page).text
    for _ in range(2):
        answer = developer.post(at(tenant, finished.pk, "compare"))
        assert answer.headers["Location"] == page
    finished.refresh_from_db()
    eval = tenant.evals.get()
    assert finished.comparison == eval and eval.runs.count() == 2
    assert AuditEntry.objects.filter(action="compared fine-tuning job").count() == 2
    shown = developer.get(page)
    assert "queued" in shown.text.lower() and "Compare on held-out rows" not in shown.text
    assert "Show side by side" not in shown.text
    seen = {"If-None-Match": f'"{shown.context["fingerprint"]}"'}
    assert developer.get(page, headers=seen).status_code == 304
    eval.runs.update(status="completed", total=3, passed=2, ended_at=timezone.now())
    with django_assert_max_num_queries(12):
        ready = developer.get(page, headers=seen)
    base, own = (eval.runs.get(name=name) for name in ("base model", finished.adapter_name))
    link = f"/evals/{eval.pk}/compare?a={base.pk}&amp;b={own.pk}"
    assert link in ready.text and "2 (67%)" in ready.text
    own_key = own.key
    assert own_key.created_by is not None and own_key.prefix.startswith("play-")
    eval.runs.filter(pk=own.pk).update(status="failed", error={"code": "x", "message": "Too <b>."})
    failed = developer.get(page)
    assert "Too &lt;b&gt;." in failed.text and "Ask again" in failed.text
    assert link not in failed.text


def test_what_keeps_a_job_from_being_compared(
    tenant: Tenant, finished: FineTuningJob, developer: Client
) -> None:
    FineTuningJob.objects.filter(pk=finished.pk).update(validation_file=None)
    shown = developer.get(at(tenant, finished.pk)).text
    assert "The job has no validation file" in shown and "/compare" not in shown
    answer = developer.post(at(tenant, finished.pk, "compare"), follow=True)
    assert "The job has no validation file" in answer.text
    assert not tenant.evals.exists()


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("outsider", 404)])
def test_who_may_not_compare(
    tenant: Tenant, finished: FineTuningJob, role: str, status: int
) -> None:
    answer = client_of(tenant, role).post(at(tenant, finished.pk, "compare"))
    assert answer.status_code == status and not tenant.evals.exists()
