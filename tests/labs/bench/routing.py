"""Routing policies compared: in simulation, and on two real vLLM engines.

In simulation the product's own routing, queues and bookkeeping run in virtual time against a model
of engines (`tests.labs.bench.simulation`). On vLLM the same conversations run on two engines behind
gateways that choose as the product does, by load alone or at random, and on a single engine, whose
cache holds all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import demo
from inference.agent.engines.profile import EngineProfile
from tests.environment import ROOT
from tests.labs.bench.machinery.client import Address, Connection, post
from tests.labs.bench.machinery.processes import PYTHON
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet
from tests.labs.bench.simulation.fleet import Fleet, endless, percentile
from tests.labs.bench.simulation.traces import Workload, recorded

HIT_TARGET = {4: 0.95, 64: 0.9, 512: 0.9}
"""Share of one infinite engine's cache hits, by number of engines."""
SKEW_TARGET, LOADS_TARGET, DECISION_US = 1.3, 1.3, 50
SESSIONS = 24
"""Concurrent sessions per engine, which keep it busy about half of the time."""
ADAPTERS, TENANTS = 40, 5
"""Per engine: two to three times as many adapters as it has places for."""
WARM_S = 60
TRACE = os.environ.get("TRACE", "")
"""Path of a recorded trace in Mooncake's format; empty if there is none."""
TRACE_REQUESTS, TRACE_ENGINES, TRACE_KV_TOKENS = 12_000, 16, 1 << 22
"""Prompts have 12,000 tokens on average, so a smaller cache evicts most before they are reused."""

CONVERSATIONS, TURNS, CLIENTS = 24, 4, 6
APPLICATIONS = 4
TOKENS = 16
SENTENCE = "The quick brown fox jumps over the lazy dog while nobody is looking. "
ROUTED = str(ROOT / "tests/labs/bench/machinery/routed.py")
OURS, LEAST, CHANCE = "as the product does", "least loaded", "by chance"
ROUTERS = {OURS: "", LEAST: "least_loaded", CHANCE: "by_chance"}
CACHED = re.compile(rb'"cached_tokens": ?(\d+)')
PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')


async def run(scale: Scale) -> Report:
    """Simulate fleets, then hold conversations on vLLM."""
    rows = [row for fleet in scale.fleets for row in _simulated(*fleet, scale.fleet_s)]
    if TRACE:
        rows += _replayed(Path(TRACE))
    rows += await _on_vllm(scale)
    return Report("Routing", rows, "Hits are prompt tokens that the engine's cache held.")


# --- in simulation --------------------------------------------------------------------------------


def _simulated(engines: int, gateways: int, count_s: float) -> list[Row]:
    work = Workload(tenants=TENANTS * engines, adapters=ADAPTERS * engines)
    fleet = Fleet(engines, gateways)
    fleet.keep([endless(work.session) for _ in range(SESSIONS * engines)], spread_s=WARM_S / 3)
    fleet.run(WARM_S)
    fleet.count_from_now()
    fleet.run(WARM_S + count_s)
    found = fleet.counted()
    what = f"{engines} engines, {gateways} gateways"
    decision_us = 1e6 * median(found.decision_s)
    return [
        _row(f"{what}: hits over an infinite engine's", found.hit_ratio, "x",
             at_least=HIT_TARGET.get(engines)),
        _row(f"{what}: load, p99 over mean", found.held_skew, "x", at_most=SKEW_TARGET),
        _row(f"{what}: work, p99 over mean", found.skew, "x"),
        _row(f"{what}: adapter loads over the least", found.load_ratio, "x", at_most=LOADS_TARGET),
        _row(f"{what}: TTFT p50, simulated", found.ttft_ms(0.5), "ms"),
        _row(f"{what}: TTFT p99, simulated", found.ttft_ms(0.99), "ms"),
        _row(f"{what}: CPU of a decision", decision_us, "us",
             at_most=DECISION_US if engines == 64 else None),
    ]  # fmt: skip


def _replayed(path: Path) -> list[Row]:
    fleet = Fleet(TRACE_ENGINES, 3, kv_tokens=TRACE_KV_TOKENS)
    fleet.count_from_now()
    trace = list(recorded(path, TRACE_REQUESTS))
    fleet.replay(trace)
    fleet.run(trace[-1][0] + 300)
    found = fleet.counted()
    what = f"{path.stem}, {found.requests} requests, {TRACE_ENGINES} engines"
    return [
        _row(f"{what}: hits over an infinite engine's", found.hit_ratio, "x"),
        _row(f"{what}: work, p99 over mean", found.skew, "x"),
        _row(f"{what}: TTFT p50, simulated", found.ttft_ms(0.5), "ms"),
    ]


def _row(
    what: str,
    value: float,
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    return Row(what, Figure.of([value]), unit, at_most=at_most, at_least=at_least)


# --- on vLLM --------------------------------------------------------------------------------------


@dataclass
class Held:
    """Results of one round of conversations."""

    cached: int = 0
    prompt: int = 0
    firsts_s: list[float] = field(default_factory=list)

    @property
    def hits(self) -> float:
        """Share of the prompt tokens that the cache held."""
        return self.cached / self.prompt


async def _on_vllm(scale: Scale) -> list[Row]:
    profile = EngineProfile.here(scale.model or str(demo.BASE), served_name="base")
    options = ["--model", profile.model, "--served-name", profile.name]
    alone = await _with_engines(1, {"one engine": ""}, options, scale)
    two = await _with_engines(2, ROUTERS, options, scale)
    most = Figure.of([one.hits for one in alone["one engine"]])
    rows = [Row("vLLM, one engine: hits", most, "of the prompts")]
    for name, held in two.items():
        hits = Figure.of([one.hits for one in held])
        rows += [
            Row(f"vLLM, two engines, {name}: hits", hits, "of the prompts"),
            Row(
                f"vLLM, two engines, {name}: hits over one engine's",
                hits.over(most),
                "x",
                at_least=HIT_TARGET[4] if name == OURS else None,
            ),
            Row(f"vLLM, two engines, {name}: TTFT p50", _ttft_ms(held, 0.5), "ms"),
            Row(f"vLLM, two engines, {name}: TTFT p99", _ttft_ms(held, 0.99), "ms"),
        ]
    return rows


def _ttft_ms(held: list[Held], share: float) -> Figure:
    return Figure.of([1000 * percentile(one.firsts_s, share) for one in held])


async def _with_engines(
    count: int, routers: dict[str, str], options: list[str], scale: Scale
) -> dict[str, list[Held]]:
    """Measure gateways with these routers in turns, all of them with the same engines."""
    async with AsyncExitStack() as stack:
        gateways = {}
        for number, (name, router) in enumerate(routers.items()):
            command = [*PYTHON, ROUTED, router] if router else lorikeet.GATEWAY
            gateways[name] = await stack.enter_async_context(
                lorikeet.gateway(f"gateway-{count}-{number}", command=command)
            )
        first = next(iter(gateways.values()))
        for number in range(count):
            await stack.enter_async_context(
                lorikeet.engine(first, f"engine-{count}-{number}", *options)
            )
        for one in gateways.values():
            await lorikeet.until_joined(one, count)
        await lorikeet.until_served(first, scale.key, "base")
        salts = itertools.count()
        turns = {
            name: partial(_hold, one.address, scale.key, f"{count}", salts)
            for name, one in gateways.items()
        }
        await take_turns(1, turns)  # warms up compilation
        return await take_turns(scale.engine_rounds, turns)


async def _hold(address: Address, key: str, engines: str, salts: Iterator[int]) -> Held:
    """Hold all conversations, each turn by turn, over CLIENTS connections. Their prompts share no
    prefix with an earlier round's."""
    held, salt = Held(), f"{engines}.{next(salts)}"
    waiting = iter([list(_conversation(number, salt, key)) for number in range(CONVERSATIONS)])
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(_client(address, waiting, held))
    return held


async def _client(address: Address, waiting: Iterator[list[bytes]], held: Held) -> None:
    connection = await Connection.open(address)
    try:
        for turns in waiting:
            for request in turns:
                reply = await connection.send(request)
                held.firsts_s.append(reply.first_s)
                held.cached += int(CACHED.findall(reply.body)[-1])
                held.prompt += int(PROMPT.findall(reply.body)[-1])
    finally:
        connection.close()


def _conversation(number: int, salt: str, key: str) -> Iterator[bytes]:
    """The requests of a conversation, which begins with the system prompt of its application."""
    application = number % APPLICATIONS
    said = [("system", f"{salt}.{application}: " + SENTENCE * (4 + 2 * application))]
    for turn in range(TURNS):
        said.append(("user", f"{number}.{turn}: {SENTENCE}"))
        messages = [{"role": role, "content": content} for role, content in said]
        yield post(
            lorikeet.CHAT,
            {
                "model": "base",
                "messages": messages,
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            key,
        )
        said.append(("assistant", f"{number}.{turn}: {SENTENCE}"))
