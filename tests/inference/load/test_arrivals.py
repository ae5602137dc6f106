"""Arrivals and popularity against theory. All seeds are fixed: nothing here can fail by chance."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import fmean, pstdev, pvariance

import pytest

from inference.load.arrivals import BurstyArrivals, even, gamma, poisson
from inference.load.lengths import PUBLIC, fixed
from inference.load.planned import BadLoadPlan
from inference.load.popularity import Zipf

pytestmark = pytest.mark.pure

N = 20_000
RATE = 4.0


def gaps(times: Iterable[float], count: int = N) -> list[float]:
    return [
        b - a for a, b in itertools.pairwise(itertools.chain([0.0], itertools.islice(times, count)))
    ]


def distance(values: list[float], cdf: Callable[[float], float]) -> float:
    """The Kolmogorov-Smirnov distance, times the root of their number."""
    n, ordered = len(values), sorted(values)
    apart = max(
        max((i + 1) / n - cdf(value), cdf(value) - i / n) for i, value in enumerate(ordered)
    )
    return apart * math.sqrt(n)


CRITICAL = 1.63
"""Exceeded by chance in one of a hundred samples (Kolmogorov's distribution)."""


@pytest.mark.parametrize("seed", range(3))
def test_poisson_gaps_are_exponential(seed: int) -> None:
    assert distance(gaps(poisson(RATE, seed)), lambda gap: 1 - math.exp(-RATE * gap)) < CRITICAL
    # ... and no others are taken for such.
    assert distance(gaps(gamma(RATE, seed, 1.2)), lambda gap: 1 - math.exp(-RATE * gap)) > CRITICAL


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_the_variation(variation: float) -> None:
    found = gaps(gamma(RATE, 1, variation))
    assert fmean(found) == pytest.approx(1 / RATE, rel=4 * variation / math.sqrt(N))
    assert pstdev(found) / fmean(found) == pytest.approx(variation, rel=0.1)


def test_bursts_keep_the_rate_and_have_the_dispersion_of_theory() -> None:
    bursts = BurstyArrivals(factor=6.0, share=0.1, mean_s=5.0)
    seconds, window = 200_000, 500
    times = itertools.takewhile(lambda at: at < seconds, bursts.at(RATE, 2))
    counts = Counter(int(at / window) for at in times)
    each = [counts[i] for i in range(seconds // window)]
    assert fmean(each) / window == pytest.approx(RATE, rel=0.03)
    # The index of dispersion of a two-state MMPP in long windows (Fischer, Meier-Hellstern).
    fast, slow = RATE * 6.0, RATE * (1 - 0.6) / 0.9
    end, begin = 1 / 5.0, 1 / 45.0
    theory = 1 + 2 * (fast - slow) ** 2 * end * begin / (
        (end + begin) ** 2 * (fast * begin + slow * end)
    )
    assert theory > 10
    assert pvariance(each) / fmean(each) == pytest.approx(theory, rel=0.2)


def test_bursts_that_take_more_than_all_are_refused() -> None:
    with pytest.raises(BadLoadPlan, match=r"at most 0\.20 of the time, not 0\.5"):
        BurstyArrivals(factor=5.0, share=0.5)
    assert gaps(BurstyArrivals(5.0, 0.2, 1.0).at(RATE, 1), 100)  # nothing comes between bursts


def test_even_arrivals_and_seeds() -> None:
    assert list(itertools.islice(even(2.0), 4)) == [0.0, 0.5, 1.0, 1.5]
    assert gaps(poisson(RATE, 5), 9) == gaps(poisson(RATE, 5), 9) != gaps(poisson(RATE, 6), 9)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.4])
def test_shares_are_zipfs(exponent: float) -> None:
    zipf, rng = Zipf(50, exponent), random.Random(1)
    drawn = Counter(zipf.draw(rng) for _ in range(N))
    whole = sum((i + 1) ** -exponent for i in range(50))
    for i in range(50):
        share = (i + 1) ** -exponent / whole
        assert abs(drawn[i] - N * share) < 4.5 * math.sqrt(N * share * (1 - share))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_lengths_have_the_quantiles_of_the_public_traces(name: str) -> None:
    figures, rng = PUBLIC[name], random.Random(3)
    drawn = [figures.draw(rng) for _ in range(N)]
    for values, expected in zip(
        zip(*drawn, strict=True), (figures.prompts, figures.outputs), strict=True
    ):
        ordered = sorted(values)
        for share, at in ((0.05, 2), (0.5, 5), (0.9, 7), (0.99, 9)):
            assert ordered[int(share * N)] == pytest.approx(expected[at], rel=0.1, abs=1)
        assert expected[0] <= ordered[0] and ordered[-1] <= expected[-1]


def test_lengths_can_be_fixed_or_shrunk() -> None:
    rng = random.Random(1)
    assert fixed(30, 7).draw(rng) == (30, 7)
    assert max(PUBLIC["azure-code"].shrunk(1000).draw(rng)) < 10
