"""`python -m tests.labs.bench.machinery.gaps`: time between the chunks of running streams.

A process of its own, so that the benchmark's other work does not distort the measurement. It keeps
`--streams` streams of the tenant's key BENCH_KEY open until its standard input ends, then prints
the figures of the gaps as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from itertools import pairwise
from statistics import quantiles

import uvloop

from tests.labs.bench.machinery.client import Address, Connection, post

TOKENS = 1_000
"""Length of one stream; when it ends, another one is opened."""


class Timed(Connection):
    """Records when each part of an answer arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[float] = []

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.arrivals.append(time.perf_counter())
        super().data_received(data)

    @property
    def gaps_ms(self) -> list[float]:
        """Between arrivals of the current answer; the time between two answers is not a gap."""
        return [1e3 * (later - earlier) for earlier, later in pairwise(self.arrivals)]


async def _stream(address: Address, request: bytes, gaps_ms: list[float]) -> None:
    connection = await Timed.open(address)
    try:
        while True:
            connection.arrivals.clear()
            try:
                await connection.send(request)
            finally:
                gaps_ms += connection.gaps_ms
    finally:
        connection.close()


async def measure(address: Address, request: bytes, streams: int) -> dict[str, float]:
    """p50, p99 and maximum, in milliseconds, and count of the gaps until standard input ends."""
    gaps_ms: list[float] = []
    running = [asyncio.create_task(_stream(address, request, gaps_ms)) for _ in range(streams)]
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([ended, *running], return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    for task in done:
        task.result()
    cuts = quantiles(gaps_ms, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "max": max(gaps_ms), "count": len(gaps_ms)}


def main() -> None:
    """Measure until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, required=True)
    options = parser.parse_args()
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,  # a sampled end token has no text and makes no chunk
        "stream": True,
    }
    request = post("/v1/chat/completions", body, os.environ["BENCH_KEY"])
    found = uvloop.run(measure((options.host, options.port), request, options.streams))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
