"""The memory of open streams while they wait for a token, and whether it is freed afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import psutil
from asgiref.sync import sync_to_async

from gateway.local.supervisor import Child
from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.client import Address, Connection, Reply
from tests.labs.bench.machinery.processes import POLL_S, PYTHON
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.metering import limited_key
from tests.labs.bench.sides import lorikeet

TOKENS_PER_SECOND = 0.05
"""Rate of each stream. The engine steps all of them together: the first token comes after 20 s,
when all streams are open, and the next one 20 s later."""
ROUNDS = 3
BEGUN_S = 90.0
"""Longest wait until all streams have their first token."""
SETTLE_S = 5.0
"""Seconds from the last stream's first token, or end, until memory is measured. By then all data
passed between processes has arrived."""
GROWTH_MIB = 4.0
"""Allowed growth from the first to the last round: less than 1 KiB for each stream in between is
the allocator's overhead, not a leak."""
KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in KiB."""

    gateway: float
    agent: float


async def run(scale: Scale) -> Report:
    """Open all streams, measure, close them and measure again, ROUNDS times."""
    key = await sync_to_async(limited_key)()
    async with lorikeet.gateway("gateway-streams") as gateway, _engine(gateway, scale) as engine:
        await lorikeet.until_served(gateway, key, servers.MODEL)
        before = _memory(gateway, engine)
        opened, ended = [], []
        for number in range(1, ROUNDS + 1):
            async with _open_streams(gateway.address, key, scale.open_streams):
                opened.append(_memory(gateway, engine))
            await lorikeet.until_billed(key, 1 + number * scale.open_streams)
            await asyncio.sleep(SETTLE_S)
            ended.append(_memory(gateway, engine))
    return _report(scale.open_streams, before, opened, ended)


def _engine(
    gateway: lorikeet.Gateway, scale: Scale, name: str = ""
) -> AbstractAsyncContextManager[Child]:
    bounds = {
        "--tokens-per-second": TOKENS_PER_SECOND,
        "--max-num-seqs": scale.open_streams,
        "--max-queued": scale.open_streams,
        "--max-queued-per-tenant": scale.open_streams,
        "--reserved": 0,
    }
    options = [part for name, value in bounds.items() for part in (name, str(value))]
    command = [*PYTHON, "-m", "tests.labs.bench.machinery.roomy_engine"]
    engine = ["--model", servers.MODEL, *options]
    return lorikeet.engine(gateway, f"engine-streams{name}", *engine, command=command)


async def memory_per_stream(scale: Scale, name: str, **given: str) -> Memory:
    """KiB per open stream in a gateway with the settings `given`, and in its engine's agent."""
    key = await sync_to_async(limited_key)()
    async with (
        lorikeet.gateway(f"gateway-streams-{name}", **given) as gateway,
        _engine(gateway, scale, f"-{name}") as engine,
    ):
        await lorikeet.until_served(gateway, key, servers.MODEL)
        before = _memory(gateway, engine)
        async with _open_streams(gateway.address, key, scale.open_streams):
            opened = _memory(gateway, engine)
    return Memory(
        (opened.gateway - before.gateway) / scale.open_streams,
        (opened.agent - before.agent) / scale.open_streams,
    )


@asynccontextmanager
async def _open_streams(address: Address, key: str, count: int) -> AsyncIterator[None]:
    """Open `count` streams, wait until all have begun, and close them when the context ends."""
    connections = [await Connection.open(address) for _ in range(count)]
    answers = [
        asyncio.create_task(
            connection.send(
                lorikeet.chat(servers.MODEL, f"{i}: hello", max_tokens=100, stream=True, key=key)
            )
        )
        for i, connection in enumerate(connections)
    ]
    try:
        await _until_begun(connections, answers)
        await asyncio.sleep(SETTLE_S)
        yield
    finally:
        for answer in answers:
            answer.cancel()
        await asyncio.wait(answers)
        for connection in connections:
            connection.close()


async def _until_begun(
    connections: Sequence[Connection], answers: Sequence[asyncio.Task[Reply]]
) -> None:
    """Wait until each connection has received part of its answer.

    Raises:
        Refused, OSError: a stream failed instead.
        TimeoutError: one received nothing within BEGUN_S.
    """
    async with asyncio.timeout(BEGUN_S):
        while not all(connection.answered for connection in connections):
            for answer in answers:
                if answer.done():
                    answer.result()
            await asyncio.sleep(POLL_S)


def _memory(gateway: lorikeet.Gateway, engine: Child) -> Memory:
    return Memory(_rss_kib(gateway.child), _rss_kib(engine))


def _rss_kib(child: Child) -> float:
    assert child.process is not None
    return float(psutil.Process(child.process.pid).memory_info().rss) / KIB


def _report(count: int, before: Memory, opened: list[Memory], ended: list[Memory]) -> Report:
    def rows(what: str, start: float, peaks: list[float], ends: list[float]) -> list[Row]:
        taken = Figure.of([(peak - start) / count for peak in peaks])
        return [
            Row(f"{what}: resident before the first stream", Figure.of([start / KIB]), "MiB"),
            Row(f"{what}: taken while all are open", taken, "KiB/stream"),
            Row(
                f"{what}: after round 1, above before", Figure.of([(ends[0] - start) / KIB]), "MiB"
            ),
            Row(
                f"{what}: after round {len(ends)}, above round 1",
                Figure.of([(ends[-1] - ends[0]) / KIB]),
                "MiB",
                at_most=GROWTH_MIB,
            ),
        ]

    return Report(
        f"{count:,} open streams that wait for their next token",
        [
            *rows(
                "gateway",
                before.gateway,
                [memory.gateway for memory in opened],
                [memory.gateway for memory in ended],
            ),
            *rows(
                "agent",
                before.agent,
                [memory.agent for memory in opened],
                [memory.agent for memory in ended],
            ),
        ],
        "Of the agent's share, the synthetic engine's own part belongs to no real engine.",
    )
