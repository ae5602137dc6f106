"""Runs `tenants.adapters.checks` on untrusted files in a child process with resource limits.

The child inherits the descriptors of its files and nothing else of this process: no environment, no
connection. Whatever a file makes it do (loop, use memory, crash), the child ends, and this process
goes on with a `LimitExceeded` or a `Crashed`. Blocking: call it from worker threads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import structlog
from django.conf import settings

import tenants
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused

log = structlog.get_logger(__name__)

ROOT = Path(next(iter(tenants.__path__))).parent
COMMAND = [sys.executable, "-P", "-s", "-m", "tenants.adapters.checks"]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",  # each thread's buffer would count as memory
    "OMP_NUM_THREADS": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # threads
    "HF_HUB_OFFLINE": "1",
}
OPEN_FILES = 32
MAX_RESULT_BYTES = 4 << 20
"""Far above a real answer: at most twenty findings, and the names of target modules."""
MAX_LOGGED_BYTES = 4 << 10
ATTEMPTS = 2
"""A child may also be killed by a machine that is out of memory, or that is shut down."""

Files = Mapping[str, tuple[IO[bytes], str]]
"""Open files by the name that the task uses, each with the mode in which the child opens it."""


class LimitExceeded(Exception):
    """Reading the files exceeded a limit, which the argument names."""


class Crashed(Exception):
    """The child ended without an answer."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one child may use."""

    cpu_s: int
    time_s: int
    memory_bytes: int
    file_bytes: int
    open_files: int = OPEN_FILES

    @classmethod
    def for_bytes(cls, size: int) -> SandboxLimits:
        """The limits of a task on files of `size` bytes: more time for each GiB."""
        gib = 1 + (size >> 30)
        return cls(
            cpu_s=settings.CHECK_CPU_S * gib,
            time_s=settings.CHECK_TIME_S * gib,
            memory_bytes=settings.CHECK_MEMORY_BYTES,
            file_bytes=settings.MAX_ADAPTER_BYTES,
        )


def run(task: Mapping[str, Any], files: Files, limits: SandboxLimits) -> dict[str, Any]:
    """The outcome of a task (`checks.__main__.TASKS`) on open files.

    Raises:
        UploadRefused: the files are refused.
        LimitExceeded: reading them takes more than `limits`.
        Crashed: the child crashed in every attempt.
        OSError: the files are not at fault; the disk is full, for example.
    """
    numbers = {name: (file.fileno(), mode) for name, (file, mode) in files.items()}
    whole = {**task, "files": numbers, "limits": asdict(limits)}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _told(_once(whole, limits.time_s))
        except Crashed as crash:
            log.error("check_crashed", task=task["task"], attempt=attempt, reason=str(crash))
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _once(task: Mapping[str, Any], time_s: int) -> dict[str, Any]:
    # Files instead of pipes: this process never blocks, whatever the child writes or leaves unread.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryDirectory() as empty:
            asked.write(json.dumps(task).encode())
            asked.seek(0)
            status = _status(
                subprocess.Popen(
                    COMMAND,
                    stdin=asked,
                    stdout=said,
                    stderr=complained,
                    pass_fds=[number for number, _ in task["files"].values()],
                    cwd=empty,
                    env=ENVIRONMENT,
                    start_new_session=True,
                ),
                time_s,
            )
        answer = _read(said, MAX_RESULT_BYTES)
        if status == 0 and answer.startswith(b"{"):
            with suppress(ValueError):
                found: dict[str, Any] = json.loads(answer)
                return found
        raise Crashed(f"status {status}: {_tail(complained)}")


def _status(child: subprocess.Popen[bytes], time_s: int) -> int:
    """The child's exit status. Waits at most `time_s`, then kills its process group."""
    try:
        status = child.wait(time_s)
    except subprocess.TimeoutExpired:
        raise LimitExceeded(f"{time_s} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if status == -signal.SIGXCPU:
        raise LimitExceeded("the CPU time")
    return status


def _read(file: IO[bytes], most: int) -> bytes:
    file.seek(0)
    return file.read(most)


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOGGED_BYTES))
    return file.read(MAX_LOGGED_BYTES).decode(errors="replace").strip()


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    if "exceeded" in answer:
        raise LimitExceeded(answer["exceeded"])
    if "os_error" in answer:
        raise OSError(*answer["os_error"])
    if "refused" in answer:
        raise UploadRefused(UploadRefusal(answer["refused"]["code"]), answer["refused"]["message"])
    return answer
