"""`python -m tests.labs.attack.victim`: a tenant that streams and asks all the time.

For each line on standard input it prints one line of JSON with what it measured since the last one.
It stops when the input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import uvloop

from tests.labs.bench.machinery.client import Address, Refused, Reply, post
from tests.labs.bench.machinery.gaps import Timed

PATH = "/v1/chat/completions"
STREAMS = 2
TOKENS = 200
"""Tokens of a stream; the next stream follows at once."""
THINK_S = 0.03
"""Seconds between an answer of one token and the next question."""
PAUSE_S = 0.2
"""Seconds to wait after a failure."""


@dataclass
class Phase:
    """Measurements over some time: milliseconds to first tokens and between tokens, and faults."""

    firsts_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def p99s_ms(self) -> tuple[float, float]:
        """Of first tokens and of gaps."""
        return percentile_99(self.firsts_ms), percentile_99(self.gaps_ms)

    @property
    def longest_ms(self) -> float:
        return max([*self.firsts_ms, *self.gaps_ms], default=math.nan)

    def add(self, later: Phase) -> None:
        """Add the measurements of another phase."""
        self.firsts_ms += later.firsts_ms
        self.gaps_ms += later.gaps_ms
        self.faults += later.faults


def percentile_99(values: Sequence[float]) -> float:
    """The least value that at least 99 % of the values do not exceed; NaN if there are none."""
    if not values:
        return math.nan
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


class Waiting(Timed):
    """A connection that knows since when it has been waiting."""

    asked_at: float | None = None

    async def ask(self, request: bytes) -> Reply:
        self.arrivals.clear()
        self.asked_at = time.perf_counter()
        try:
            return await self.send(request)
        finally:
            self.asked_at = None

    def note(self, phase: Phase) -> None:
        """Add the gaps of the present answer, and the time for which its next token has been
        awaited."""
        if self.asked_at is None:
            return
        now = time.perf_counter()
        if self.arrivals:
            phase.gaps_ms += [*self.gaps_ms, 1e3 * (now - self.arrivals[-1])]
            self.arrivals[:] = self.arrivals[-1:]
        else:
            phase.firsts_ms.append(1e3 * (now - self.asked_at))


class Victim:
    """The tenant's clients."""

    def __init__(self, address: Address, model: str, key: str) -> None:
        self._address = address
        question = {"model": model, "messages": [{"role": "user", "content": "Hello there"}]}
        # `min_tokens`, because a sampled end token has no text, and tokens without text make no
        # chunk.
        stream = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": TOKENS}
        whole = {"min_tokens": TOKENS, "ignore_eos": True}
        self._stream = post(PATH, {**question, **stream, **whole}, key)
        self._question = post(PATH, {**question, "max_tokens": 1}, key)
        self._phase = Phase()
        self._open: set[Waiting] = set()

    async def run(self) -> None:
        """Measure until the standard input ends."""
        clients = [self._client(self._stream, TOKENS, 0.0) for _ in range(STREAMS)]
        clients.append(self._client(self._question, 1, THINK_S))
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(client) for client in clients]
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(asdict(self._close())), flush=True)
            for task in running:
                task.cancel()

    def _close(self) -> Phase:
        for connection in self._open:
            connection.note(self._phase)
        phase, self._phase = self._phase, Phase()
        return phase

    async def _client(self, request: bytes, tokens: int, think_s: float) -> None:
        while True:
            try:
                connection = await Waiting.open(self._address)
            except OSError as error:
                await self._failed(f"cannot connect: {error}")
                continue
            self._open.add(connection)
            try:
                while True:
                    self._add(connection, await connection.ask(request), tokens)
                    await asyncio.sleep(think_s)
            except (Refused, OSError) as error:
                await self._failed(f"{type(error).__name__}: {error}"[:300])
            finally:
                self._open.discard(connection)
                connection.close()

    def _add(self, connection: Waiting, reply: Reply, tokens: int) -> None:
        self._phase.firsts_ms.append(1e3 * reply.first_s)
        if tokens > 1:
            self._phase.gaps_ms += connection.gaps_ms
        if reply.completion_tokens != tokens:
            tail = reply.body[-200:].decode(errors="replace")
            self._phase.faults.append(f"{reply.completion_tokens} of {tokens} tokens: {tail}")

    async def _failed(self, why: str) -> None:
        self._phase.faults.append(why)
        await asyncio.sleep(PAUSE_S)


def main() -> None:
    """Measure until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    victim = Victim((options.host, options.port), options.model, os.environ["VICTIM_KEY"])
    uvloop.run(victim.run())


if __name__ == "__main__":
    main()
