"""Simulated requests of a split under its tests, looked at continuously."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tenants.splits.sequential import MeanTest, SequentialTest, ShareTest

ALPHA = 0.05
GUARDS = 4
"""Errors, cut answers, slow first tokens and a score, which share ALPHA."""
STEPS = (5, 25, 50)
LOOK_EVERY = 20
CLIENTS = 3000


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests of a split; shares and scores are from 0 to 1.

    The candidate has the share `bad` of errors instead of `usual`. With `sticky` clients a tenth of
    them has most of the bad requests. In `incidents` both versions have ten times as many. In a
    `shadow` each of half as many requests goes to both versions, and half of the bad ones are bad
    with both.
    """

    name: str
    usual: float = 0.01
    bad: float | None = None
    score: float | None = None
    """The candidate's mean score, if that is lower than the stable version's 0.8."""
    sticky: bool = False
    incidents: bool = False
    shadow: bool = False
    requests: int = 12_000


@dataclass(slots=True)
class SimulatedRun:
    """When the split was rolled back, if it was: after how many requests, and of the candidate."""

    requests: int | None = None
    of_candidate: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    key: int | None
    share: float
    candidate: bool
    bad: tuple[bool, bool, bool]
    score: float | None


def run(scenario: Scenario, seed: int) -> SimulatedRun:
    """One split with four guards, rolled back by any."""
    shares, scores = [ShareTest() for _ in range(GUARDS - 1)], MeanTest()
    tests: list[SequentialTest] = [*shares, scores]
    of_candidate = 0
    drawn = _pairs if scenario.shadow else _requests
    for number, request in enumerate(drawn(scenario, Random(seed)), 1):
        of_candidate += request.candidate
        for test, bad in zip(shares, request.bad, strict=True):
            test.add(float(bad), request.key, request.share, candidate=request.candidate)
        if request.score is not None:
            badness = 1 - request.score
            scores.add(badness, request.key, request.share, candidate=request.candidate)
        if number % LOOK_EVERY == 0 and any(one.is_worse(ALPHA / GUARDS, 0.0) for one in tests):
            return SimulatedRun(number, of_candidate)
    return SimulatedRun(None, of_candidate)


def _pairs(scenario: Scenario, random: Random) -> Iterator[_Request]:
    rate = scenario.usual / 2
    rates = rate, rate + (scenario.bad or scenario.usual) - scenario.usual
    for number in range(scenario.requests // 2):
        both = [random.random() < rate for _ in range(GUARDS - 1)]
        for candidate in (False, True):
            errors, *others = (random.random() < one for one in (rates[candidate], rate, rate))
            bad = (both[0] or errors, both[1] or others[0], both[2] or others[1])
            score = float(random.random() < 0.8) if number % 10 == 0 else None
            yield _Request(None, 0.5, candidate, bad, score)


def _requests(scenario: Scenario, random: Random) -> Iterator[_Request]:
    places = [random.random() for _ in range(CLIENTS)]
    sick = [random.random() < 0.1 for _ in range(CLIENTS)]
    for number in range(scenario.requests):
        share = STEPS[number * len(STEPS) // scenario.requests] / 100
        key = int(CLIENTS * random.random() ** 4) if scenario.sticky else None
        candidate = (random.random() if key is None else places[key]) < share
        rate = scenario.usual
        if key is not None:
            rate = 9 * rate if sick[key] else rate / 9
        if scenario.incidents and math.sin(number / scenario.requests * 12) > 0.9:
            rate *= 10
        first = rate
        if candidate and scenario.bad is not None:
            first = rate + scenario.bad - scenario.usual
        mean = scenario.score if candidate and scenario.score is not None else 0.8
        bad = (random.random() < first, random.random() < rate, random.random() < rate)
        yield _Request(
            key, share, candidate, bad, float(random.random() < mean) if number % 10 == 0 else None
        )
