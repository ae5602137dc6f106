"""When requests arrive: seconds from the start, in order, without end.

All processes have the same mean rate; they differ in how bursty they are. `seed` decides all.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from inference.load.planned import BadLoadPlan

Arrivals = Iterator[float]


def even(rate: float, seed: int = 0) -> Arrivals:
    """At equal distances; the seed changes nothing."""
    return (number / rate for number in itertools.count())


def gamma(rate: float, seed: int, variation: float) -> Arrivals:
    """Independent gaps with a gamma distribution. `variation` is its coefficient of variation: 1
    is a Poisson process, more is burstier."""
    rng, shape = random.Random(seed), variation**-2
    return itertools.accumulate(
        rng.gammavariate(shape, 1 / (rate * shape)) for _ in itertools.count()
    )


def poisson(rate: float, seed: int) -> Arrivals:
    """Independent gaps with an exponential distribution."""
    return gamma(rate, seed, 1.0)


@dataclass(frozen=True, slots=True)
class BurstyArrivals:
    """A Markov-modulated Poisson process of two states (W. Fischer and K. Meier-Hellstern, 1993).

    In bursts the rate is `factor` times the mean one. They take `share` of the time and last
    `mean_s` seconds on average; the rate between them is what is left, so that the mean is kept.

    Raises:
        BadLoadPlan: more would arrive in bursts than in all.
    """

    factor: float = 5.0
    share: float = 0.1
    mean_s: float = 10.0

    def __post_init__(self) -> None:
        if self.factor * self.share > 1:
            raise BadLoadPlan(
                f"bursts of {self.factor:g} times the rate can take at most {1 / self.factor:.2f} "
                f"of the time, not {self.share:g}"
            )

    def at(self, rate: float, seed: int) -> Arrivals:
        """Times with this mean rate. The first state is drawn as often as states occur."""
        rng = random.Random(seed)
        quiet = rate * (1 - self.factor * self.share) / (1 - self.share)
        between_s = self.mean_s * (1 - self.share) / self.share
        in_burst, now, until = rng.random() < self.share, 0.0, 0.0
        while True:
            until += rng.expovariate(1 / (self.mean_s if in_burst else between_s))
            state_rate = rate * self.factor if in_burst else quiet
            # Memoryless: what was drawn for the last state needs not be carried over.
            while state_rate and (now := now + rng.expovariate(state_rate)) < until:
                yield now
            in_burst, now = not in_burst, until
