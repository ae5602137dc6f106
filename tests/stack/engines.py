"""Another engine beside those that `manage.py up` started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import demo
from tests.stack.running import ROOT, Stack, settings_free

STOP_S = 120.0


@contextmanager
def another_engine(
    stack: Stack,
    name: str,
    *options: str,
    model: tuple[str, Path] = (demo.MODEL_NAME, demo.BASE),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an engine of the pool of this model (its name and folder) until the context ends;
    `options` can make it another revision."""
    credential = engine_credential(stack, name, model[0])
    with engine_process(stack, name, credential, *options, model=model) as process:
        yield process


def engine_credential(stack: Stack, name: str, pool: str) -> str:
    """A new credential for the engine of this name."""
    made = stack.manage("engine_credential", "make", name, "--pool", pool)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@contextmanager
def engine_process(
    stack: Stack, name: str, credential: str, *options: str, model: tuple[str, Path]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an engine that has this credential, on the synthetic engine, until the context ends."""
    pool, folder = model
    command = [
        sys.executable, str(ROOT / "manage.py"), "engine", "--engine", "synthetic", "--id", name,
        "--model", str(folder), "--served-name", pool,
        "--gateway", ",".join(stack.urls), "--cache-dir", str(stack.var / "cache" / name),
        "--journal-dir", str(stack.var / "journal" / name), "--drain", "1", *options,
    ]  # fmt: skip
    environment = settings_free() | {
        "LORIKEET_VAR": str(stack.var), "LORIKEET_ENGINE_CREDENTIAL": credential
    }  # fmt: skip
    with (stack.var / "log" / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
