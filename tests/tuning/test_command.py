"""`manage.py trainer` starts with the base models that it has, or says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

pytestmark = pytest.mark.django_db


def test_without_base_models_it_does_not_start(settings: Settings) -> None:
    settings.BASE_MODELS = {}
    with pytest.raises(CommandError, match="LORIKEET_BASE_MODELS is not set"):
        call_command("trainer")


def test_a_base_model_that_is_not_there_is_named(settings: Settings, tmp_path: Path) -> None:
    settings.BASE_MODELS = {"base": str(tmp_path / "nothing")}
    with pytest.raises(CommandError, match="no copy of the base model"):
        call_command("trainer")
