"""Runs `tenants.adapters.checks` on untrusted files in a child process with resource limits.

The child has the descriptors of its files and nothing else of this process: no environment, no
connection. Whatever a file makes it do (loop, use memory, crash), the child ends, and this process
goes on with a `LimitExceeded` or a `Crashed`. Blocking: call it from worker threads.

Children are forked from a `Template`, a process that has imported what they need, because importing
PEFT takes longer than computing with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
COMPUTE = "compute"
"""The task that takes PyTorch and PEFT."""
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
    modes = [(name, mode) for name, (_, mode) in files.items()]
    whole = {**task, "files": modes, "limits": asdict(limits)}
    numbers = [file.fileno() for file, _ in files.values()]
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _result(_once(whole, numbers, limits.time_s))
        except Crashed as crash:
            log.error("check_crashed", task=task["task"], attempt=attempt, reason=str(crash))
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _once(task: Mapping[str, Any], numbers: Sequence[int], time_s: int) -> dict[str, Any]:
    # Files instead of pipes: this process never blocks, whatever the child writes or leaves unread.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryDirectory() as empty:
            asked.write(json.dumps(task).encode())
            asked.seek(0)
            own = [file.fileno() for file in (asked, output, errors)]
            status = templates.run(task["task"] == COMPUTE, empty, [*own, *numbers], time_s)
        answer = _read(output, MAX_RESULT_BYTES)
        if status == 0 and answer.startswith(b"{"):
            with suppress(ValueError):
                found: dict[str, Any] = json.loads(answer)
                return found
        if status == -signal.SIGXCPU:
            raise LimitExceeded("the CPU time")
        raise Crashed(f"status {status}: {_tail(errors)}")


class Template:
    """A running `checks`, which forks a child for each task. It ends by itself when it is idle for
    a minute, or when this process ends."""

    def __init__(self, *options: str) -> None:
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [*COMMAND, *options],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def run(self, folder: str, numbers: Sequence[int], time_s: int) -> int:
        """A child's exit status. The descriptors become its standard input, output and error, and
        its files.

        Raises:
            LimitExceeded: it takes longer than `time_s`, and was killed.
            Crashed: the template itself ended.
        """
        status = b""
        with suppress(ConnectionError):
            socket.send_fds(self._channel, [os.fsencode(folder)], list(numbers))
            if not select.select([self._channel], [], [], time_s)[0]:
                raise LimitExceeded(f"{time_s} s")
            status = self._channel.recv(16)
        if not status:
            raise Crashed("the process that starts checks ended")
        return int(status)

    def close(self) -> None:
        """End it, and a child that still runs; again without effect."""
        self._channel.close()
        self._process.wait()


class Templates:
    """The idle ones, to use them again."""

    def __init__(self) -> None:
        self._idle: dict[bool, list[Template]] = defaultdict(list)
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._idle.clear)

    def run(self, computes: bool, folder: str, numbers: Sequence[int], time_s: int) -> int:
        """As `Template.run`, in one that is idle or new."""
        template = self._taken(computes) or _new(computes)
        try:
            status = template.run(folder, numbers, time_s)
        except BaseException:
            template.close()
            raise
        with self._lock:
            self._idle[computes].append(template)
        return status

    def prepare(self, computes: bool) -> None:
        """Start one unless one is idle. It imports what it needs while this process goes on."""
        with self._lock:
            if not any(one.runs for one in self._idle[computes]):
                self._idle[computes].append(_new(computes))

    def idle(self) -> list[Template]:
        with self._lock:
            return [one for kept in self._idle.values() for one in kept]

    def _taken(self, computes: bool) -> Template | None:
        with self._lock:
            while self._idle[computes]:
                template = self._idle[computes].pop()
                if template.runs:
                    return template
                template.close()
        return None


def _new(computes: bool) -> Template:
    return Template("--compute") if computes else Template()


templates = Templates()


def _read(file: IO[bytes], most: int) -> bytes:
    file.seek(0)
    return file.read(most)


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOGGED_BYTES))
    return file.read(MAX_LOGGED_BYTES).decode(errors="replace").strip()


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    if "exceeded" in answer:
        raise LimitExceeded(answer["exceeded"])
    if "os_error" in answer:
        raise OSError(*answer["os_error"])
    if "refused" in answer:
        raise UploadRefused(UploadRefusal(answer["refused"]["code"]), answer["refused"]["message"])
    return answer
