"""Figures of many outcomes: percentiles, errors, goodput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inference.load.sending import NOT_SENT, LoadOutcome

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share (0 to 1) of ascending values lies, interpolated linearly
    between two of them (R. Hyndman and Y. Fan, 1996, type 7; numpy's default)."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of `count` values, in their unit."""

    count: int
    mean: float
    percentiles: dict[str, float]
    largest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None without values."""
        if not (ordered := sorted(values)):
            return None
        found = {name: percentile(ordered, share) for name, share in SHARES.items()}
        return cls(len(ordered), sum(ordered) / len(ordered), found, ordered[-1])


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    """What a good answer keeps, in seconds; None is no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def kept_by(self, outcome: LoadOutcome) -> bool:
        """Whether it was answered within all of them."""
        if outcome.code:
            return False
        pairs = (
            (self.ttft_s, outcome.ttft_s),
            (self.tpot_s, outcome.tpot_s or 0.0),
            (self.e2e_s, outcome.e2e_s),
        )
        return all(target is None or value <= target for target, value in pairs)

    def __str__(self) -> str:
        named = {"TTFT": self.ttft_s, "TPOT": self.tpot_s, "end to end": self.e2e_s}
        return ", ".join(f"{n} at most {v:g} s" for n, v in named.items() if v is not None)


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What came of some requests. Latencies are of answered ones, in seconds; `errors` counts the
    others by code. `good` were answered within the targets."""

    planned: int
    answered: int
    errors: dict[str, int]
    good: int
    wall_s: float
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    late: Spread | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    @classmethod
    def of(
        cls, outcomes: Sequence[LoadOutcome], targets: LatencyTargets, wall_s: float
    ) -> LoadFigures:
        """`wall_s`: how long the run took."""
        answered = [one for one in outcomes if not one.code]
        tpots = (one.tpot_s for one in answered)
        return cls(
            planned=len(outcomes),
            answered=len(answered),
            errors=dict(Counter(one.code for one in outcomes if one.code).most_common()),
            good=sum(map(targets.kept_by, outcomes)),
            wall_s=wall_s,
            ttft=Spread.of(one.ttft_s for one in answered),
            tpot=Spread.of(tpot for tpot in tpots if tpot is not None),
            e2e=Spread.of(one.e2e_s for one in answered),
            late=Spread.of(one.late_s for one in outcomes if one.code != NOT_SENT),
            prompt_tokens=sum(one.prompt_tokens for one in answered),
            cached_tokens=sum(one.cached_tokens for one in answered),
            output_tokens=sum(one.output_tokens for one in answered),
        )

    @property
    def goodput(self) -> float:
        """Good answers a second."""
        return self.good / self.wall_s if self.wall_s else 0.0

    @property
    def tokens_s(self) -> float:
        return self.output_tokens / self.wall_s if self.wall_s else 0.0


def by_tenant(outcomes: Sequence[LoadOutcome]) -> dict[str, list[LoadOutcome]]:
    """Each tenant's, those with the most requests first."""
    found: dict[str, list[LoadOutcome]] = {}
    for one in outcomes:
        found.setdefault(one.request.tenant, []).append(one)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))
