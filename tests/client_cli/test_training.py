"""`lorikeet train` against a real console; the tests act as workers and trainers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenants.models import FineTuningJob, Tenant
from tenants.tuning_states import TuningStatus
from tests.batches.conftest import files_dir
from tests.client_cli.conftest import Run
from tests.hub.conftest import Hub
from tests.tenants.making import make_base, make_key
from tests.tuning.rows import ROWS, jsonl

__all__ = ["files_dir"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "object_storage"),
]


@pytest.fixture
def signed_in(run: Run, hub: Hub, tenant: Tenant) -> Run:
    make_base("base")
    key = make_key(tenant, "inference", "adapters:write")[1]
    assert run("login", "--url", hub.url, "--api-url", hub.url, "--key", key).code == 0
    return run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(ROWS))
    return path


def acting(monkeypatch: pytest.MonkeyPatch, *acts: TuningStatus) -> None:
    """While the command waits, its job goes through these states, one each time that it looks."""
    left = iter(acts)

    def look(seconds: float) -> None:
        job, status = FineTuningJob.objects.get(), next(left)
        if status == TuningStatus.FAILED:
            job.fail("invalid_file", "Line 3: It is not a valid row.", "training_file")
        else:
            assert job.advance(status)
            job.report("Step 1/2: training loss=1.5", {"step": 1, "total_steps": 2})

    monkeypatch.setattr("lorikeet.training.time.sleep", look)


def test_a_file_becomes_a_model(
    signed_in: Run, rows: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting(monkeypatch, TuningStatus.QUEUED, TuningStatus.RUNNING, TuningStatus.SUCCEEDED)
    done = signed_in(
        "train", rows, "--validation", rows, "--model", "base", "--suffix", "tea",
        "--epochs", 2, "--seed", 7, "--method", "dpo", "--wait",
    )  # fmt: skip
    job = FineTuningJob.objects.get()
    assert done.code == 0 and f"the model is {job.fine_tuned_model}." in done.err
    assert (job.suffix, job.seed, job.method) == ("tea", 7, "dpo")
    assert job.hyperparameters["n_epochs"] == 2 and job.validation_file is not None
    assert job.training_file.size_bytes == rows.stat().st_size
    assert not list((home / "uploads").iterdir())


def test_what_failed_is_said(signed_in: Run, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acting(monkeypatch, TuningStatus.FAILED)
    done = signed_in("train", rows, "--model", "base", "--wait")
    assert done.code == 5 and "invalid_file: Line 3: It is not a valid row." in done.err


def test_without_waiting_the_job_is_named(signed_in: Run, rows: Path) -> None:
    done = signed_in("train", rows, "--model", "base", "--json")
    assert done.code == 0 and done.json["status"] == "validating_files"
    assert done.json["id"] == FineTuningJob.objects.get().pk


def test_what_the_server_refuses_is_said(signed_in: Run, rows: Path) -> None:
    refused = signed_in("train", rows, "--model", "nothing")
    assert refused.code and "nothing" in refused.err and not FineTuningJob.objects.exists()
