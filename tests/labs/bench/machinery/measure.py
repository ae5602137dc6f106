"""One server under load: its answers, and the CPU time of each of its processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tests.labs.bench.machinery.client import Address
from tests.labs.bench.machinery.load import Tally, drive
from tests.labs.bench.machinery.processes import CpuTime
from tests.labs.bench.machinery.report import Figure


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: the answers, and the CPU seconds of each part."""

    tally: Tally
    cpu_s: dict[str, float]


async def _nothing_to_settle(tally: Tally) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Side:
    """One path from the clients to an engine; `parts` read the CPU seconds of its processes."""

    address: Address
    parts: dict[str, CpuTime]

    settle: Callable[[Tally], Awaitable[None]] = field(default=_nothing_to_settle)
    """Waits for work that continues after the answers, so that its CPU seconds are counted."""

    async def answer(self, requests: Sequence[bytes], *, clients: int) -> Sample:
        """Drive the load and measure."""
        before = {name: read() for name, read in self.parts.items()}
        tally = await drive(self.address, requests, clients=clients)
        await self.settle(tally)
        used = {name: read() - before[name] for name, read in self.parts.items()}
        return Sample(tally, used)


@dataclass(frozen=True, slots=True)
class Samples:
    """All rounds of one side."""

    rounds: list[Sample]

    def of(self, value: Callable[[Sample], float]) -> Figure:
        """One figure per round."""
        return Figure.of([value(sample) for sample in self.rounds])

    def requests_per_s(self) -> Figure:
        return self.of(lambda one: one.tally.requests / one.tally.wall_s)

    def tokens_per_s(self) -> Figure:
        return self.of(lambda one: one.tally.tokens / one.tally.wall_s)

    def events_per_token(self) -> Figure:
        return self.of(lambda one: one.tally.events / one.tally.tokens)

    def ms_per_request(self, *parts: str) -> Figure:
        """CPU milliseconds per request of these parts."""
        return self.of(lambda one: 1e3 * _sum(one, parts) / one.tally.requests)

    def s_per_1000_tokens(self, *parts: str) -> Figure:
        """CPU seconds per 1,000 tokens of these parts."""
        return self.of(lambda one: 1e3 * _sum(one, parts) / one.tally.tokens)


def _sum(sample: Sample, parts: Sequence[str]) -> float:
    return sum(sample.cpu_s[part] for part in parts)
