"""A trainer as a task on Ray, beside a substitute for Ray that runs tasks at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from demo import BASE, MODEL_NAME
from gateway.scaling import ray_tasks
from gateway.scaling.ray_tasks import TrainerFailed, run_trainer, settings_of, train
from inference.process.environ import BadSetting
from tenants.tuning import jobs
from tests.stack.asking import until
from tests.tuning.conftest import MakeJob, base, make_file, make_job, no_jobs, tenant

__all__ = ["base", "make_file", "make_job", "no_jobs", "tenant"]


class FakeRay(SimpleNamespace):
    """Runs each task in `get`, which fails as Ray's does."""

    def __init__(self) -> None:
        super().__init__(exceptions=SimpleNamespace(RayError=LookupError), placements=[])

    def init(self, address: str) -> None:
        if address == "nowhere":
            raise ConnectionError("no cluster at nowhere")

    def remote(self, **placement: Any) -> Callable[[Callable[..., None]], SimpleNamespace]:
        self.placements.append(placement)
        return lambda task: SimpleNamespace(remote=lambda *given: lambda: task(*given))

    def get(self, running: Callable[[], None]) -> None:
        try:
            running()
        except subprocess.CalledProcessError as error:
            raise LookupError(str(error)) from error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A command in place of `manage.py`: it writes its arguments and a setting to this file, and
    ends with the status in STATUS."""
    file = tmp_path / "said"
    script = (
        "import os, sys; open(os.environ['LORIKEET_VAR'], 'w')"
        ".write(' '.join([*sys.argv[1:], os.environ['LORIKEET_SHOWN']]));"
        "sys.exit(int(os.environ['LORIKEET_STATUS']))"
    )
    monkeypatch.setattr(ray_tasks, "MANAGE", [sys.executable, "-c", script])
    monkeypatch.setenv("LORIKEET_VAR", str(file))
    monkeypatch.setenv("LORIKEET_SHOWN", "a setting")
    monkeypatch.setenv("LORIKEET_STATUS", "0")
    return file


def test_the_task_is_a_trainer_with_the_settings_of_the_command(
    ray: FakeRay, trainer: Path
) -> None:
    train("10.0.0.1:6379", ["--device", "cpu"], num_cpus=2.0, num_gpus=1.0, resources={"a": 1})
    assert trainer.read_text() == "trainer --once --device cpu a setting"
    placed = {"max_retries": 0, "num_cpus": 2.0, "num_gpus": 1.0, "resources": {"a": 1}}
    assert ray.placements == [placed]


def test_a_trainer_that_fails_fails_the_task(
    ray: FakeRay, trainer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORIKEET_STATUS", "3")
    with pytest.raises(TrainerFailed, match="status 3"):
        train("10.0.0.1:6379", [])
    with pytest.raises(TrainerFailed, match="no cluster"):
        train("nowhere", [])


def test_without_ray_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadSetting, match="pip install"):
        train("auto", [])


def test_a_cancelled_task_stops_its_trainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ready, stopped = tmp_path / "ready", tmp_path / "stopped"
    script = (
        "import pathlib, signal, sys;"
        f"save = lambda *_: sys.exit(pathlib.Path({str(stopped)!r}).touch());"
        f"signal.signal(signal.SIGTERM, save); pathlib.Path({str(ready)!r}).touch();"
        "signal.pause()"
    )

    def wait(process: subprocess.Popen[bytes], *given: Any) -> int:
        monkeypatch.undo()
        until(ready.exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_tasks, "MANAGE", [sys.executable, "-c", script])
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run_trainer([], {})
    assert stopped.exists()


def test_the_task_gets_no_variables_but_lorikeets_and_the_storages() -> None:
    given = {"LORIKEET_VAR": "/v", "AWS_ACCESS_KEY_ID": "a", "PATH": "/bin", "HOME": "/root"}
    assert settings_of(given) == {"LORIKEET_VAR": "/v", "AWS_ACCESS_KEY_ID": "a"}


@pytest.mark.django_db(transaction=True)
def test_ray_is_asked_for_a_node_only_if_a_job_waits(
    make_job: MakeJob,
    ray: FakeRay,
    trainer: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.BASE_MODELS = {MODEL_NAME: str(BASE)}
    call_command("trainer", "--ray", "auto")
    assert not ray.placements and not trainer.exists()
    jobs.queue(make_job())
    call_command("trainer", "--ray", "auto", "--gpus", "1")
    assert ray.placements[0]["num_gpus"] == 1
    assert trainer.read_text().startswith("trainer --once --concurrency 1 --device auto")
    monkeypatch.setenv("LORIKEET_STATUS", "3")
    with pytest.raises(CommandError, match="status 3"):
        call_command("trainer", "--ray", "auto")
