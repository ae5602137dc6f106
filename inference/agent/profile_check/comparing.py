"""Compares what an engine with a profile did with what plain did."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import takewhile

from inference.agent.engines.profiles.named import NamedProfile
from inference.agent.profile_check.observing import ProfileObservations

MAX_FAULTS = 5
"""Answers that differ are named up to this number."""


@dataclass(slots=True)
class ProfileComparison:
    """`equal` of `answers` answers had plain's tokens; `difference` is the largest one of a token's
    log-probability. `faults` break the promise."""

    equal: int = 0
    answers: int = 0
    difference: float = 0.0
    faults: list[str] = field(default_factory=list)


def compared(
    profile: NamedProfile, plain: ProfileObservations, own: ProfileObservations
) -> ProfileComparison:
    """Both must have been asked the same. With `exact` every answer must have plain's tokens,
    however it came; with `close` answers may differ, and log-probabilities as far as it says."""
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
    answered = (
        _of_answer(expected, own.generated[name]) for name, expected in plain.generated.items()
    )
    found.difference = max([_difference(plain.logprobs, own.logprobs), *answered])
    if not found.difference <= profile.allowed_difference:
        found.faults.append(
            f"a log-probability differs by {found.difference:.4f}: the profile promises at most "
            f"{profile.allowed_difference}"
        )
    return found


def _of_answer(plain: list[tuple[int, float]], own: list[tuple[int, float]]) -> float:
    """The largest difference, up to the first token that is another."""
    pairs = zip(plain, own, strict=False)
    same = list(takewhile(lambda pair: pair[0][0] == pair[1][0], pairs))
    return _difference([one for (_, one), _ in same], [other for _, (_, other) in same])


def _difference(plain: list[float], own: list[float]) -> float:
    """The largest; infinite unless both are of the same tokens and finite."""
    if len(plain) != len(own) or not all(map(math.isfinite, plain + own)):
        return math.inf
    return max((abs(one - other) for one, other in zip(plain, own, strict=True)), default=0.0)
