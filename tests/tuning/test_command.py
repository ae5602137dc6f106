"""`manage.py trainer` starts with the base models that it has, or says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from demo import BASE, MODEL_NAME
from tenants.models import FineTuningJob
from tenants.tuning import jobs
from tenants.tuning.training import LeftJob, Trainer
from tests.tuning.conftest import MakeJob

pytestmark = pytest.mark.django_db


def test_without_base_models_it_does_not_start(settings: Settings) -> None:
    settings.BASE_MODELS = {}
    with pytest.raises(CommandError, match="LORIKEET_BASE_MODELS is not set"):
        call_command("trainer")


def test_a_base_model_that_is_not_there_is_named(settings: Settings, tmp_path: Path) -> None:
    settings.BASE_MODELS = {"base": str(tmp_path / "nothing")}
    with pytest.raises(CommandError, match="no copy of the base model"):
        call_command("trainer")


@pytest.mark.django_db(transaction=True)
def test_once_trains_what_waits_and_ends(
    settings: Settings, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BASE_MODELS = {MODEL_NAME: str(BASE)}
    waiting = [make_job(), make_job()]
    for job in waiting:
        jobs.queue(job)
    trained: list[str] = []

    def train(trainer: Trainer, job: FineTuningJob, following: object) -> Iterator[LeftJob]:
        trained.append(job.pk)
        job.fail("stopped", "It was not trained.")
        yield LeftJob(job)

    monkeypatch.setattr(Trainer, "train", train)
    try:
        call_command("trainer", "--once")
    finally:
        jobs.trainers.own = None
    assert sorted(trained) == sorted(job.pk for job in waiting)
