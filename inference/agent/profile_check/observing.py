"""Asks an engine everything that a profile's check compares, and measures it.

Answers are greedy. Each is given alone, all are given again at once by two tenants, and each is
continued from its middle by the last engine, as if another had begun it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from inference.agent.engines.engine import Engine, EngineWork, LocalAdapter, Meter
from inference.agent.engines.profiles.proofs import ProofSide
from inference.link.accounts import Usage
from inference.link.wire import Resume
from inference.operations.registry import OPERATIONS

QUESTIONS = (
    "What is the capital of Peru?",
    "Count from 1 to 15.",
    "What is 12 plus 7?",
    "What is your refund policy?",
)
CITIES = ["Lima", "Nairobi", "Tokyo"]
HELD = "Which city is the capital of Japan?"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}
LONG = "Please talk about sums, cities and numbers. " * 12
"""Longer than two of the cache's blocks."""
ANSWER_TOKENS = 40
SPEED_TOKENS, STREAMS, ROUNDS = 64, 8, 3


class ProfileObservations(msgspec.Struct):
    """What engines with one profile did. Answers are token ids, by who was asked what."""

    alone: dict[str, list[int]] = {}
    together: dict[str, list[int]] = {}
    continued: dict[str, list[int]] = {}
    logprobs: list[float] = []
    """Log-probabilities of the same texts' tokens, by the base model and each adapter."""
    generated: dict[str, list[tuple[int, float]]] = {}
    """Tokens of answers with their log-probabilities."""
    faults: list[str] = []
    side: ProofSide | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    question: str
    adapter: LocalAdapter | None
    held: bool = False


@dataclass(slots=True)
class _Got:
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    first_s: float = math.inf
    meter: Meter = field(default_factory=Meter)


async def observe(
    engines: Sequence[Engine], adapters: Mapping[str, LocalAdapter], ready_s: float
) -> ProfileObservations:
    """Ask the first engine, and the last one to continue. `ready_s`: how long starting took.

    Leaves the adapters loaded.
    """
    first, last = engines[0], engines[-1]
    for engine, adapter in itertools.product(engines, adapters.values()):
        await engine.load(adapter)
    cases = list(_cases(adapters))
    found = ProfileObservations()
    for case in cases:
        got = await _ask(first, case)
        found.alone[case.name] = got.ids
        if case.held and not _fits(got.text):
            found.faults.append(f"{case.name}: {got.text!r} does not fit its schema")
        found.continued[case.name] = await _continued(last, case, got)
        if not case.held:
            scored = await _ask(first, case, logprobs=True)
            found.generated[case.name] = list(zip(scored.ids, scored.logprobs, strict=False))
    mixed = [_ask(engines[at % len(engines)], case) for at, case in enumerate(cases)]
    for case, got in zip(cases, await asyncio.gather(*mixed), strict=True):
        found.together[case.name] = got.ids
    found.logprobs = await _logprobs(first, list(adapters.values()))
    found.faults += await crossings(first, adapters)
    found.side = await _measured(first, ready_s)
    return found


def _cases(adapters: Mapping[str, LocalAdapter]) -> Any:
    for who, adapter in {"base": None, **adapters}.items():
        for question in QUESTIONS:
            yield _Case(f"{who}: {question}", question, adapter)
        yield _Case(f"{who}, schema: {HELD}", HELD, adapter, held=True)


def _fits(text: str) -> bool:
    try:
        read = json.loads(text)
    except ValueError:
        return False
    return bool(read["city"] in CITIES and isinstance(read["sure"], bool))


async def _ask(engine: Engine, case: _Case, salt: str = "", **body: Any) -> _Got:
    """The answer under a salt that nothing was cached with, unless one is given."""
    more = {"response_format": _FORMAT} if case.held else {}
    return await _run(engine, _work(case, salt or uuid4().hex, **more, **body))


_FORMAT = {"type": "json_schema", "json_schema": {"name": "capital", "schema": SCHEMA}}


def _work(case: _Case, salt: str, **body: Any) -> EngineWork:
    asked = {"messages": [{"role": "user", "content": case.question}], "stream": True}
    return EngineWork(
        id=f"check-{uuid4().hex}",
        operation=OPERATIONS.named("chat"),
        body=asked | {"temperature": 0.0, "max_tokens": ANSWER_TOKENS} | body,
        model="check",
        salt=salt,
        adapter=case.adapter,
        wants_ids=True,
    )


async def _run(engine: Engine, work: EngineWork) -> _Got:
    got, began = _Got(meter=work.meter), time.monotonic()
    async for output in engine.generate(work):
        got.first_s = min(got.first_s, time.monotonic() - began)
        got.text += output.text
        got.ids += output.ids.get(0, [])
        for chunk in output.chunks:
            for choice in json.loads(chunk)["choices"]:
                tokens = (choice.get("logprobs") or {}).get("content") or ()
                got.logprobs += [one["logprob"] for one in tokens]
    return got


async def _continued(engine: Engine, case: _Case, whole: _Got) -> list[int]:
    """The answer of which `engine` was given the first half."""
    begun = whole.ids[: len(whole.ids) // 2]
    if not begun:
        return whole.ids
    work = _work(case, uuid4().hex, **({"response_format": _FORMAT} if case.held else {}))
    prompt = whole.meter.prompt_tokens
    work.attempt, work.meter = 2, Meter(prompt, 0, len(begun))
    work.resume = Resume({0: begun}, {}, Usage(prompt, 0, len(begun)))
    return begun + (await _run(engine, work)).ids


async def _logprobs(engine: Engine, adapters: list[LocalAdapter]) -> list[float]:
    values: list[float] = []
    for adapter in adapters:
        for prompt in (await engine.probe(adapter)).prompts:
            values += prompt.base + prompt.adapted
    return values


async def crossings(engine: Engine, adapters: Mapping[str, LocalAdapter]) -> list[str]:
    """Ask one long question as several tenants and adapters: only who asked before may find it in
    the cache."""
    one, other = uuid4().hex, uuid4().hex
    base = _Case("", LONG, None)

    async def cached(case: _Case, salt: str) -> int:
        return (await _ask(engine, case, salt, max_tokens=2)).meter.cached_tokens

    await cached(base, one)
    faults = [] if await cached(base, one) else ["the cache finds no prompt at all"]
    if await cached(base, other):
        faults.append("a prompt of one tenant was found in the cache by another")
    for name, adapter in adapters.items():
        if await cached(_Case("", LONG, adapter), one):
            faults.append(f"a prompt of another model was found in the cache by {name}")
    return faults


async def _measured(engine: Engine, ready_s: float) -> ProofSide:
    case = _Case("", QUESTIONS[1], None)
    firsts = [(await _ask(engine, case)).first_s for _ in range(2 * ROUNDS)]
    stats = engine.stats()
    drafted, accepted = stats.drafted_tokens, stats.accepted_tokens
    single_tps, _ = await _speed(engine, case, 1)
    eight_tps, cpu_ms = await _speed(engine, case, STREAMS)
    return ProofSide(
        ready_s=ready_s,
        ttft_s=min(firsts),
        single_tps=single_tps,
        eight_tps=eight_tps,
        cpu_ms=cpu_ms,
        memory_bytes=_memory(),
        acceptance=accepted / drafted if drafted else None,
    )


async def _speed(engine: Engine, case: _Case, streams: int) -> tuple[float, float]:
    """Tokens/s, and CPU time for each token in milliseconds: the best of some rounds, which other
    load of the machine disturbed least."""
    best, least = 0.0, math.inf
    for _ in range(ROUNDS):
        began, used = time.monotonic(), _cpu_s()
        body: dict[str, Any] = {"max_tokens": SPEED_TOKENS, "ignore_eos": True}
        got = await asyncio.gather(*(_ask(engine, case, **body) for _ in range(streams)))
        tokens = sum(len(one.ids) for one in got)
        best = max(best, tokens / (time.monotonic() - began))
        least = min(least, 1000 * (_cpu_s() - used) / tokens)
    return best, least


def _cpu_s() -> float:
    """CPU seconds of this process and its children so far."""
    ticks = (_fields(pid) for pid in _tree("self"))
    return sum(int(one[11]) + int(one[12]) for one in ticks) / os.sysconf("SC_CLK_TCK")


def _fields(pid: str) -> list[str]:
    """Of /proc/PID/stat, those after the name in brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _memory() -> int:
    """Bytes of this process and its children, shared pages counted once."""
    return sum(_proportional(pid) for pid in _tree("self"))


def _tree(pid: str) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for file in tasks for child in file.read_text().split()]
    return [pid, *(one for child in children for one in _tree(child))]


def _proportional(pid: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
