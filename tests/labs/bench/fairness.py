"""The effect of another tenant's flood on a tenant that asks one question at a time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

from asgiref.sync import sync_to_async

import demo
from tenants.models import ApiKey, Tenant
from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.client import Address, Connection, Refused, Reply
from tests.labs.bench.machinery.processes import PYTHON
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet
from tests.labs.bench.vllm import tenants_with_adapters

BASE = demo.MODEL_NAME
QUESTION = "Please answer briefly: what is the capital of Peru? "
PROMPT = QUESTION * 10
ANSWER_TOKENS = 8
FLOOD, FLOOD_TOKENS = 100, 300
"""Requests that the flooding tenant has in flight at any time, and output tokens of each."""
ALLOWED = 1.5
"""Factor by which a tenant's p99 TTFT may exceed its undisturbed one, besides one engine step."""
PAUSE_S = 0.5
"""Seconds after which a refused flooding client tries again."""

TENANTS, ASKED_PER_S, CROWD_TOKENS = 999, 50.0, 4
"""Tenants that ask the synthetic engine occasional questions, questions per second of all of them
together, and tokens of each answer."""
CROWD_FLOOD, CROWD_PACE, CROWD_PLACES = 200, 40, 64
"""Requests of the flooding tenant in flight, tokens per second of each stream, and concurrent
streams: the 999 need 5 of these on average, and the flood asks for more than there are."""


@dataclass(slots=True)
class Flood:
    """The answers that the flooding clients received."""

    replies: list[Reply] = field(default_factory=list)
    in_swing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after `swing` answers: requests now begin and end continually."""
    swing: int = 1
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, reply: Reply) -> None:
        """Record an answer."""
        self.replies.append(reply)
        if len(self.replies) >= self.swing:
            self.in_swing.set()


@dataclass(frozen=True, slots=True)
class Contest:
    """A tenant that asks one question at a time, and one that floods, given by their keys."""

    address: Address
    model: str
    quiet: Sequence[str]
    noisy: str
    flood: int
    """Requests that the noisy tenant has in flight at any time."""

    async def ask(self, count: int) -> list[float]:
        """Ask `count` questions one after another; returns the TTFT of each in seconds."""
        connection, took = await Connection.open(self.address), []
        try:
            for i in range(count):
                request = self._request(f"{i}: {PROMPT}", ANSWER_TOKENS, self.quiet[0])
                took.append((await connection.send(request)).first_s)
        finally:
            connection.close()
        return took

    @asynccontextmanager
    async def flooded(self) -> AsyncIterator[Flood]:
        """Run clients that always have a request in flight; yields their answers meanwhile."""
        flood = Flood(swing=self.flood // 2)
        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(self._client(flood)) for _ in range(self.flood)]
            await flood.in_swing.wait()
            flood.replies.clear()
            flood.swing = 1
            flood.in_swing.clear()
            yield flood
            await flood.in_swing.wait()
            for client in clients:
                client.cancel()

    async def _client(self, flood: Flood) -> None:
        connection = await Connection.open(self.address)
        try:
            for i in flood.numbers:
                request = self._request(f"flood {i}: {QUESTION}", FLOOD_TOKENS, self.noisy)
                try:
                    flood.add(await connection.send(request))
                except Refused:
                    await asyncio.sleep(PAUSE_S)
        finally:
            connection.close()

    def _request(self, text: str, tokens: int, key: str) -> bytes:
        return lorikeet.chat(self.model, text, max_tokens=tokens, stream=True, key=key)


class Crowd(Contest):
    """Many quiet tenants that take turns, at random times."""

    async def ask(self, count: int) -> list[float]:
        """Ask `count` questions; returns the TTFT of each in seconds."""
        chance = random.Random(count)  # the same times alone and beside the flood
        connections = [await Connection.open(self.address) for _ in self.quiet]
        asked = []
        try:
            async with asyncio.TaskGroup() as tasks:
                at = asyncio.get_running_loop().time()
                for i in range(count):
                    who = i % len(connections)
                    request = self._request(f"{i}: {QUESTION}", CROWD_TOKENS, self.quiet[who])
                    asked.append(tasks.create_task(connections[who].send(request)))
                    at += chance.expovariate(ASKED_PER_S)
                    await asyncio.sleep(at - asyncio.get_running_loop().time())
        finally:
            for connection in connections:
                connection.close()
        return [question.result().first_s for question in asked]


@dataclass(slots=True)
class Found:
    """Seconds by round: TTFT of each question alone and beside the flood; the flood's step time."""

    alone: list[list[float]] = field(default_factory=list)
    beside: list[list[float]] = field(default_factory=list)
    step: list[float] = field(default_factory=list)


async def run(scale: Scale) -> Report:
    """Measure one quiet tenant on vLLM, and 999 on the synthetic engine."""
    rows = _rows("vLLM, one tenant", await _one(scale))
    rows += _rows(f"synthetic, {TENANTS} tenants", await _many(scale))
    return Report(
        "One question at a time, alone and beside another tenant's flood",
        rows,
        f"On vLLM {FLOOD} requests of {FLOOD_TOKENS} tokens are always under way. On the synthetic "
        f"engine of {CROWD_PLACES} streams {CROWD_FLOOD} are, and the {TENANTS} ask "
        f"{ASKED_PER_S:g} questions/s together.",
    )


async def _one(scale: Scale) -> Found:
    options = ["--model", str(demo.BASE), "--served-name", BASE]
    async with (
        lorikeet.gateway("gateway-fair") as gateway,
        lorikeet.engine(gateway, "engine-fair", *options),
    ):
        await lorikeet.until_served(gateway, scale.key, BASE)
        (_, quiet), (_, noisy), *_ = await tenants_with_adapters(demo.TINY)
        contest = Contest(gateway.address, BASE, [quiet], noisy, FLOOD)
        return await _rounds(contest, scale.fairness_rounds, scale.questions)


async def _many(scale: Scale) -> Found:
    noisy, *quiet = await sync_to_async(_keys)("crowd", 1 + TENANTS)
    bounds = {
        "--tokens-per-second": CROWD_PACE,
        "--max-num-seqs": CROWD_PLACES,
    }
    options = [part for name, value in bounds.items() for part in (name, str(value))]
    command = [*PYTHON, "-m", "tests.labs.bench.machinery.roomy_engine"]
    async with (
        lorikeet.gateway("gateway-crowd") as gateway,
        lorikeet.engine(
            gateway, "engine-crowd", "--model", servers.MODEL, *options, command=command
        ),
    ):
        await lorikeet.until_served(gateway, noisy, servers.MODEL)
        crowd = Crowd(gateway.address, servers.MODEL, quiet, noisy, CROWD_FLOOD)
        return await _rounds(crowd, scale.fairness_rounds, scale.crowd_questions)


def _keys(prefix: str, count: int) -> list[str]:
    """Keys of `count` new tenants."""
    slugs = [f"{prefix}-{i}" for i in range(count)]
    tenants = Tenant.objects.bulk_create([Tenant(slug=slug, name=slug) for slug in slugs])
    return [ApiKey.objects.issue(one, name="bench", scopes=["inference"])[1] for one in tenants]


async def _rounds(contest: Contest, rounds: int, questions: int) -> Found:
    await contest.ask(questions)  # the first questions look up keys
    found = Found()
    for _ in range(rounds):
        found.alone.append(await contest.ask(questions))
        async with contest.flooded() as flood:
            found.beside.append(await contest.ask(questions))
        found.step.append(median(reply.step_s for reply in flood.replies))
    return found


def p99(values: Iterable[float]) -> float:
    """The value that one in a hundred exceeds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def _rows(where: str, found: Found) -> list[Row]:
    def ms(rounds: list[list[float]], of: Callable[[list[float]], float]) -> Figure:
        return Figure.of([1000 * of(values) for values in rounds])

    quiet, hit = ms(found.alone, p99), ms(found.beside, p99)
    step = Figure.of([1000 * value for value in found.step])
    allowed = [ALLOWED * a + b for a, b in zip(quiet.values, step.values, strict=True)]
    return [
        Row(f"{where}: p50 TTFT alone", ms(found.alone, median), "ms"),
        Row(f"{where}: the same beside the flood", ms(found.beside, median), "ms"),
        Row(f"{where}: p99 TTFT alone", quiet, "ms"),
        Row(f"{where}: the same beside the flood", hit, "ms"),
        Row(f"{where}: a step of the flood", step, "ms"),
        Row(
            f"{where}: p99 over {ALLOWED:g} alone and a step", hit.over(Figure.of(allowed)), "x", 1
        ),
    ]
