"""The throughput of one gateway process, with keys checked and usage written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from asgiref.sync import sync_to_async

from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.measure import Samples, Side
from tests.labs.bench.machinery.processes import cpu_of, postgres_cpu_s
from tests.labs.bench.machinery.report import Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet, peers

CLIENTS = 64
STREAM_TOKENS = 64
PACE = 40.0
"""Tokens per second of a stream at a real engine's pace."""

OURS, ROUTER, MOCK = "Lorikeet", "vllm-router", "mock alone"
Sides = dict[str, Side]
Found = dict[str, Samples]


async def run(scale: Scale) -> Report:
    """Measure whole answers, streams at full speed, and streams at a real engine's pace.

    Raises:
        Failed: PostgreSQL does not hold exactly the usage of the answers.
    """
    events, tokens = await sync_to_async(lorikeet.recorded)()
    async with lorikeet.gateway() as gateway:
        async with _sides(gateway, scale.key, pace=0.0) as sides:
            whole = await _measure(sides, scale.rounds, _whole(scale.requests, scale.key))
            streams = await _measure(sides, scale.rounds, _streams(scale.streams, scale.key))
        async with _sides(gateway, scale.key, pace=PACE) as sides:
            paced = await _measure(sides, scale.rounds, _streams(scale.paced_streams, scale.key))
        ours = [one.tally for found in (whole, streams, paced) for one in found[OURS].rounds]
        first = 2  # a one-token request to each engine, to see that it is served
        events += first + sum(tally.requests for tally in ours)
        tokens += first + sum(tally.tokens for tally in ours)
        await lorikeet.until_recorded(events, tokens)
    return Report(
        f"One gateway process, {CLIENTS} clients, synthetic engine",
        [*_whole_rows(whole), *_stream_rows(streams), *_paced_rows(paced)],
        f"{events} usage events with {tokens} output tokens are in PostgreSQL, as answered.",
    )


@asynccontextmanager
async def _sides(gateway: lorikeet.Gateway, key: str, *, pace: float) -> AsyncIterator[Sides]:
    rate = ["--tokens-per-second", str(pace)]
    async with (
        lorikeet.engine(gateway, f"engine-{pace:.0f}", *servers.ENGINE_OPTIONS, *rate) as engine,
        peers.server("mock", pace) as mock,
        peers.router(mock) as router,
    ):
        await lorikeet.until_served(gateway, key, servers.MODEL)
        ours = {
            "front": cpu_of(gateway.child),
            "engine": cpu_of(engine),
            "PostgreSQL": postgres_cpu_s,
        }
        upstream = {"engine": cpu_of(mock.child)}
        front = {"front": cpu_of(router.child)}
        yield {
            OURS: Side(gateway.address, ours),
            ROUTER: Side(router.address, front | upstream),
            MOCK: Side(mock.address, upstream),
        }


async def _measure(sides: Sides, rounds: int, requests: list[bytes]) -> Found:
    """Measure every side in turns with the same requests; only Lorikeet checks the key."""
    turns = {name: partial(side.answer, requests, clients=CLIENTS) for name, side in sides.items()}
    return {name: Samples(found) for name, found in (await take_turns(rounds, turns)).items()}


def _whole(count: int, key: str) -> list[bytes]:
    return [
        lorikeet.chat(servers.MODEL, f"{i}: hello", max_tokens=1, key=key) for i in range(count)
    ]


def _streams(count: int, key: str) -> list[bytes]:
    return [
        lorikeet.chat(servers.MODEL, f"{i}: hello", max_tokens=STREAM_TOKENS, stream=True, key=key)
        for i in range(count)
    ]


def _whole_rows(found: Found) -> list[Row]:
    per_s = {name: samples.requests_per_s() for name, samples in found.items()}
    rows = [Row(f"whole answers: {name}", figure, "requests/s") for name, figure in per_s.items()]
    return [
        *rows,
        Row("whole answers: Lorikeet over vllm-router", per_s[OURS].over(per_s[ROUTER]), "x"),
        Row("CPU of the gateway process", found[OURS].ms_per_request("front"), "ms/request"),
        Row("CPU of vllm-router", found[ROUTER].ms_per_request("front"), "ms/request"),
        Row("CPU of agent and its engine", found[OURS].ms_per_request("engine"), "ms/request"),
        Row("CPU of the mock", found[ROUTER].ms_per_request("engine"), "ms/request"),
        Row("CPU of PostgreSQL", found[OURS].ms_per_request("PostgreSQL"), "ms/request"),
    ]


def _stream_rows(found: Found) -> list[Row]:
    per_s = {name: samples.tokens_per_s() for name, samples in found.items()}
    rows = [Row(f"streams flat out: {name}", figure, "tokens/s") for name, figure in per_s.items()]
    merged = found[OURS].events_per_token()
    return [
        *rows,
        Row("streams flat out: Lorikeet over vllm-router", per_s[OURS].over(per_s[ROUTER]), "x"),
        Row("events per token: Lorikeet, which merges", merged, ""),
        Row("events per token: vllm-router", found[ROUTER].events_per_token(), ""),
    ]


def _paced_rows(found: Found) -> list[Row]:
    unit = "s/1,000 tokens"
    return [
        Row(f"streams at {PACE:g} tokens/s each: Lorikeet", found[OURS].tokens_per_s(), "tokens/s"),
        Row("the same: vllm-router", found[ROUTER].tokens_per_s(), "tokens/s"),
        Row("events per token: Lorikeet", found[OURS].events_per_token(), ""),
        Row("CPU of the gateway process", found[OURS].s_per_1000_tokens("front"), unit),
        Row("CPU of vllm-router", found[ROUTER].s_per_1000_tokens("front"), unit),
        Row("CPU of agent and its engine", found[OURS].s_per_1000_tokens("engine"), unit),
        Row("CPU of the mock", found[ROUTER].s_per_1000_tokens("engine"), unit),
    ]
