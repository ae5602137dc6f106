"""The child process that checks answers, as its parent has it."""

from __future__ import annotations

import asyncio
import atexit
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

import inference
from inference.gateway.structures.child import (
    CPU_S,
    StructureResult,
    StructureTask,
    receive,
    send,
)
from inference.operations.structure import StructureOutcome

WAIT_S = 20.0
"""How long a result is waited for, on a busy machine: usually the child's own timer ends it."""
ROOT = Path(next(iter(inference.__path__))).parent
COMMAND = [sys.executable, "-P", "-s", "-m", "inference.gateway.structures.child"]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
"""No secret of this process."""
KILLED = StructureResult(StructureOutcome.UNCHECKED, CPU_S)


class CheckingProcess:
    """Checks one answer at a time; starts the child when it is needed, and again after a kill."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._thread = ThreadPoolExecutor(1, "structures")
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is none."""
        return None if self._child is None else self._child.pid

    async def check(self, task: StructureTask) -> StructureResult:
        """The result; KILLED if there is none in time."""
        frame = msgspec.msgpack.encode(task)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._checked, frame)

    def _checked(self, frame: bytes) -> StructureResult:
        try:
            channel = self._channel or self._start()
            send(channel, frame)
            return msgspec.msgpack.decode(receive(channel), type=StructureResult)
        except (OSError, msgspec.DecodeError):  # killed by its timer or its memory's limit, or late
            self.close()
            return KILLED

    def _start(self) -> socket.socket:
        self._channel, other = socket.socketpair()
        self._channel.settimeout(WAIT_S)
        with other:
            self._child = subprocess.Popen(
                COMMAND,
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,
            )
        return self._channel

    def close(self) -> None:
        """End the child; a later check starts another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


PROCESS = CheckingProcess()
"""The one of this process."""
