"""The same traffic (`inference.load`) for Lorikeet, `vllm serve`, and routers in front of it.

Tenants ask by Zipf, at times of a Poisson process, mostly for their own adapters. In a second kind
of traffic the least popular of them floods for a third of the time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

from inference.load.arrivals import poisson
from inference.load.callers import LoadCaller
from inference.load.endpoint import HTTPEndpoint
from inference.load.figures import LatencyTargets, LoadFigures, Spread
from inference.load.lengths import PUBLIC
from inference.load.prompts import PromptText
from inference.load.scenarios import LoadScenario, TenantFlood
from inference.load.sending import LoadRun
from tests.labs.bench.machinery.client import Address
from tests.labs.bench.machinery.processes import url_of
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet, peers
from tests.labs.bench.vllm import (
    demo_on,
    folders_of,
    options_of,
    same_profile,
    tenants_with_adapters,
)

SHRINK, LONGEST = 8, 1024
"""Azure's conversations with lengths divided by 8, for the tiny model."""
FLOOD_TIMES = 10
"""The flood's rate over that of all others."""
WARM_S = 6.0
CONCURRENCY, TIMEOUT_S = 1000, 60.0
TARGETS = LatencyTargets(ttft_s=0.5, tpot_s=0.1)
WARM, STEADY, FLOOD = "warm", "steady", "flood"
Sides = dict[str, tuple[Address, str]]
"""With a key for all tenants; Lorikeet's tenants have their own."""


async def run(scale: Scale) -> Report:
    """Send both kinds of traffic to each side, in turns."""
    async with _sides(scale) as (sides, callers):
        rows = []
        for traffic in (WARM, STEADY, FLOOD):
            turns = {
                name: partial(_sent, scale, traffic, address, _with(callers, key))
                for name, (address, key) in sides.items()
            }
            found = await take_turns(1 if traffic == WARM else scale.traffic_rounds, turns)
            if traffic == WARM:  # the first requests load adapters and fill caches
                continue
            rows += [row for name, rounds in found.items() for row in _rows(traffic, name, rounds)]
    return Report(
        f"Traffic of three tenants, {scale.traffic_rate:g} requests/s",
        rows,
        f"Good: {TARGETS}. Latencies are of the tenants that do not flood, from planned times.",
    )


@asynccontextmanager
async def _sides(scale: Scale) -> AsyncIterator[tuple[Sides, list[LoadCaller]]]:
    """The addresses of all sides, and the tenants in order of popularity."""
    served = demo_on(scale.model)
    profile, adapters = same_profile(served), folders_of(served)
    async with (
        lorikeet.gateway() as gateway,
        lorikeet.engine(gateway, "engine-vllm", *options_of(profile)),
        peers.vllm_serve(profile, adapters, lean=True) as vllm,
        peers.router(vllm) as router,
    ):
        await lorikeet.until_served(gateway, scale.key, profile.name)
        pairs = await tenants_with_adapters(served)
        callers = [LoadCaller(name, (name, profile.name), key) for name, key in pairs]
        sides = {
            "Lorikeet": (gateway.address, ""),
            "vllm serve": (vllm.address, ""),
            "vllm-router": (router.address, ""),
        }
        if not peers.LITELLM.exists():
            yield sides, callers
            return
        async with peers.litellm(vllm, [profile.name, *adapters]) as litellm:
            yield sides | {"LiteLLM": (litellm.address, peers.LITELLM_KEY)}, callers


def _with(callers: list[LoadCaller], key: str) -> list[LoadCaller]:
    return [replace(one, key=key) if key else one for one in callers]


async def _sent(
    scale: Scale, traffic: str, address: Address, callers: list[LoadCaller]
) -> LoadFigures:
    """Send the traffic; returns the figures of the tenants that do not flood."""
    noisy, rate, third_s = callers[-1], scale.traffic_rate, scale.traffic_s / 3
    scenario = LoadScenario(
        callers=callers,
        times=poisson,
        rate=rate,
        duration_s=WARM_S if traffic == WARM else scale.traffic_s,
        lengths=PUBLIC["azure-conversation"].shrunk(SHRINK),
        longest=LONGEST,
        flood=TenantFlood(noisy, FLOOD_TIMES * rate, third_s, third_s)
        if traffic == FLOOD
        else None,
        thrash=traffic == WARM,
    )
    # The text of a round is its own: no side finds prompts of an earlier round in its cache.
    text = PromptText(str(time.time_ns()))
    named = {one.tenant: one for one in callers}
    endpoint = HTTPEndpoint(f"{url_of(address)}/v1", named, text)
    async with aclosing(endpoint):
        await endpoint.measure(callers[0])
        sent = LoadRun(endpoint, CONCURRENCY, TIMEOUT_S)
        await sent.send(scenario.plan())
    quiet = [one for one in sent.outcomes if one.request.tenant != noisy.tenant]
    return LoadFigures.of(quiet, TARGETS, sent.wall_s)


def _rows(traffic: str, side: str, rounds: list[LoadFigures]) -> list[Row]:
    what = f"{traffic}, {side}"
    return [
        Row(f"{what}: p50 TTFT", _ms([one.ttft for one in rounds], "p50"), "ms"),
        Row(f"{what}: p99 TTFT", _ms([one.ttft for one in rounds], "p99"), "ms"),
        Row(f"{what}: p50 TPOT", _ms([one.tpot for one in rounds], "p50"), "ms"),
        Row(f"{what}: p99 end to end", _ms([one.e2e for one in rounds], "p99"), "ms"),
        Row(f"{what}: good", Figure.of([100 * one.good / one.planned for one in rounds]), "%"),
        Row(f"{what}: sender's delay, p99", _ms([one.late for one in rounds], "p99"), "ms"),
    ]


def _ms(spreads: list[Spread | None], name: str) -> Figure:
    return Figure.of([1000 * one.percentiles[name] if one else float("nan") for one in spreads])
