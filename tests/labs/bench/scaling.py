"""The whole fleet in simulation: ten thousand tenants, a hundred thousand adapters.

The phases: clients that arrive before the engines; ordinary traffic; 5 % of the engines die at
once; a few tenants send far more than all others, with a limit; the same without one. Floods come
last, because conversations whose blocks they evicted are recomputed for a minute.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator
from statistics import median

from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.routing import LOADS_TARGET, SESSIONS, SKEW_TARGET
from tests.labs.bench.simulation.engine import PLACES
from tests.labs.bench.simulation.fleet import Figures, Fleet, endless, percentile
from tests.labs.bench.simulation.traces import Turn, Workload, blocks_after

ENGINES, GATEWAYS, TENANTS, ADAPTERS = 512, 16, 10_000, 100_000
"""With fewer engines, tenants and adapters decrease in proportion."""
WARM_S, PHASE_S, FLOOD_S = 40, 30, 10
FLOODS = [f"flood-{number}" for number in range(10)]
FLOOD_SESSIONS = 64
"""Sessions of the floods per engine: by themselves as many as run on it at once."""
TOKENS_PER_MINUTE = 5_000
"""Limit of each flood, per engine: all ten together a fifteenth of what the fleet computes."""
DEAD = 0.05
COME_S = 10
"""Seconds within which all engines join a fleet that had none."""
TOLD_EVERY_S = 10


async def run(scale: Scale) -> Report:
    """Simulate all five phases."""
    engines = scale.whole_engines
    tenants, adapters = TENANTS * engines // ENGINES, ADAPTERS * engines // ENGINES
    waited = _from_nothing(engines, tenants, adapters)
    work = Workload(tenants, adapters)
    fleet = Fleet(engines, GATEWAYS)
    fleet.keep([endless(work.session) for _ in range(SESSIONS * engines)], WARM_S / 3)
    _run(fleet, WARM_S, "warming")
    ordinary = _phase(fleet, PHASE_S, "ordinary")
    ordinary_rows = _ordinary_rows(ordinary, fleet)
    dying = list(fleet.engines)[: max(1, int(DEAD * engines))]
    fleet.kill(dying)
    deaths = _phase(fleet, PHASE_S, "deaths")
    limited = _flooded(fleet, engines, TOKENS_PER_MINUTE * engines)
    unlimited = _flooded(fleet, engines, None)
    return Report(
        f"The whole fleet, simulated: {engines} engines, {GATEWAYS} gateways, {tenants:,} tenants, "
        f"{adapters:,} adapters",
        [
            *ordinary_rows,
            *_death_rows(deaths, ordinary, len(dying)),
            *_flood_rows(limited, unlimited, ordinary),
            *_limit_rows(limited, TOKENS_PER_MINUTE * engines),
            *_waited_rows(waited),
        ],
    )


def _run(fleet: Fleet, seconds: float, what: str) -> None:
    """Run the fleet for `seconds` of virtual time, and print its progress."""
    began, until = time.monotonic(), fleet.now + seconds
    while fleet.now < until:
        fleet.run(min(until, fleet.now + TOLD_EVERY_S))
        took_s = time.monotonic() - began
        print(f"  {what}: {until - fleet.now:.0f} s to go, after {took_s:.0f} s", file=sys.stderr)


def _phase(fleet: Fleet, seconds: float, what: str) -> Figures:
    fleet.count_from_now()
    _run(fleet, seconds, what)
    return fleet.counted()


def _from_nothing(engines: int, tenants: int, adapters: int) -> Figures:
    """Clients and floods arrive while there is no engine; engines then join one after another."""
    work = Workload(tenants, adapters)
    fleet = Fleet(engines, GATEWAYS, engines_come_s=COME_S)
    fleet.keep([endless(work.session) for _ in range(SESSIONS * engines)], COME_S / 4)
    fleet.keep(_floods(fleet, engines, COME_S), COME_S / 4)
    return _phase(fleet, 2 * COME_S, "from nothing")


def _flooded(fleet: Fleet, engines: int, tokens_per_minute: int | None) -> Figures:
    """Run a phase with floods, which end with it."""
    limits = {} if tokens_per_minute is None else dict.fromkeys(FLOODS, tokens_per_minute)
    fleet.limit(limits)
    ends_at = fleet.now + FLOOD_S
    fleet.keep(_floods(fleet, engines, ends_at), spread_s=1)
    return _phase(fleet, FLOOD_S, "flood" if limits else "flood without limits")


def _floods(fleet: Fleet, engines: int, ends_at: float) -> list[Iterator[Turn]]:
    count = FLOOD_SESSIONS * engines
    return [_flood(fleet, FLOODS[at % len(FLOODS)], at, ends_at) for at in range(count)]


def _flood(fleet: Fleet, tenant: str, seed: int, ends_at: float) -> Iterator[Turn]:
    """Uncached prompts, one after another without a pause, until `ends_at`."""
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
        _row("deaths: TTFT p99 afterwards", found.ttft_ms(0.99), "ms"),
        _row("deaths: the same over ordinary", found.ttft_ms(0.99) / ordinary.ttft_ms(0.99), "x"),
        _row("deaths: hits over an infinite engine's", found.hit_ratio, "x"),
        _row("deaths: work, p99 over mean", found.skew, "x"),
        _row("deaths: adapter loads over the least", found.load_ratio, "x"),
    ]


def _waited_rows(found: Figures) -> list[Row]:
    floods = [one for tenant in FLOODS for one in found.held_s[tenant]] or [0.0]
    others = [one for tenant, all in found.held_s.items() if tenant not in FLOODS for one in all]
    others = others or [0.0]
    turned_away = sum(found.turned_away.values())
    of_floods = sum(found.turned_away[tenant] for tenant in FLOODS)
    return [
        _row(f"engines come within {COME_S} s: held at the most", found.most_held, "requests"),
        _row("engines come: held, p50", 1000 * percentile(others, 0.5), "ms"),
        _row("engines come: held, p99", 1000 * percentile(others, 0.99), "ms"),
        _row("engines come: floods held, p50", 1000 * percentile(floods, 0.5), "ms"),
        _row("engines come: turned away of the floods", of_floods, "requests"),
        _row("engines come: turned away of others", turned_away - of_floods, "requests"),
        _row("engines come: TTFT p50 of others", found.ttft_ms(0.5, FLOODS), "ms"),
        _row("engines come: TTFT p99 of others", found.ttft_ms(0.99, FLOODS), "ms"),
    ]


def _row(what: str, value: float, unit: str, *, at_most: float | None = None) -> Row:
    return Row(what, Figure.of([value]), unit, at_most=at_most)
