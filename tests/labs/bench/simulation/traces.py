"""The clients' requests: chats, agents with tools and batches of tenants with adapters, or a
recorded trace.

A block's id depends on all blocks before it, so that two prompts share exactly their common prefix.
Lengths are in blocks; everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inference.link.engine_info import AdapterRef
from inference.load.popularity import Zipf
from inference.load.traces import read_trace

BLOCK_TOKENS = 128
_64_BITS = (1 << 64) - 1


@dataclass(slots=True)
class Turn:
    """One request of a session, sent `after_s` seconds after the previous answer."""

    after_s: float
    tenant: str
    adapter: AdapterRef | None
    blocks: list[int]
    output_blocks: list[int]
    output_tokens: int
    lane: str = "interactive"


@dataclass
class Workload:
    """An endless supply of sessions. An adapter is a customer's application, with a system prompt,
    perhaps tools, and a kind of conversation; a tenant has several."""

    tenants: int
    adapters: int
    exponent: float = 1.0
    seed: int = 1
    of_base: float = 0.2
    """Share of sessions on the base model."""
    kinds: Sequence[float] = (0.65, 0.25, 0.10)
    """Shares of chats, agents and batches."""
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._zipf = Zipf(self.adapters, self.exponent)

    def session(self) -> Iterator[Turn]:
        """A new session of a random tenant."""
        rng = random.Random(self._rng.getrandbits(64))
        app = self._zipf.draw(rng)
        kind = random.Random(app).choices((self._chat, self._agent, self._batch), self.kinds)[0]
        tenant = f"t{app % self.tenants}"
        digest = f"{app:064x}"
        adapter = AdapterRef(f"{tenant}/a{app}@{digest}", digest, 16, ("q_proj",))
        return kind(rng, app, tenant, None if rng.random() < self.of_base else adapter)

    def _chat(
        self, rng: random.Random, app: int, tenant: str, adapter: AdapterRef | None
    ) -> Iterator[Turn]:
        blocks = _system(app, adapter, random.Random(app).randint(2, 12))
        for turn in range(1 + int(rng.expovariate(0.2))):
            blocks = blocks + blocks_after(blocks, rng, rng.randint(1, 3))
            after_s = 0.0 if turn == 0 else 2 + rng.expovariate(1 / 12)
            output = rng.randint(40, 500)
            answer = blocks_after(blocks, rng, -(-output // BLOCK_TOKENS))
            yield Turn(after_s, tenant, adapter, blocks, answer, output)
            blocks = blocks + answer

    def _agent(
        self, rng: random.Random, app: int, tenant: str, adapter: AdapterRef | None
    ) -> Iterator[Turn]:
        blocks = _system(app, adapter, random.Random(app).randint(16, 48))
        blocks = blocks + blocks_after(blocks, rng, rng.randint(1, 4))
        for turn in range(rng.randint(4, 16)):
            after_s = 0.0 if turn == 0 else 0.3 + rng.expovariate(0.5)
            output = rng.randint(30, 250)
            answer = blocks_after(blocks, rng, -(-output // BLOCK_TOKENS))
            yield Turn(after_s, tenant, adapter, blocks, answer, output)
            blocks = blocks + answer
            blocks = blocks + blocks_after(blocks, rng, rng.randint(1, 8))

    def _batch(
        self, rng: random.Random, app: int, tenant: str, adapter: AdapterRef | None
    ) -> Iterator[Turn]:
        system = _system(app, adapter, random.Random(app).randint(4, 8))
        for _ in range(rng.randint(10, 60)):
            blocks = system + blocks_after(system, rng, rng.randint(2, 16))
            output = rng.randint(50, 300)
            answer = blocks_after(blocks, rng, -(-output // BLOCK_TOKENS))
            yield Turn(0.1, tenant, adapter, blocks, answer, output, "batch")


def _system(app: int, adapter: AdapterRef | None, count: int) -> list[int]:
    """The blocks of a system prompt: the same in every session of an application, but different
    for the base model and the adapter, because caches are per adapter."""
    return blocks_after([hash((app, adapter is None))], random.Random(app), count)


def blocks_after(blocks: list[int], rng: random.Random, count: int) -> list[int]:
    """`count` random blocks that continue a prompt."""
    named, last = list[int](), blocks[-1]
    for _ in range(count):
        last = hash((last, rng.getrandbits(32))) & _64_BITS
        named.append(last)
    return named


def recorded(path: Path, limit: int) -> Iterator[tuple[float, Turn]]:
    """Read a trace in Mooncake's format (FAST '25): the time of each request in seconds, and its
    blocks of 512 tokens, each of which becomes four of the simulation's. All requests are one
    tenant's, on the base model."""
    for row in read_trace(path, limit):
        blocks = [4 * block + part + 1 for block in row.blocks for part in range(4)]
        yield row.at_s, Turn(0.0, "recorded", None, blocks, [], row.output_tokens)
