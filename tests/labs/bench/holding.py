"""What a gateway does while the engine of a thousand adapters is away, with as many requests held.

It runs in one process with links in memory, so that nothing else is measured. Each request has a
tenant and an adapter of its own, and needs an engine of a revision that is not there. Engines of
another base model go on reporting, and one of the right model but the wrong revision joins, which
makes the gateway try all that wait.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import msgspec
from structlog.testing import capture_logs

from inference.gateway.requests.held import Holding
from inference.link import wire
from inference.link.engine_info import AdapterRef, EngineStats
from inference.pools import Pool
from tests.inference.played import Bench, benched
from tests.inference.samples import BASE, GRANT, MODEL
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale

HELD = (128, 1024)
REPORTS = 100
TURNS = 200
MOST_HOLD_US, MOST_REPORT_MS, MOST_TURN_MS = 100, 2, 5
"""The last is what placing a few requests takes: one turn of the loop tries no more."""
AWAY = frozenset(["a revision that is not there"])


async def run(scale: Scale) -> Report:
    """Measure the CPU time of the event loop for holding, for engines' reports and for one round of
    placement."""
    rows: list[Row] = []
    for count in HELD:
        with capture_logs():
            found = [await _measured(count) for _ in range(scale.rounds)]
        hold, report, turn = (Figure.of([one[at] for one in found]) for at in range(3))
        rows += [
            Row(f"{count} held: to hold one", hold, "us", at_most=MOST_HOLD_US),
            Row(f"{count} held: a report of an engine", report, "ms", at_most=MOST_REPORT_MS),
            Row(f"{count} held: longest turn of a round", turn, "ms", at_most=MOST_TURN_MS),
        ]
    return Report("Requests held for an engine that is away, each for an adapter of its own", rows)


async def _measured(count: int) -> tuple[float, float, float]:
    async with benched(holding=Holding(60.0)) as bench:
        await bench.join("other", model=msgspec.structs.replace(MODEL, name="other"))
        bench.hub.set_pools({"base": Pool(AWAY)})
        hold_us = 1e6 * _held(bench, count) / count
        await asyncio.sleep(0)
        report_ms = 1e3 * _reported(bench) / REPORTS
        await bench.join("wrong", model=msgspec.structs.replace(MODEL, revision="wrong"))
        turn_ms = 1e3 * await _longest_turn()
        bench.hub.close()
        return hold_us, report_ms, turn_ms


def _held(bench: Bench, count: int) -> float:
    began = time.thread_time()
    for number in range(count):
        digest = f"{number:064x}"
        adapter = AdapterRef(f"t{number}/a@{digest}", digest, 8)
        bench.submit(
            f"r{number}",
            target=msgspec.structs.replace(BASE, adapter=adapter, tried=AWAY),
            grant=replace(GRANT, tenant=f"t{number}", tenant_id=number, key_id=number),
        )
    assert bench.hub.held == {"base": count}
    return time.thread_time() - began


def _reported(bench: Bench) -> float:
    link = bench.hub._links["other"]
    began = time.thread_time()
    for _ in range(REPORTS):
        link.take(wire.Stats(EngineStats()))
    return time.thread_time() - began


async def _longest_turn() -> float:
    longest = 0.0
    for _ in range(TURNS):
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    return longest
