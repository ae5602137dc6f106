"""The phases of a request over time, on all engines that had it.

Times are in seconds since its gateway accepted it. An engine's times count from when it was given
its attempt; if it continued what others had generated, its total time and its time to the first
token are the whole request's (`inference.link.wire.Resume`). An engine that died reports none: its
attempt lasts until the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from inference.link.accounts import turn_of

SCALE = 1000
"""Width of the timeline, in SVG units."""
UNSEEN_S = 0.01
"""A shorter wait between two attempts, or before the first, is not shown."""


class Tried(Protocol):
    """An attempt, as the ledger has it: `UsageEvent` or `SupersededAttempt`."""

    attempt: int
    engine_id: str
    finish_reason: str
    completion_tokens: int
    inherited_tokens: int
    given_s: float
    queue_s: float
    load_s: float
    ttft_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class TimelinePhase:
    """A phase from `since` to `until`, drawn on a line of `whole_s`."""

    name: str
    look: str
    since: float
    until: float
    whole_s: float

    @property
    def seconds(self) -> float:
        return self.until - self.since

    @property
    def x(self) -> float:
        return round(self.since / self.whole_s * SCALE, 2)

    @property
    def width(self) -> float:
        return round(self.seconds / self.whole_s * SCALE, 2)

    @property
    def drawn(self) -> float:
        """The width of its bar, with a minimum so that it stays visible."""
        return max(self.width, SCALE / 100)


@dataclass(frozen=True, slots=True)
class TimelineAttempt:
    """One attempt; its times are None where they are not known."""

    tried: Tried
    begun_s: float
    ended_s: float
    ttft_s: float | None
    """Until its own first token."""
    phases: Sequence[TimelinePhase]


@dataclass(frozen=True, slots=True)
class Timeline:
    attempts: Sequence[TimelineAttempt]
    total_s: float
    unreported: bool
    """Whether there was an attempt before the first one here that no engine has reported."""

    @classmethod
    def of(cls, tried: Sequence[Tried], *, adapter: bool) -> Timeline:
        """Of all attempts in order, the billed one last; `adapter`: whether it uses one."""
        ends = list(_ends(tried))
        whole_s, free_s = max(ends), 0.0
        attempts = []
        for at, (one, end) in enumerate(zip(tried, ends, strict=True)):
            before = tried[at - 1] if at else None
            waited = "Held" if one.attempt == 1 else "Moving"
            begun = free_s if 0 <= one.given_s - free_s < UNSEEN_S else one.given_s
            phases = [(waited, "held", free_s, begun)] if free_s < begun else []
            since = begun
            for name, look, until in _marks(one, end, before, adapter=adapter):
                until = min(max(since, until), max(since, end))
                phases.append((name, look, since, until))
                since = until
            shown = [TimelinePhase(*phase, whole_s) for phase in phases] if whole_s > 0 else []
            ttft_s = None if one.inherited_tokens else one.ttft_s
            attempts.append(TimelineAttempt(one, begun, end, ttft_s, shown))
            free_s = max(free_s, end)
        return cls(attempts, whole_s, unreported=tried[0].attempt > 1)


def _ends(tried: Sequence[Tried]) -> Iterator[float]:
    for one, after in pairwise([*tried, None]):
        assert one is not None
        if one.total_s:
            yield one.total_s if one.inherited_tokens else one.given_s + one.total_s
        else:
            yield one.given_s if after is None else max(one.given_s, after.given_s)


def _marks(
    one: Tried, end: float, before: Tried | None, *, adapter: bool
) -> Iterator[tuple[str, str, float]]:
    """Each phase with its CSS class and its end, in order."""
    admitted = one.given_s + one.queue_s
    ready = admitted + one.load_s
    if not one.total_s:
        if end > one.given_s:
            yield "Until the engine was lost", "lost", end
        return
    if before is not None and _is_adopted(one, before):
        yield "Decode, at another gateway", "decode", end
        return
    yield "Queued", "queued", admitted
    if adapter:
        yield "Load adapter", "loading", ready
    if one.inherited_tokens:
        yield "Prefill and decode", "decode", end
    elif one.ttft_s is None:
        yield "No token generated", "prefill", end
    elif one.ttft_s < one.total_s:
        yield "Prefill", "prefill", one.given_s + one.ttft_s
        yield "Decode", "decode", end
    else:
        yield "Prefill and decode", "decode", end


def _is_adopted(one: Tried, before: Tried) -> bool:
    """Whether the same engine continued it for another gateway."""
    later = turn_of(one.attempt) > turn_of(before.attempt)
    return later and one.engine_id == before.engine_id and one.inherited_tokens > 0
