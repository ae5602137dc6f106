"""The demo's base model as one that can be trained on, and a tenant with files of dialogues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from safetensors import safe_open

from demo import BASE, MODEL_NAME
from tenants.models import BaseModel, FineTuningJob, Purpose, StoredFile, Tenant
from tenants.tuning import jobs
from tests.adapters.conftest import FakeGateway, gateway, no_jobs
from tests.batches.conftest import Ask, asked
from tests.storing import make_bytes, store_in
from tests.tenants.making import make_key, make_tenant
from tests.tuning.rows import NUMBERS, ROWS, jsonl

__all__ = ["Ask", "FakeGateway", "asked", "gateway", "no_jobs"]

MakeFile = Callable[..., StoredFile]
MakeJob = Callable[..., FineTuningJob]


@pytest.fixture(autouse=True)
def places(settings: Settings, tmp_path: Path) -> None:
    """Give the test its own storages."""
    store_in(settings, tmp_path)


@pytest.fixture
def tenant(no_jobs: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def base(tenant: Tenant) -> BaseModel:
    """The demo's tiny base model, as its engine reports it."""
    modules = {}
    with safe_open(BASE / "model.safetensors", "pt") as file:
        for name in file.keys():
            if name.endswith("_proj.weight"):
                modules[name.removesuffix(".weight")] = file.get_slice(name).get_shape()
    return BaseModel.objects.create(
        name=MODEL_NAME, max_model_len=512, max_lora_rank=16, modules=modules, engine="vllm"
    )


@pytest.fixture
def make_file(tenant: Tenant) -> MakeFile:
    """Makes files of rows, or of bytes."""

    def made(rows: Sequence[Any] | bytes = ROWS, owner: Tenant = tenant) -> StoredFile:
        data = rows if isinstance(rows, bytes) else jsonl(rows)
        file = owner.files.create(
            purpose=Purpose.FINE_TUNE, filename="rows.jsonl", size_bytes=len(data)
        )
        make_bytes(file.pk, data)
        return file

    return made


@pytest.fixture
def make_job(tenant: Tenant, base: BaseModel, make_file: MakeFile) -> MakeJob:
    """Makes jobs whose files are to be read."""

    def made(owner: Tenant = tenant, **fields: Any) -> FineTuningJob:
        given: dict[str, Any] = {
            "training_file": fields.pop("training_file", None) or make_file(owner=owner),
            "hyperparameters": NUMBERS,
            "seed": 7,
        }
        if "key" not in fields:
            given["key"] = make_key(owner)[0]
        job = FineTuningJob.objects.create(tenant=owner, base_model=base, **(given | fields))
        jobs.read_later(job)
        return job

    return made
