"""The command line in this process, signed in to a real console."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from inference.content import CONFIG, WEIGHTS
from lorikeet.__main__ import main
from tests.adapters.checks.builder import config_bytes, lora
from tests.hub.conftest import (
    base_model,
    console,
    gateway,
    hub,
    no_jobs,
    object_storage,
    tenant,
    worker,
)

__all__ = [
    "base_model",
    "console",
    "gateway",
    "hub",
    "no_jobs",
    "object_storage",
    "tenant",
    "worker",
]


@dataclass(frozen=True)
class Ran:
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command line's empty folder of files; no variable names a server or a key."""
    for name in ("LORIKEET_URL", "LORIKEET_API_URL", "LORIKEET_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LORIKEET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line as a shell does."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["lorikeet", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        # The console runs in this process too and would log to the same output.
        with capture_logs(), pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return run


def adapter(folder: Path, **changes: Any) -> Path:
    """A folder with a valid adapter, with `changes` to its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_bytes(config_bytes(**changes))
    (folder / WEIGHTS).write_bytes(lora().bytes())
    return folder
