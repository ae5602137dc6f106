"""Children that crash, hang and leave grandchildren behind."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from gateway.local.supervisor import Child, Supervisor
from tests.stack.asking import until
from tests.stack.running import gone

TIMEOUT_S = 120.0
FOREVER = "import time, sys; print('ready', flush=True); time.sleep(600)"


def child(tmp_path: Path, code: str, name: str = "one") -> Child:
    return Child(name, [sys.executable, "-c", code], tmp_path / f"{name}.log", {"COLOUR": "green"})


async def said(one: Child, text: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while text not in one.last_lines():  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(0.01)


async def test_a_child_runs_with_its_environment_alone_and_its_log(tmp_path: Path) -> None:
    names = "set(os.environ) - {'LC_CTYPE'}"  # set by Python
    one = child(tmp_path, f"import os; print({names}, os.environ['COLOUR'], flush=True); {FOREVER}")
    await one.start()
    await said(one, "ready")
    assert one.last_lines() == "{'COLOUR'} green\nready"
    await one.stop()
    assert one.process is not None and one.process.returncode is not None


async def test_a_nice_child_gives_way(tmp_path: Path) -> None:
    one = child(tmp_path, f"import os; print('at', os.nice(0), flush=True); {FOREVER}")
    one.nice = 5
    await one.start()
    await said(one, "ready")
    assert one.last_lines() == f"at {min(os.nice(0) + 5, 19)}\nready"
    await one.stop()


async def test_a_crash_is_reported_with_the_last_lines_and_the_child_starts_again(
    tmp_path: Path,
) -> None:
    reports: asyncio.Queue[str] = asyncio.Queue()
    boss = Supervisor(reports.put_nowait)
    once = tmp_path / "once"
    code = (
        f"import pathlib, sys; p = pathlib.Path({str(once)!r})\n"
        "if not p.exists(): p.touch(); sys.exit('out of luck')\n" + FOREVER
    )
    one = child(tmp_path, code)
    await boss.start(one)
    async with asyncio.timeout(TIMEOUT_S):
        report = await reports.get()
    assert "one ended with status 1" in report
    assert "out of luck" in report
    assert "restarting it in 1 s" in report
    await said(one, "ready")
    assert one.restarts == 1
    await boss.stop()


async def test_a_crash_takes_the_grandchildren_along(tmp_path: Path) -> None:
    reports: asyncio.Queue[str] = asyncio.Queue()
    boss = Supervisor(reports.put_nowait)
    one = child(
        tmp_path,
        "import subprocess, sys, os\n"
        f"p = subprocess.Popen([sys.executable, '-c', {FOREVER!r}], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print('pid', p.pid, flush=True); os._exit(3)",
    )
    await boss.start(one)
    async with asyncio.timeout(TIMEOUT_S):
        report = await reports.get()
    grandchild = int(report.split("pid ")[1].split()[0])
    await boss.stop()
    with suppress(psutil.NoSuchProcess):
        killed = psutil.Process(grandchild)
        until(lambda: gone(killed))


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    one = child(tmp_path, "import signal; signal.signal(15, signal.SIG_IGN)\n" + FOREVER)
    await one.start()
    await said(one, "ready")
    await one.stop(timeout_s=0.1)
    assert one.process is not None and one.process.returncode == -9


async def test_children_stop_in_the_opposite_order_after_those_that_drain(tmp_path: Path) -> None:
    boss = Supervisor(print)
    note = (
        f"import signal, sys, time\n"
        f"def bye(*_):\n    open({str(tmp_path / 'order')!r}, 'a').write(NAME); sys.exit()\n"
        "signal.signal(15, bye); print('ready', flush=True); time.sleep(600)"
    )
    for name in "abcd":
        one = child(tmp_path, f"NAME = {name!r}\n{note}", name)
        one.drains = name == "b"
        await boss.start(one)
        await said(one, "ready")
    await boss.stop()
    assert (tmp_path / "order").read_text() == "bdca"
