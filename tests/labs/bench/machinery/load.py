"""Closed-loop load: each client sends its next request once its last one is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.labs.bench.machinery.client import Address, Connection, Reply


@dataclass(slots=True)
class Tally:
    """Results of one burst of load. Times are in seconds."""

    requests: int = 0
    tokens: int = 0
    events: int = 0
    wall_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    firsts_s: list[float] = field(default_factory=list)
    """Time to the first byte, which for a stream is its first token."""

    def add(self, reply: Reply, latency_s: float) -> None:
        """Count one answer."""
        self.requests += 1
        self.tokens += reply.completion_tokens
        self.events += reply.events
        self.latencies_s.append(latency_s)
        self.firsts_s.append(reply.first_s)


async def drive(address: Address, requests: Sequence[bytes], *, clients: int) -> Tally:
    """Send all requests over `clients` connections, which are opened before the clock starts.

    Raises:
        Refused, OSError: a request failed; nothing is left running.
    """
    connections = [await Connection.open(address) for _ in range(clients)]
    tally, waiting = Tally(), iter(requests)
    try:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(_client(connection, waiting, tally))
        tally.wall_s = time.perf_counter() - began
    finally:
        for connection in connections:
            connection.close()
    return tally


async def _client(connection: Connection, waiting: Iterator[bytes], tally: Tally) -> None:
    for request in waiting:
        began = time.perf_counter()
        reply = await connection.send(request)
        tally.add(reply, time.perf_counter() - began)
