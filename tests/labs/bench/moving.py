"""The cost of streams that can move to another engine, and the gap that a reader sees in a move.

The cost: a gateway that keeps what a move needs (bodies, token ids) compared with one that keeps
nothing (LORIKEET_MOVABLE_BYTES=0), each with a synthetic engine. The gap: of two real vLLM engines,
the one that generates a stream with PROMPT_TOKENS of context is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import demo
from gateway.local.supervisor import Child
from inference.agent.engines.profile import EngineProfile
from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.client import post
from tests.labs.bench.machinery.gaps import Timed
from tests.labs.bench.machinery.load import drive
from tests.labs.bench.machinery.measure import Samples, Side
from tests.labs.bench.machinery.processes import POLL_S, Failed, cpu_of
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet
from tests.labs.bench.streams import Memory, memory_per_stream

MOVABLE, FIXED = "movable", "fixed"
SIDES: dict[str, dict[str, str]] = {MOVABLE: {}, FIXED: {"LORIKEET_MOVABLE_BYTES": "0"}}
COST_TARGET = 1.05
"""Ratio of the costs with and without: at most 5 % more."""
CLIENTS = 64
PACE = 40.0
"""Tokens per second of each stream."""
ANSWER_TOKENS = 64

PROMPT_TOKENS = 2_000
"""Lower bound on the tokens of each prompt."""
SENTENCE = "The quick brown fox jumps over the lazy dog while nobody is looking. "
SENTENCES = 62
TOKENS = 1_500
"""Length of a stream whose engine is killed as soon as that engine is identified."""
ON_THEIR_WAY = 8
"""Chunks that may still arrive after the engine was killed. Later gaps have another cause: some
tokens have no text."""
GAP_TARGET_MS = 1_000
WARMING = 4
"""Concurrent requests that warm up both engines with such a prompt."""
FOUND_S = 30.0
"""Longest wait until an engine reports that it generates, or that it no longer does."""


async def run(scale: Scale) -> Report:
    """Measure the cost on the synthetic engine, then the gap on vLLM."""
    rows = await _cost(scale) + await _memory(scale) + await _gap(scale)
    return Report(
        "Moves",
        rows,
        f"With over without: gateways that keep what a move needs, and that do not. A gap: between "
        f"the last chunk of a stream with {PROMPT_TOKENS:,} tokens of prompt whose engine was "
        "killed, and the next one.",
    )


# --- what it costs -------------------------------------------------------------------------------


@asynccontextmanager
async def _sides(key: str) -> AsyncIterator[dict[str, Side]]:
    async with AsyncExitStack() as stack:
        sides = {}
        for name, given in SIDES.items():
            gateway = await stack.enter_async_context(lorikeet.gateway(f"gateway-{name}", **given))
            options = [*servers.ENGINE_OPTIONS, "--tokens-per-second", str(PACE)]
            engine = await stack.enter_async_context(
                lorikeet.engine(gateway, f"engine-{name}", *options)
            )
            await lorikeet.until_served(gateway, key, servers.MODEL)
            parts = {"gateway": cpu_of(gateway.child), "agent": cpu_of(engine)}
            sides[name] = Side(gateway.address, parts)
        yield sides


async def _cost(scale: Scale) -> list[Row]:
    async with _sides(scale.key) as sides:
        requests = [
            lorikeet.chat(
                servers.MODEL, f"{i}: hello", max_tokens=ANSWER_TOKENS, stream=True, key=scale.key
            )
            for i in range(scale.paced_streams)
        ]
        turns = {
            name: partial(side.answer, requests, clients=CLIENTS) for name, side in sides.items()
        }
        await take_turns(1, turns)
        found = await take_turns(scale.rounds, turns)
    movable, fixed = Samples(found[MOVABLE]), Samples(found[FIXED])
    what, unit = f"streams of {PACE:g} tokens/s: CPU of", "s/1,000 tokens"
    rows = [
        Row(f"{what} {part}, {name}", side.s_per_1000_tokens(part), unit)
        for part in ("gateway", "agent")
        for name, side in ((MOVABLE, movable), (FIXED, fixed))
    ]
    both = [side.s_per_1000_tokens("gateway", "agent") for side in (movable, fixed)]
    ratio = both[0].over(both[1])
    return [*rows, Row(f"{what} both, with over without", ratio, "x", at_most=COST_TARGET)]


async def _memory(scale: Scale) -> list[Row]:
    found: dict[str, Memory] = {}
    for name, given in SIDES.items():
        found[name] = await memory_per_stream(scale, name, **given)
    what = f"{scale.open_streams:,} open streams: memory of"
    rows = [
        Row(f"{what} {part}, {name}", Figure.of([getattr(found[name], part)]), "KiB/stream")
        for part in ("gateway", "agent")
        for name in SIDES
    ]
    both = [found[name].gateway + found[name].agent for name in (MOVABLE, FIXED)]
    ratio = Figure.of([both[0] / both[1]])
    return [*rows, Row(f"{what} both, with over without", ratio, "x", at_most=COST_TARGET)]


# --- how long a reader waits ----------------------------------------------------------------------


async def _gap(scale: Scale) -> list[Row]:
    """Kill one of two engines in each round; a new one replaces it in the next."""
    profile = EngineProfile.here(scale.model or str(demo.BASE), served_name="base")
    options = ["--model", profile.model, "--served-name", profile.name]
    gaps_ms = []
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(lorikeet.gateway("gateway-moves"))
        engines: dict[str, Child] = {}
        for number in range(1 + scale.engine_rounds):
            name = f"engine-moves-{number}"
            engines[name] = await stack.enter_async_context(
                lorikeet.engine(gateway, name, "--id", name, *options)
            )
            if number == 0:
                await lorikeet.until_served(gateway, scale.key, "base")
                continue
            await lorikeet.until_joined(gateway, len(engines))
            warming = [_request(scale.key, f"{number}.{at}", tokens=8) for at in range(WARMING)]
            await drive(gateway.address, warming, clients=WARMING)
            await _until_idle(gateway)
            gaps_ms.append(await _killed(gateway, engines, scale.key, number))
    return [Row("vLLM, an engine is killed: gap", Figure.of(gaps_ms), "ms", at_most=GAP_TARGET_MS)]


async def _killed(
    gateway: lorikeet.Gateway, engines: dict[str, Child], key: str, number: int
) -> float:
    """Kill a stream's engine and remove it from `engines`; returns the stream's gap in ms.

    Raises:
        Failed: the stream was incomplete.
        TimeoutError: no engine reported that it generates.
    """
    connection = await Timed.open(gateway.address)
    sent = asyncio.create_task(connection.send(_request(key, f"{number}", tokens=TOKENS)))
    try:
        engine = engines.pop(await _generating(gateway))
        killed_at = len(connection.arrivals)
        engine.kill_group()
        reply = await sent
    finally:
        sent.cancel()
        connection.close()
    if reply.completion_tokens != TOKENS:
        raise Failed(f"a stream of {TOKENS} tokens had {reply.completion_tokens} after a move")
    return max(connection.gaps_ms[killed_at - 1 :][:ON_THEIR_WAY])


async def _generating(gateway: lorikeet.Gateway) -> str:
    """Id of the engine that generates.

    Raises:
        TimeoutError: no engine reports that it generates.
    """
    async with asyncio.timeout(FOUND_S):
        while True:
            for engine in await lorikeet.fleet(gateway):
                if engine["running"]:
                    return str(engine["id"])
            await asyncio.sleep(POLL_S)


async def _until_idle(gateway: lorikeet.Gateway) -> None:
    async with asyncio.timeout(FOUND_S):
        while True:
            if not any(engine["running"] for engine in await lorikeet.fleet(gateway)):
                return
            await asyncio.sleep(POLL_S)


def _request(key: str, name: str, *, tokens: int) -> bytes:
    """A request for a stream of `tokens` tokens, with a prompt that no engine has cached."""
    text = f"{name}: " + SENTENCE * SENTENCES
    return post(
        lorikeet.CHAT,
        {
            "model": "base",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        key,
    )
