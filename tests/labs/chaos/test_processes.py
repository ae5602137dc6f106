"""Killed processes are restarted, and none is left at the end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.inference.rig import until
from tests.labs.chaos.judging.facts import DRAINED, KILLED, STOPPED, Life
from tests.labs.chaos.processes import Actor, Failed, Program, running

READY_S = 120.0
"""Seconds for a Python process to start or die on a busy machine."""
SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def program(tmp_path: Path, code: str = SLEEPER) -> Program:
    mark = tmp_path / "ready"

    async def ready() -> bool:
        return mark.exists()

    command = [sys.executable, "-c", code, str(mark)]
    return Program("sleeper", "agent", command, tmp_path / "log", ready)


async def test_a_stopped_process_continues_and_a_drained_one_restarts(tmp_path: Path) -> None:
    ended: list[Life] = []
    async with running(Actor(program(tmp_path), ended.append)) as actor:
        assert not actor.drain(), "it is not ready"
        await actor.until_ready(READY_S)
        assert actor.hang(0.01)
        assert actor.drain()
        await until(lambda: len(actor.lives) > 1)
    assert (ended[0].killed, ended[0].status) == (DRAINED, 0)


async def test_a_killed_process_is_restarted(tmp_path: Path) -> None:
    ended: list[Life] = []
    async with running(Actor(program(tmp_path), ended.append)) as actor:
        await actor.until_ready(READY_S)
        first = actor.pid
        assert actor.kill()
        assert not actor.is_ready
        (tmp_path / "ready").unlink()  # else the next one is ready before it handles signals
        await until(lambda: ended)
        assert (ended[0].killed, ended[0].status) == (KILLED, -signal.SIGKILL)
        await actor.until_ready(READY_S)
        assert first != actor.pid
        await actor.stop()
        await until(lambda: len(ended) == 2)
        assert (ended[1].killed, ended[1].status) == (STOPPED, 0)
        assert not actor.kill()
    assert [life.pid for life in actor.lives] == [life.pid for life in ended]


async def test_a_process_that_exits_by_itself_is_recorded(tmp_path: Path) -> None:
    ended: list[Life] = []
    async with running(Actor(program(tmp_path, "raise SystemExit(3)"), ended.append)):
        await until(lambda: len(ended) > 1)
    assert {(life.killed, life.status, life.ready) for life in ended} == {("", 3, None)}


async def test_no_process_outlives_the_run(tmp_path: Path) -> None:
    """However the run ends, and whatever the process has started."""
    parent = "import subprocess, sys\n" + SLEEPER.replace(
        "time.sleep", "subprocess.Popen([sys.executable, '-c', 'input()']); time.sleep"
    )
    with pytest.raises(Failed, match="not ready"):
        async with running(Actor(program(tmp_path, parent), lambda life: None)) as actor:
            await actor.until_ready(READY_S)
            process = psutil.Process(actor.pid)
            await until(process.children)
            family = [process, *process.children()]
            raise Failed("sleeper is not ready")
    _, alive = psutil.wait_procs(family, timeout=READY_S)
    assert not alive
