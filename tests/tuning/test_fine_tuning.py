"""`/v1/fine_tuning/jobs` with the unmodified SDK: what is made, shown and changed, and refused."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from pytest_django import Settings

from inference.link.accounts import Usage
from tenants.files import keeping
from tenants.models import (
    ApiKey,
    AuditEntry,
    BaseModel,
    FineTuningJob,
    LimitSet,
    StoredFile,
    Tenant,
)
from tenants.tuning_states import TuningStatus
from tests.batches.conftest import with_sdk
from tests.tenants.making import make_adapter, make_key, make_route, make_tenant, make_version
from tests.tenants.spending import spend
from tests.tuning.conftest import Ask, MakeFile, MakeJob, asked
from tests.tuning.rows import ROWS, jsonl

SCOPES = ("inference", "adapters:write")


@pytest.fixture
def secret(tenant: Tenant) -> str:
    return make_key(tenant, *SCOPES)[1]


@pytest.fixture
def ask(secret: str) -> Ask:
    return lambda method, path, secret=secret, **options: async_to_sync(asked)(
        method, f"fine_tuning/jobs{path}", secret, **options
    )


@pytest.fixture
def file(make_file: MakeFile) -> StoredFile:
    return make_file()


def test_the_sdk_makes_lists_pauses_resumes_and_cancels(secret: str, base: BaseModel) -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        rows = ("rows.jsonl", jsonl(ROWS))
        file = await client.files.create(file=rows, purpose="fine-tune")
        jobs = client.fine_tuning.jobs
        job = await jobs.create(
            model=base.name,
            training_file=file.id,
            validation_file=file.id,
            suffix="Tea.Shop",
            seed=7,
            metadata={"for": "tea"},
            method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        )
        assert (job.status, job.model, job.organization_id) == (
            "validating_files", base.name, "acme",
        )  # fmt: skip
        assert (job.seed, job.metadata, job.trained_tokens) == (7, {"for": "tea"}, None)
        assert (job.training_file, job.validation_file) == (file.id, file.id)
        assert job.hyperparameters.n_epochs == 2 and job.hyperparameters.batch_size == "auto"
        assert job.method is not None and job.method.type == "supervised"
        other = await jobs.create(
            model=base.name, training_file=file.id, hyperparameters={"batch_size": 4}
        )
        assert [one.id async for one in jobs.list(limit=1)] == [other.id, job.id]
        assert await jobs.retrieve(job.id) == job
        (event,) = [one async for one in jobs.list_events(job.id)]
        assert (event.level, event.type) == ("info", "message")
        assert [one async for one in jobs.checkpoints.list(job.id)] == []
        await FineTuningJob.objects.filter(pk=job.id).aupdate(status="queued")
        paused: str = (await jobs.pause(job.id)).status
        assert paused == "paused"
        assert (await jobs.resume(job.id)).status == "queued"
        assert (await jobs.cancel(job.id)).status == "cancelled"
        with pytest.raises(openai.ConflictError, match="cancelled cannot be cancelled"):
            await jobs.cancel(job.id)
        with pytest.raises(openai.ConflictError, match="validating_files cannot be paused"):
            await jobs.pause(other.id)
        with pytest.raises(openai.ConflictError, match="validating_files cannot be resumed"):
            await jobs.resume(other.id)
        said = [one.message async for one in jobs.list_events(job.id)]
        assert said[:3] == [f"The job was {verb}." for verb in ("cancelled", "resumed", "paused")]
        with pytest.raises(openai.ConflictError, match=f"job {other.id} is using this file"):
            await client.files.delete(file.id)

    with_sdk(secret, script)
    job = FineTuningJob.objects.get(suffix="tea.shop")
    assert job.adapter_name == f"tea.shop-{job.pk[-8:]}"
    assert job.fine_tuned_model == f"ft:{base.name}:acme:tea.shop:{job.pk[-8:]}"
    entries = AuditEntry.objects.filter(kind="tuning job", name=job.pk)
    assert [one.action for one in entries] == ["changed", "changed", "changed", "created"]
    assert {one.actor_name for one in entries} == {"a key"}


def test_a_request_that_is_sent_twice_makes_one_job(
    ask: Ask, base: BaseModel, file: StoredFile
) -> None:
    wanted = {"model": base.name, "training_file": file.pk}
    headers = {"Idempotency-Key": "once"}
    first, again = (ask("POST", "", json=wanted, headers=headers) for _ in range(2))
    assert first.status_code == again.status_code == 200 and first.json() == again.json()
    other = ask("POST", "", json=wanted | {"suffix": "b"}, headers=headers)
    assert other.status_code == 409 and "different body" in other.json()["error"]["message"]
    assert FineTuningJob.objects.count() == 1
    assert AuditEntry.objects.filter(kind="tuning job").count() == 1
    assert ask("POST", "", json=wanted).json()["id"] != first.json()["id"]


@pytest.mark.parametrize("of_key", [False, True])
def test_no_job_starts_without_a_budget(
    ask: Ask, base: BaseModel, file: StoredFile, of_key: bool
) -> None:
    key = ApiKey.objects.get(name="a key")
    limits = LimitSet.objects.create(
        tenant=key.tenant, key=key if of_key else None, author="tenant", cost_per_month=1_500_000
    )
    wanted = {"model": base.name, "training_file": file.pk}
    spend(key, timezone.now(), Usage(prompt_tokens=10_000_000))
    refused = ask("POST", "", json=wanted)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "insufficient_quota"
    assert f"{'key' if of_key else 'tenant'} `" in refused.json()["error"]["message"]
    assert "1.50 USD" in refused.json()["error"]["message"]
    limits.delete()
    assert ask("POST", "", json=wanted).status_code == 200


def test_a_job_of_preferences(secret: str, base: BaseModel, file: StoredFile) -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        job = await client.fine_tuning.jobs.create(
            model=base.name,
            training_file=file.pk,
            method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 1}}},
        )
        assert job.method is not None and job.method.type == "dpo" and job.method.dpo is not None
        found = job.method.dpo.hyperparameters
        assert found is not None and (found.beta, found.batch_size) == (0.2, "auto")

    with_sdk(secret, script)
    job = FineTuningJob.objects.get()
    assert job.method == "dpo" and job.hyperparameters["beta"] == 0.2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"training_file": "file-" + "0" * 24}, "training_file"),
        ({"training_file": "\0"}, "training_file"),
        ({"validation_file": "file-x"}, "validation_file"),
        ({"suffix": ""}, "suffix"),
        ({"suffix": "a:b"}, "suffix"),
        ({"suffix": "a\n"}, "suffix"),
        ({"suffix": "a" * 41}, "1 to 40"),
        ({"seed": -1}, "from 0 to 2147483647"),
        ({"seed": 1 << 31}, "seed"),
        ({"seed": 1 << 70}, "seed"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]}, "integrations"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "dpo", "reinforcement": {}}}, "reinforcement"),
        ({"method": {"type": "dpo", "supervised": {}}}, "`method.supervised` is not of"),
        ({"method": {"type": "supervised", "dpo": {}}}, "`method.dpo` is not of"),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 3}}}}, "0.001 to 2"),
        ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"beta": 1}}}},
         "`method.supervised.hyperparameters.beta` is not of the method `supervised`"),
        ({"method": {"type": "magic"}}, "method.type"),
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": 51}}, "from 1 to 50"),
        ({"hyperparameters": {"n_epochs": 1.5}}, "not valid"),
        ({"hyperparameters": {"n_epochs": "many"}}, "not valid"),
        ({"hyperparameters": {"n_epochs": True}}, "not valid"),
        ({"hyperparameters": {"batch_size": 10**30}}, "hyperparameters"),
        ({"hyperparameters": {"learning_rate_multiplier": 0}}, "from 0.0001 to 1000"),
        ({"hyperparameters": {"learning_rate_multiplier": -1.0}}, "learning_rate_multiplier"),
        ({"hyperparameters": {"beta": 1}}, "beta"),
        ({"hyperparameters": {}, "method": {"type": "supervised",
          "supervised": {"hyperparameters": {}}}}, "in `method` alone"),
        ({"colour": "red"}, "colour"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(
    ask: Ask, base: BaseModel, file: StoredFile, changed: dict[str, Any], told: str
) -> None:
    wanted = {"model": base.name, "training_file": file.pk} | changed
    answer = ask("POST", "", json=wanted)
    assert answer.status_code == 400 and told in answer.json()["error"]["message"]
    assert not FineTuningJob.objects.exists()


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
def test_numbers_that_are_none_are_refused(
    ask: Ask, base: BaseModel, file: StoredFile, number: bytes
) -> None:
    body = b'{"model": "%s", "training_file": "%s", "hyperparameters": ' % (
        base.name.encode(), file.pk.encode(),
    )  # fmt: skip
    answer = ask("POST", "", content=body + b'{"learning_rate_multiplier": %s}}' % number)
    assert answer.status_code == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 60_000])
def test_invalid_bodies_are_refused(ask: Ask, body: bytes) -> None:
    assert ask("POST", "", content=body).status_code == 400
    assert ask("POST", "", content=b" " * 70_000).status_code == 413


def test_models_that_cannot_be_trained(ask: Ask, tenant: Tenant, file: StoredFile) -> None:
    adapter = make_adapter(tenant, "mine")
    make_version(adapter)
    for name in ("mine", "mine@1"):
        refused = ask("POST", "", json={"model": name, "training_file": file.pk})
        assert refused.status_code == 400 and "an adapter" in refused.json()["error"]["message"]
    make_route(tenant)
    refused = ask("POST", "", json={"model": "auto", "training_file": file.pk})
    assert refused.status_code == 400 and "a route" in refused.json()["error"]["message"]
    make_adapter(make_tenant(), "theirs")
    for name in ("theirs", "gpt-4o-mini", "\0", ""):
        unknown = ask("POST", "", json={"model": name, "training_file": file.pk})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    _, narrow = make_key(tenant, *SCOPES, allowed_models=["mine"])
    wanted = {"model": adapter.base_model.name, "training_file": file.pk}
    assert ask("POST", "", json=wanted, secret=narrow).status_code == 404


def test_files_of_another_purpose_are_refused(ask: Ask, tenant: Tenant, base: BaseModel) -> None:
    other = tenant.files.create(purpose="batch", filename="a", size_bytes=1)
    refused = ask("POST", "", json={"model": base.name, "training_file": other.pk})
    assert "must be `fine-tune`" in refused.json()["error"]["message"]


def test_the_number_of_open_jobs_is_bounded(
    ask: Ask, base: BaseModel, file: StoredFile, settings: Settings
) -> None:
    settings.TENANT_TUNING_JOBS = 1
    wanted = {"model": base.name, "training_file": file.pk}
    first = ask("POST", "", json=wanted).json()
    refused = ask("POST", "", json=wanted)
    assert refused.status_code == 429 and refused.headers["retry-after"]
    ask("POST", f"/{first['id']}/cancel")
    assert ask("POST", "", json=wanted).status_code == 200


def test_another_tenants_job_is_not_found(ask: Ask, make_job: MakeJob, file: StoredFile) -> None:
    job = make_job()
    _, stranger = make_key(make_tenant(), *SCOPES)
    for method, path in (
        ("GET", ""), ("GET", "/events"), ("GET", "/checkpoints"),
        ("POST", "/cancel"), ("POST", "/pause"), ("POST", "/resume"),
    ):  # fmt: skip
        assert ask(method, f"/{job.pk}{path}", secret=stranger).status_code == 404
        assert ask(method, f"/%00{path}").status_code == 404
    assert ask("GET", "", secret=stranger).json()["data"] == []
    assert ask("GET", f"?after={job.pk}", secret=stranger).status_code == 400
    wanted = {"model": job.base_model.name, "training_file": file.pk}
    refused = ask("POST", "", json=wanted, secret=stranger)
    assert refused.json()["error"]["param"] == "training_file"
    job.refresh_from_db()
    assert job.status == TuningStatus.VALIDATING_FILES


@pytest.mark.parametrize(
    ("scope", "status"), [("usage:read", 403), ("inference", 403), ("adapters:write", 200)]
)
def test_which_keys_may(ask: Ask, tenant: Tenant, scope: str, status: int) -> None:
    _, other = make_key(tenant, scope)
    assert ask("GET", "", secret=other).status_code == status
    assert ask("GET", "", secret="").status_code == 401


def test_expired_files_stay_while_a_job_needs_them(make_job: MakeJob, make_file: MakeFile) -> None:
    job = make_job(validation_file=make_file())
    unused = make_file()
    StoredFile.objects.update(expires_at=timezone.now())
    keeping.remove_expired()
    left = set(StoredFile.objects.values_list("pk", flat=True))
    assert left == {job.training_file_id, job.validation_file_id} and unused.pk not in left
    job.advance(TuningStatus.CANCELLED)
    keeping.remove_expired()
    assert not StoredFile.objects.exists()
