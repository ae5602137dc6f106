"""Compares what an engine with a profile did with what plain did."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean

from inference.agent.engines.profiles.named import NOISE, NamedProfile
from inference.agent.profile_check.observing import ProfileObservations

MAX_FAULTS = 5
"""Answers that differ are named up to this number."""


@dataclass(slots=True)
class ProfileComparison:
    """`equal` of `answers` answers had plain's tokens; `largest` and `mean` are differences of
    tokens' log-probabilities. `faults` break the promise."""

    equal: int = 0
    answers: int = 0
    largest: float = 0.0
    mean: float = 0.0
    faults: list[str] = field(default_factory=list)


def compared(
    profile: NamedProfile, plain: ProfileObservations, own: ProfileObservations
) -> ProfileComparison:
    """Both must have been asked the same. With `exact` every answer must have plain's tokens,
    however it came; with `close` answers may differ, and log-probabilities on average as far as it
    says: a token that is hardly possible may differ by several nats."""
    found = ProfileComparison(faults=list(own.faults))
    ways = {"alone": own.alone, "together": own.together, "continued": own.continued}
    for way, answers in ways.items():
        for name, ids in plain.alone.items():
            found.answers += 1
            if answers[name] == ids:
                found.equal += 1
            elif profile.promise == "exact":
                found.faults.append(f"{name} ({way}): another answer than plain's")
    if len(found.faults) > MAX_FAULTS:
        found.faults[MAX_FAULTS:] = [f"and {len(found.faults) - MAX_FAULTS} more"]
    differences = _differences(plain.logprobs, own.logprobs)
    for name, expected in plain.generated.items():
        differences += _of_answer(expected, own.generated[name])
    found.largest, found.mean = max(differences, default=0.0), fmean(differences or [0.0])
    if profile.tolerance is None and not found.largest <= NOISE:
        found.faults.append(
            f"a log-probability differs by {found.largest:.4f}: the profile promises at most "
            f"{NOISE}"
        )
    if profile.tolerance is not None and not found.mean <= profile.tolerance:
        found.faults.append(
            f"log-probabilities differ by {found.mean:.4f} on average: the profile promises at "
            f"most {profile.tolerance}"
        )
    return found


def _of_answer(plain: list[tuple[int, float]], own: list[tuple[int, float]]) -> list[float]:
    """The differences up to the first token that is another."""
    pairs = zip(plain, own, strict=False)
    same = list(takewhile(lambda pair: pair[0][0] == pair[1][0], pairs))
    return _differences([one for (_, one), _ in same], [other for _, (_, other) in same])


def _differences(plain: list[float], own: list[float]) -> list[float]:
    """Of each token; infinite unless both are of the same tokens and finite."""
    if len(plain) != len(own) or not all(map(math.isfinite, plain + own)):
        return [math.inf]
    return [abs(one - other) for one, other in zip(plain, own, strict=True)]
