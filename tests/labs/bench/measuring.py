"""The cost of metrics on the token path: a gateway takes step frames with and without them.

It runs in one process without sockets, so that nothing else is measured. Without metrics, deltas
are only passed on. `metering` measures a whole gateway for as many tokens.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial

from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.requests.requests import Requests
from inference.gateway.requests.stream import Stream
from inference.link import wire
from inference.link.wire import Delta
from tests.inference.played import benched
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale

STREAMS, STEPS = 64, 500
ROUNDS = 3
"""Rounds for each round of the other benchmarks, because these are short."""
WITH, WITHOUT = "with", "without"
MOST_MS = 1.0
"""CPU ms that metrics may cost for 1,000 tokens: 3 % of a gateway's CPU time for them."""


def unmeasured(requests: Requests, link: EngineLink, deltas: Sequence[Delta]) -> None:
    """`Requests.step` without metrics."""
    now, running = time.monotonic(), requests._running[link]
    for delta in deltas:
        stream = running[delta.id, delta.attempt]
        requests._guarded(stream, requests._take_output, stream, delta, now)


async def run(scale: Scale) -> Report:
    """Measure the CPU time of the link alone for 1,000 tokens, in turns."""
    async with benched() as bench:
        engine = await bench.join()
        streams = [bench.submit(f"r{number}") for number in range(STREAMS)]
        for _ in streams:
            await engine.asked()
        (link,) = bench.hub._open
        frame = wire.encode(wire.Step([Delta(stream.id, " token", 1) for stream in streams]))
        requests = bench.hub._requests
        take = partial(_taken, requests, link, streams, frame)
        turns = {
            WITH: partial(take, requests.step),
            WITHOUT: partial(take, partial(unmeasured, requests)),
        }
        await take_turns(1, turns)
        found = await take_turns(ROUNDS * scale.rounds, turns)
    figures = {name: Figure.of(times) for name, times in found.items()}
    cost = figures[WITH].minus(figures[WITHOUT])
    unit = "ms/1,000 tokens"
    return Report(
        f"Metrics on the way of tokens, {STREAMS} streams, one token in each frame",
        [
            Row(f"CPU of the gateway, {WITH}", figures[WITH], unit),
            Row(f"CPU of the gateway, {WITHOUT}", figures[WITHOUT], unit),
            Row("what they cost", cost, unit, at_most=MOST_MS),
        ],
    )


async def _taken(
    requests: Requests,
    link: EngineLink,
    streams: list[Stream],
    frame: bytes,
    step: Callable[[EngineLink, Sequence[Delta]], None],
) -> float:
    """Let the gateway take STEPS frames; returns CPU ms for 1,000 tokens."""
    setattr(requests, "step", step)  # noqa: B010 - mypy forbids assigning to a method
    gc.collect()
    gc.disable()
    began = time.process_time()
    for _ in range(STEPS):
        link.take(wire.decode(frame))
        for stream in streams:
            stream._next()
    took_s = time.process_time() - began
    gc.enable()
    return 1e6 * took_s / (STEPS * len(streams))
