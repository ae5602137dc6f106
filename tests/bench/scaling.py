"""The whole fleet in simulation: ten thousand tenants, a hundred thousand adapters.

One after another: ordinary traffic; a few tenants that send far more than everybody else, who have
a limit; the same without one; and 5 % of the engines die at once.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from statistics import median

from tests.bench.machinery.report import Figure, Report, Row
from tests.bench.machinery.scale import Scale
from tests.bench.routing import LOADS_TARGET, SESSIONS, SKEW_TARGET, WARM_S
from tests.bench.simulation.engine import PLACES
from tests.bench.simulation.fleet import Figures, Fleet, endless
from tests.bench.simulation.traces import Turn, Workload, blocks_after

ENGINES, GATEWAYS, TENANTS, ADAPTERS = 512, 16, 10_000, 100_000
"""With fewer engines there are as many fewer tenants and adapters."""
PHASE_S, FLOOD_S = 60, 20
FLOODS = [f"flood-{number}" for number in range(10)]
FLOOD_SESSIONS = 64
"""For each engine: alone as many as run on it at once."""
TOKENS_PER_MINUTE = 5_000
"""Of each flood, for each engine: all ten together a fifteenth of what the fleet computes."""
DEAD = 0.05


async def run(scale: Scale) -> Report:
    """Simulate all four."""
    engines = scale.whole_engines
    tenants, adapters = TENANTS * engines // ENGINES, ADAPTERS * engines // ENGINES
    work = Workload(tenants, adapters)
    fleet = Fleet(engines, GATEWAYS)
    fleet.keep([endless(work.session) for _ in range(SESSIONS * engines)], WARM_S / 3)
    fleet.run(WARM_S)
    ordinary = _phase(fleet, PHASE_S)
    limited = _flooded(fleet, engines, TOKENS_PER_MINUTE * engines)
    unlimited = _flooded(fleet, engines, None)
    fleet.run(fleet.now + PHASE_S)
    dying = list(fleet.engines)[: max(1, int(DEAD * engines))]
    fleet.kill(dying)
    deaths = _phase(fleet, PHASE_S)
    return Report(
        f"The whole fleet, simulated: {engines} engines, {GATEWAYS} gateways, {tenants:,} tenants, "
        f"{adapters:,} adapters",
        [
            *_ordinary_rows(ordinary, fleet),
            *_flood_rows(limited, unlimited, ordinary),
            *_limit_rows(limited, TOKENS_PER_MINUTE * engines),
            *_death_rows(deaths, ordinary, len(dying)),
        ],
    )


def _phase(fleet: Fleet, seconds: float) -> Figures:
    fleet.count_from_now()
    fleet.run(fleet.now + seconds)
    return fleet.counted()


def _flooded(fleet: Fleet, engines: int, tokens_per_minute: int | None) -> Figures:
    """With the floods, which end with it."""
    limits = {} if tokens_per_minute is None else dict.fromkeys(FLOODS, tokens_per_minute)
    fleet.limit(limits)
    ends_at = fleet.now + FLOOD_S
    fleet.keep(
        [_flood(fleet, FLOODS[at % len(FLOODS)], at, ends_at)
         for at in range(FLOOD_SESSIONS * engines)],
        spread_s=1,
    )  # fmt: skip
    return _phase(fleet, FLOOD_S)


def _flood(fleet: Fleet, tenant: str, seed: int, ends_at: float) -> Iterator[Turn]:
    """Prompts of which nothing is cached, one after another without a pause."""
    rng = random.Random(seed)
    for number in itertools.takewhile(lambda _: fleet.now < ends_at, itertools.count()):
        blocks = blocks_after([hash((seed, number))], rng, 8)
        yield Turn(0.0, tenant, None, blocks, blocks_after(blocks, rng, 2), 200)


def _ordinary_rows(found: Figures, fleet: Fleet) -> list[Row]:
    resident = sum(len(one.resident) for one in fleet.engines.values())
    return [
        _row("ordinary: requests", found.requests / PHASE_S, "/s"),
        _row("ordinary: hits over an infinite engine's", found.hit_ratio, "x"),
        _row("ordinary: load, p99 over mean", found.held_skew, "x", at_most=SKEW_TARGET),
        _row("ordinary: work, p99 over mean", found.skew, "x"),
        _row("ordinary: adapter loads over the least", found.load_ratio, "x", at_most=LOADS_TARGET),
        _row("ordinary: requests that found their adapter loaded", found.found_loaded, ""),
        _row("ordinary: places with an adapter", resident / PLACES / len(fleet.engines), "of all"),
        _row("ordinary: TTFT p50", found.ttft_ms(0.5), "ms"),
        _row("ordinary: TTFT p99", found.ttft_ms(0.99), "ms"),
        _row("ordinary: CPU of a decision", 1e6 * median(found.decision_s), "us"),
        _row("ordinary: beginnings known to a gateway", fleet.known_beginnings, ""),
    ]


def _flood_rows(limited: Figures, unlimited: Figures, ordinary: Figures) -> list[Row]:
    rows: list[Row] = []
    for what, found in (("flood with limits", limited), ("flood without", unlimited)):
        others_ms = found.ttft_ms(0.99, FLOODS)
        shares = [found.served[tenant] for tenant in FLOODS]
        rows += [
            _row(f"{what}: share of the work", sum(shares) / sum(found.served.values()), ""),
            _row(f"{what}: the least of ten equals over the most", min(shares) / max(shares), "x"),
            _row(f"{what}: TTFT p50 of the others", found.ttft_ms(0.5, FLOODS), "ms"),
            _row(f"{what}: TTFT p99 of the others", others_ms, "ms"),
            _row(f"{what}: the same over ordinary", others_ms / ordinary.ttft_ms(0.99), "x"),
            _row(f"{what}: TTFT p50 of the floods", found.ttft_ms(0.5, only=FLOODS), "ms"),
        ]
    return rows


def _limit_rows(limited: Figures, limit: int) -> list[Row]:
    most = max(limited.let_through.values()) / limit
    return [
        _row("flood with limits: let through over the limit, at the most", most, "x", at_most=1.0),
        _row("flood with limits: refused", limited.refused / FLOOD_S, "/s"),
    ]


def _death_rows(found: Figures, ordinary: Figures, dead: int) -> list[Row]:
    return [
        _row(f"{dead} engines die: requests moved", found.moves, ""),
        _row("deaths: moved twice or more", found.moved_again, "requests"),
        _row("deaths: gap of a move, p99", found.gap_ms(0.99), "ms"),
        _row("deaths: TTFT p99 in the minute after", found.ttft_ms(0.99), "ms"),
        _row("deaths: the same over ordinary", found.ttft_ms(0.99) / ordinary.ttft_ms(0.99), "x"),
        _row("deaths: hits over an infinite engine's", found.hit_ratio, "x"),
        _row("deaths: work, p99 over mean", found.skew, "x"),
        _row("deaths: adapter loads over the least", found.load_ratio, "x"),
    ]


def _row(what: str, value: float, unit: str, *, at_most: float | None = None) -> Row:
    return Row(what, Figure.of([value]), unit, at_most=at_most)
