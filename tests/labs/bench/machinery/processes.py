"""Starts processes under test, waits for them, reads their CPU time from Linux and ends them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

import httpx
import psutil

from gateway.local.supervisor import Child
from tests.environment import POSTGRES, ROOT, VAR
from tests.labs.bench.machinery.client import Address

HOST = "127.0.0.1"
READY_S = 300.0
"""Longest wait for a process; vLLM on a busy machine takes a minute."""
POLL_S = 0.1
PYTHON = [sys.executable]
MANAGE = [sys.executable, str(ROOT / "manage.py")]
TRACKER = "multiprocessing.resource_tracker"
"""The titles that vLLM gives to the processes that run the model."""
CpuTime = Callable[[], float]
"""Reads the CPU seconds, user and system, used so far."""


class Failed(Exception):
    """A process failed to do its work; the message holds the end of its log."""


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def url_of(address: Address) -> str:
    """The base URL of an address."""
    return f"http://{address[0]}:{address[1]}"


@asynccontextmanager
async def running(
    name: str,
    command: list[str],
    ready_url: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Child]:
    """Run a process until the context ends, then end it and all of its children.

    The process is ready once `ready_url` answers 200. `environment` is added to this process's own.

    Raises:
        Failed: the process ended, or was not ready in time.
    """
    logs = VAR / "log"
    logs.mkdir(exist_ok=True)
    child = Child(name, command, logs / f"{name}.log", os.environ | (environment or {}))
    try:
        await child.start()
        if ready_url is not None:
            await _until_ready(child, ready_url)
        yield child
    finally:
        await child.stop()


async def _until_ready(child: Child, url: str) -> None:
    try:
        async with asyncio.timeout(READY_S), httpx.AsyncClient(trust_env=False) as client:
            while not await _answers(client, url):
                if child.process is not None and child.process.returncode is not None:
                    raise Failed(f"{child.name} ended; its log says:\n{child.last_lines()}")
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Failed(f"{child.name} is not ready; its log says:\n{child.last_lines()}") from None


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.TransportError:
        return False


def cpu_of(child: Child) -> CpuTime:
    """Reads the CPU seconds of the process itself, without its children."""
    return partial(cpu_s, [family(child)[0]])


def engine_cpu_of(child: Child) -> CpuTime:
    """Reads the CPU seconds of the process's vLLM engine core, and of its workers if it has any.

    Raises:
        Failed: the process has no engine core.
    """
    return partial(cpu_s, _engine(child))


def front_cpu_of(child: Child) -> CpuTime:
    """Reads the CPU seconds of the process and all its children except the engine.

    Raises:
        Failed: as `engine_cpu_of`.
    """
    engine = _engine(child)
    return partial(cpu_s, [member for member in family(child) if member not in engine])


def _engine(child: Child) -> list[psutil.Process]:
    found = engine_cores(family(child)[0])
    if not found:
        raise Failed(f"no engine core is among the processes of {child.name}")
    return found


def engine_cores(process: psutil.Process) -> list[psutil.Process]:
    """The processes of vLLM's engine core below the one that started it. Not every core has a title
    of its own."""
    children = process.children(recursive=True)
    return [one for one in children if TRACKER not in " ".join(one.cmdline())]


def family(child: Child) -> list[psutil.Process]:
    """The process and all that it has started."""
    assert child.process is not None
    process = psutil.Process(child.process.pid)
    return [process, *process.children(recursive=True)]


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds, user and system, that these processes have used so far."""
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


def postgres_cpu_s() -> float:
    """CPU seconds of the embedded PostgreSQL with all its backends, including those that ended."""
    pid = int((POSTGRES / "postmaster.pid").read_text().split()[0])
    postmaster = psutil.Process(pid)
    total = sum(postmaster.cpu_times()[:4])  # its own, and that of ended children
    for backend in postmaster.children():
        with suppress(psutil.NoSuchProcess):
            total += cpu_s([backend])
    return total
