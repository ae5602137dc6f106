"""Compares two runs on the same rows: the difference of the shares that passed, or of the mean
scores, with a 95 % interval by a paired bootstrap (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993). Pure.

Each row is a pair of outcomes or scores. A resample draws as many pairs as there are, with
replacement. Of outcomes, all that matters is how many passed in one run only: these counts are
drawn from their distribution, which is multinomial, so that the work does not grow with the rows.
Of scores, the differences are drawn themselves; the means of resamples of many rows are so nearly
normal that their interval is computed instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from statistics import NormalDist, fmean, stdev

RESAMPLES = 2000
SEED = 1993
TAIL = 0.025
"""The share of the resamples below the interval, and above it."""
FEW_ROWS = 30
"""With fewer rows the interval is too narrow."""
MANY_SCORES = 200
"""With more scores their interval is that of the normal distribution."""
WIDTH_SD, WIDTH = 7, 10
"""How far from its mean a count is drawn: in standard deviations, and in addition."""


@dataclass(frozen=True, slots=True)
class PairedOutcomes:
    """How many rows passed in both runs, only in the first, only in the second, in neither."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[bool, bool]]) -> PairedOutcomes:
        """Count the pairs, each of whether a row passed in the first and in the second run."""
        counts = Counter(pairs)
        kinds = (True, True), (True, False), (False, True), (False, False)
        return cls(*(counts[kind] for kind in kinds))

    @property
    def rows(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The share that passed or the mean score of two runs, and the 95 % interval of the second less
    the first."""

    a: float
    b: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.b - self.a

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is without 0."""
        return not self.low <= 0 <= self.high


@lru_cache(maxsize=4096)
def difference(pairs: PairedOutcomes) -> PairedDifference | None:
    """The difference with its interval; None without rows. The same pairs give the same interval,
    and pairs with the runs exchanged the opposite one."""
    rows, one, other = pairs.rows, pairs.only_a, pairs.only_b
    if not rows:
        return None
    low, high = (count / rows for count in _interval(rows, min(one, other), max(one, other)))
    if one == other:
        low, high = min(low, -high), max(high, -low)
    elif one > other:
        low, high = -high, -low
    share_a, share_b = ((pairs.both + count) / rows for count in (one, other))
    return PairedDifference(share_a, share_b, low, high)


def mean_difference(pairs: Sequence[tuple[float, float]]) -> PairedDifference | None:
    """The difference of the mean scores with its interval; None without rows. `pairs` has the
    scores of each row in the first and in the second run. The same pairs give the same interval,
    and pairs with the runs exchanged the opposite one."""
    if not pairs:
        return None
    gains = [second - first for first, second in pairs]
    low, high = _normal(gains) if len(gains) > MANY_SCORES else _drawn(gains)
    first, second = (fmean(scores) for scores in zip(*pairs, strict=True))
    return PairedDifference(first, second, low, high)


def _drawn(gains: Sequence[float]) -> tuple[float, float]:
    random = Random(SEED)
    means = sorted(fmean(random.choices(gains, k=len(gains))) for _ in range(RESAMPLES))
    outside = int(TAIL * RESAMPLES)
    return means[outside - 1], means[-outside]


def _normal(gains: Sequence[float]) -> tuple[float, float]:
    reach = NormalDist().inv_cdf(1 - TAIL) * stdev(gains) / math.sqrt(len(gains))
    return fmean(gains) - reach, fmean(gains) + reach


def _interval(rows: int, fewer: int, more: int) -> tuple[int, int]:
    """Of the difference of two counts in resamples of rows: `more` - `fewer`."""
    random, changed = Random(SEED), fewer + more
    drawn = list[int]()
    for count, times in sorted(Counter(_binomial(random, rows, changed / rows, RESAMPLES)).items()):
        share = more / changed if changed else 0.0
        drawn += (2 * one - count for one in _binomial(random, count, share, times))
    drawn.sort()
    outside = int(TAIL * RESAMPLES)
    return drawn[outside - 1], drawn[-outside]


def _binomial(random: Random, trials: int, chance: float, times: int) -> list[int]:
    """Draw this many times how many of the trials succeed."""
    if not 0 < chance < 1:
        return [round(trials * chance)] * times
    mean = trials * chance
    reach = WIDTH_SD * math.sqrt(mean * (1 - chance)) + WIDTH
    counts = range(max(0, int(mean - reach)), min(trials, math.ceil(mean + reach)) + 1)
    weights, odds = [1.0], chance / (1 - chance)
    for count in counts[:-1]:  # each likelihood from the one before
        weights.append(weights[-1] * odds * (trials - count) / (count + 1))
    return random.choices(counts, weights, k=times)
