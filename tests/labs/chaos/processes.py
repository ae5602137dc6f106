"""The processes of a run: started, killed, restarted at once, and reliably ended.

`gateway.local.supervisor` is not used, because it waits before it restarts a process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.labs.chaos.judging.facts import DRAINED, KILLED, STOPPED, Life

ROOT = Path(__file__).resolve().parents[3]
POLL_S = 0.05
STOP_S = 240.0
"""Seconds to wait for a process that was asked to stop; vLLM on a busy machine takes half a
minute."""
AGAIN_S = 0.1
"""Before the next start of a process: one that cannot start yet would otherwise keep a core
busy."""

Ready = Callable[[], Awaitable[bool]]


class Failed(Exception):
    """The run cannot continue; the message says why."""


@dataclass
class Program:
    """What to run, and in which folder. `user` is the account to run it as, if not this one;
    `ready` says whether it serves."""

    name: str
    kind: str
    command: Sequence[str]
    log: Path
    ready: Ready
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    folder: Path = ROOT
    stop_signal: signal.Signals = signal.SIGTERM


class Actor:
    """A program that is restarted whenever it ends, until it is asked to stop."""

    def __init__(self, program: Program, ended: Callable[[Life], None]) -> None:
        """`ended` is called with each life of the process, before the next one begins."""
        self.program, self.lives = program, list[Life]()
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def is_ready(self) -> bool:
        life = self.lives[-1] if self.lives else None
        return life is not None and life.ready is not None and life.ended is None

    async def run(self) -> None:
        """Keep it running until `stop`. However this ends, the process is killed."""
        try:
            while not self._stopping.is_set():
                await self._live()
        finally:
            self.end()

    async def _live(self) -> None:
        process = self._process = await self._start()
        life = Life(self.name, self.program.kind, process.pid, time.time())
        self.lives.append(life)
        watching = asyncio.create_task(self._watch(life))
        try:
            life.status = await process.wait()
        finally:
            watching.cancel()
        life.ended = life.ended or time.time()
        if self._stopping.is_set():
            life.killed = STOPPED
        self._ended(life)
        if not self._stopping.is_set():
            await asyncio.sleep(AGAIN_S)

    async def _start(self) -> asyncio.subprocess.Process:
        program = self.program
        with program.log.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=program.folder,
                env=os.environ | program.environment,
                user=program.user,
                group=program.user,
                extra_groups=None if program.user is None else [],
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    async def _watch(self, life: Life) -> None:
        while not await self.program.ready():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        life.ready = time.time()

    async def until_ready(self, timeout_s: float) -> None:
        """Wait until it serves.

        Raises:
            Failed: it does not in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_ready:  # noqa: ASYNC110 - other processes have no events
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Failed(f"{self.name} is not ready; see {self.program.log}") from None

    def kill(self) -> bool:
        """`kill -9` it; returns whether it was running."""
        at = time.time()  # taken first, because clients may notice before this does
        if not self._tell(signal.SIGKILL):
            return False
        life = self.lives[-1]
        life.killed, life.ended = KILLED, at
        return True

    def hang(self, seconds: float) -> bool:
        """Suspend it for `seconds`; returns whether it was running."""
        pid = self.pid
        if not self._tell(signal.SIGSTOP):
            return False
        asyncio.get_running_loop().call_later(seconds, self._go_on, pid)
        return True

    def _go_on(self, pid: int | None) -> None:
        if self.pid == pid:  # otherwise it was killed meanwhile
            self._tell(signal.SIGCONT)

    def drain(self) -> bool:
        """Ask it to stop; it is restarted afterwards. Returns whether it was running and ready:
        before that it does not handle the signal."""
        at = time.time()
        if not self.is_ready or not self._tell(signal.SIGTERM):
            return False
        life = self.lives[-1]
        life.killed, life.asked = DRAINED, at
        return True

    def _tell(self, number: signal.Signals) -> bool:
        """Send the signal; returns whether the process was there."""
        if self.pid is None:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:  # it has ended, and the event loop will learn so soon
            return False
        return True

    async def stop(self) -> float:
        """Ask it to stop, without a restart; returns the seconds that it took."""
        began = time.monotonic()
        self._stopping.set()
        if self._process is not None and self._tell(self.program.stop_signal):
            try:
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
            except TimeoutError:
                self.end()
        return time.monotonic() - began

    async def gone(self) -> None:
        """Kill it and wait until it has ended."""
        self.end()
        if self._process is not None:
            await self._process.wait()

    def end(self) -> None:
        """Kill it and all processes of its session that are left."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@asynccontextmanager
async def running(actor: Actor) -> AsyncIterator[Actor]:
    """Keep the actor running in the block; afterwards it is dead and its exit has been noticed."""
    task = asyncio.create_task(actor.run(), name=actor.name)
    try:
        yield actor
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await actor.gone()


_prctl = ctypes.CDLL(None).prctl
"""Looked up here: in a child of a process with threads, a thread may have held the loader's
lock."""


def _die_with_parent() -> None:
    """Runs in the child: die when the parent dies, for whatever reason (Linux's prctl)."""
    set_parent_death_signal = 1
    _prctl(set_parent_death_signal, signal.SIGKILL)
