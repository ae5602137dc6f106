"""What measuring costs on the way of tokens: frames taken by a gateway's link, with and without.

    python -m tests.bench.measuring

A link takes step frames of many streams as it does in a gateway, in one process and without
sockets; *without* is the same with histograms that do nothing. CPU seconds for 1,000 tokens, in
turns.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time

from inference.gateway.measuring.histogram import Histogram
from inference.gateway.measuring.measures import INTER_TOKEN_S
from inference.link import wire
from inference.link.wire import Delta
from tests.inference.played import benched

STREAMS, STEPS, ROUNDS = 64, 200, 15


class Nothing(Histogram):
    """Counts nothing."""

    __slots__ = ()

    def add(self, value: float, times: int = 1) -> None:
        """As if nobody measured."""


async def main() -> None:
    """Print both, and what lies between them."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    async with benched() as bench:
        engine = await bench.join()
        ids = [f"r{number}" for number in range(STREAMS)]
        streams = [bench.submit(id) for id in ids]
        for _ in ids:
            await engine.asked()
        (link,) = bench.hub._open
        frame = wire.encode(wire.Step([Delta(id, " token", 1) for id in ids]))
        histograms = {"with": Histogram(INTER_TOKEN_S), "without": Nothing(INTER_TOKEN_S)}
        link.take(wire.decode(frame))
        gc.disable()
        for _ in range(ROUNDS):
            for name, histogram in histograms.items():
                link.measured.inter_token_seconds = histogram
                began = time.process_time()
                for _ in range(STEPS):
                    link.take(wire.decode(frame))
                    for stream in streams:
                        stream._take()
                took = time.process_time() - began
                found[name].append(1000 * took / (STEPS * STREAMS))
        gc.enable()
    for name, times in found.items():
        best, middle = min(times), statistics.median(times)
        print(f"{name:8} {1000 * middle:.3f} ms for 1,000 tokens ({1000 * best:.3f} at best)")


if __name__ == "__main__":
    asyncio.run(main())
