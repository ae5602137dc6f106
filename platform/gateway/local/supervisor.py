"""The processes of `up`: started, watched, restarted with back-off, ended in order."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.process.priority import give_way

BACKOFF_S = (1.0, 30.0)
"""Shortest and longest pause before a restart."""
STEADY_S = 60.0
"""After a process has lived this long, the pause is reset to the shortest."""
HOPELESS_AFTER = 2
"""Restarts after which a start is given up, because the fault is permanent."""
LAST_LINES = 12
REASON = "lorikeet "
"""What the line begins with that a process of ours ends with if it knows why."""
STOP_S = 45.0
"""How long a process may take to stop; longer than the longest drain."""


@dataclass
class Child:
    """One process. It leads its own process group, which is killed when it ends.

    `environment` is the complete environment: nothing is inherited. `nice` is a niceness as for
    nice(1), 0 to 19: the process yields to the others when cores are scarce. One that `drains`
    needs the others for that, so it stops before them.
    """

    name: str
    command: list[str]
    log: Path
    environment: Mapping[str, str]
    nice: int = 0
    drains: bool = False
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0

    async def start(self) -> None:
        """Start it; its output is appended to its log."""
        with self.log.open("ab") as out:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                start_new_session=True,
                preexec_fn=self._prepare,
            )

    def _prepare(self) -> None:
        """Runs in the child before its program."""
        _die_with_parent()
        if self.nice:
            give_way(self.nice)

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Ask it to stop, kill it after `timeout_s`, then kill the rest of its process group."""
        if self.process is None:
            return
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    await self.process.wait()
            except TimeoutError:
                pass
        self.kill_group()
        await self.process.wait()

    def kill_group(self) -> None:
        """Kill what is left of its process group."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def last_lines(self) -> str:
        """The end of its log."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 8192))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])

    def why_it_ended(self) -> str:
        """The last line of its log, if that is a reason, else the end of its log."""
        lines = self.last_lines()
        last = lines.rpartition("\n")[2]
        return last if last.startswith(REASON) else f"the end of its log is\n{lines}"


def _die_with_parent() -> None:
    """Have the kernel send SIGTERM when the supervisor dies in any way (Linux's prctl)."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


class Supervisor:
    """Runs children. At the end those that drain are stopped, all at once; then the others, in the
    reverse order of their start."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """`report` is called with messages for the user."""
        self._report = report
        self._children: list[Child] = []
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def hopeless(self) -> Child | None:
        """A child that keeps ending; only meaningful during a start."""
        return next((one for one in self._children if one.restarts >= HOPELESS_AFTER), None)

    async def start(self, child: Child) -> None:
        """Start a child and restart it whenever it ends."""
        await child.start()
        self._children.append(child)
        self._watchers.append(asyncio.create_task(self._watch(child)))

    async def stop(self) -> None:
        """Stop every child."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*(child.stop() for child in self._children if child.drains))
        for child in reversed(self._children):
            if not child.drains:
                await child.stop()

    async def _watch(self, child: Child) -> None:
        pause = BACKOFF_S[0]
        while True:
            began = time.monotonic()
            assert child.process is not None
            status = await child.process.wait()
            child.kill_group()
            if time.monotonic() - began >= STEADY_S:
                pause = BACKOFF_S[0]
            self._report(
                f"{child.name} ended with status {status}: {child.why_it_ended()}\n"
                f"restarting it in {pause:.0f} s"
            )
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACKOFF_S[1])
            child.restarts += 1
            await child.start()
