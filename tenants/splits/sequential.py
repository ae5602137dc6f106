"""Compares a candidate with the stable version, request by request. Pure, and always valid: however
often somebody looks, the chance that a candidate which is no worse is ever called worse is at most
the `alpha` that the test is asked with.

Both tests are e-processes: a bet against "the candidate is no worse", whose stakes multiply. While
that is true they grow with no betting strategy, so they reach 1 / alpha with a chance of at most
alpha, over all times together (Ville's inequality; Ramdas, Grunwald, Vovk and Shafer,
"Game-theoretic statistics and safe anytime-valid inference", Statistical Science 2023). Their only
source of randomness is the one that the platform controls, to which version a key was assigned, so
nothing is assumed about how often requests fail, or whether that changes during the day
(design-based: Ham, Bojinov, Lindon and Tingley, "Design-based confidence sequences", 2022).

- `ShareTest` (errors, cut or malformed answers, slow first tokens). If the candidate is no worse, a
  bad request is the candidate's with the chance that its key was assigned to it: the weight. A
  mixture of likelihood ratios, one for each alternative "r times as often" (mixture SPRT: Robbins
  1970; Johari, Koomen, Pekelis and Walsh, "Always valid inference", Operations Research 2022).
- `MeanTest` (scores from a range). A bet on the product of how bad a score is, compared with those
  before it, and whether it is the candidate's (Waudby-Smith and Ramdas, "Estimating means of
  bounded random variables by betting", JRSS B 2024).

The requests of a key go to one version, and may fail together: a client whose requests are too long
fails each time, whichever version has it. So a key is a single witness, with its first bad request,
or its first score. Without that 18 % of equal candidates were called worse in a simulation with
sticky clients; with it none of 400 was.

The difference is shown with a confidence sequence: an interval that holds at all times together
with the chance `1 - alpha` (empirical Bernstein, stitched: Howard, Ramdas, McAuliffe and Sekhon,
"Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of Statistics 2021,
theorem 4 and equation 10). It counts requests rather than keys, so with few busy keys it is too
narrow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MAX_KEYS = 10_000
"""Keys that a test remembers. With that many bad requests and no decision the versions are alike,
so evidence is not added after that."""
RATIOS = tuple(1 + 0.1 * 1000 ** (i / 39) for i in range(40))
"""The alternatives of `ShareTest`: bad requests 1.1 to 101 times as often."""
STAKES = tuple(0.01 * 95 ** (i / 23) for i in range(24))
"""The alternatives of `MeanTest`: parts of the largest stake that can't lose everything."""
ZETA = 3.105547
"""Riemann's zeta function at 1.4."""


@dataclass(slots=True)
class ArmSums:
    """The values of one version's requests, from 0 to 1, and what their interval needs.

    `spread` adds the squared distance of each value from the mean of those before it.
    """

    requests: int = 0
    sum: float = 0.0
    spread: float = 0.0

    @property
    def mean(self) -> float:
        return self.sum / self.requests if self.requests else 0.0

    def add(self, value: float) -> None:
        """Add a value from 0 to 1."""
        before = (0.5 + self.sum) / (1 + self.requests)
        self.spread += (value - before) ** 2
        self.requests += 1
        self.sum += value

    def radius(self, alpha: float) -> float:
        """Half the width of the mean's interval, which at some time does not hold with a chance of
        at most `alpha`; 1 without requests."""
        if not self.requests:
            return 1.0
        spread = max(self.spread, 1.0)
        level = math.log(ZETA / (alpha / 2 * math.log(2) ** 1.4))
        scale = 1.4 * math.log(math.log(2 * spread)) + level
        bound = math.sqrt(2.0607 * spread * scale + 1.4571 * scale**2) + 1.2071 * scale
        return min(1.0, bound / self.requests)


@dataclass(frozen=True, slots=True)
class ArmDifference:
    """The candidate's mean less the stable version's, with its interval."""

    value: float
    low: float
    high: float


@dataclass(slots=True)
class SequentialTest(ABC):
    """The state of one guard's test; a higher value is a worse one."""

    stable: ArmSums = field(default_factory=ArmSums)
    candidate: ArmSums = field(default_factory=ArmSums)
    logs: list[float] = field(default_factory=list)
    """The logarithm of the stake for each alternative."""
    keys: set[int] = field(default_factory=set)
    """The keys that were witnesses."""

    def add(self, value: float, key: int | None, share: float, *, candidate: bool) -> None:
        """Add a request. `value` is from 0 to 1; `share` is the chance from 0 to 1 with which its
        key was assigned to the candidate; `key` is None if no other request shares it. Mutates
        the test. Requests are added in the order in which they ended."""
        if self.counts(value, share) and self._is_first(key):
            self._bet(value, share, candidate=candidate)
        (self.candidate if candidate else self.stable).add(value)

    @abstractmethod
    def counts(self, value: float, share: float) -> bool:
        """Whether a request with this value is evidence."""

    @abstractmethod
    def _bet(self, value: float, share: float, *, candidate: bool) -> None: ...

    def _is_first(self, key: int | None) -> bool:
        if key is None:
            return True
        if key in self.keys or len(self.keys) >= MAX_KEYS:
            return False
        self.keys.add(key)
        return True

    @property
    def evidence(self) -> float:
        """The logarithm of the e-process, the mean of all stakes."""
        if not self.logs:
            return 0.0
        top = max(self.logs)
        return top + math.log(sum(math.exp(one - top) for one in self.logs) / len(self.logs))

    def is_worse(self, alpha: float, margin: float) -> bool:
        """Whether the candidate is certainly worse, and by more than `margin` so far."""
        return self.evidence >= -math.log(alpha) and self.observed > margin

    def is_within(self, alpha: float, margin: float) -> bool:
        """Whether the candidate is certainly not worse by more than `margin`."""
        return self.difference(alpha).high <= margin

    @property
    def observed(self) -> float:
        return self.candidate.mean - self.stable.mean

    def difference(self, alpha: float) -> ArmDifference:
        """The difference, with an interval that holds at all times with the chance 1 - alpha."""
        value = self.observed
        radius = self.stable.radius(alpha / 2) + self.candidate.radius(alpha / 2)
        return ArmDifference(value, max(-1.0, value - radius), min(1.0, value + radius))

    def dump(self) -> dict[str, Any]:
        """The state as values for JSON."""
        return {
            "stable": _dumped(self.stable),
            "candidate": _dumped(self.candidate),
            "logs": self.logs,
            "keys": sorted(self.keys),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Self:
        """The test with the state that `dump` returned; a new one if that is empty."""
        if not state:
            return cls()
        stable, candidate = (ArmSums(*state[name]) for name in ("stable", "candidate"))
        return cls(stable, candidate, list(state["logs"]), set(state["keys"]))


def _dumped(arm: ArmSums) -> list[float]:
    return [arm.requests, arm.sum, arm.spread]


class ShareTest(SequentialTest):
    """For values that are 0, or 1 if the request is bad. Only bad requests are evidence, each key's
    first one."""

    def counts(self, value: float, share: float) -> bool:
        """See `SequentialTest`."""
        return value > 0 and 0 < share < 1

    def _bet(self, value: float, share: float, *, candidate: bool) -> None:
        logs = self.logs or [0.0] * len(RATIOS)
        # With r times as many bad requests this share of them is the candidate's.
        shares = (ratio * share / (1 + (ratio - 1) * share) for ratio in RATIOS)
        if candidate:
            steps = (math.log(one / share) for one in shares)
        else:
            steps = (math.log((1 - one) / (1 - share)) for one in shares)
        self.logs = [log + step for log, step in zip(logs, steps, strict=True)]


class MeanTest(SequentialTest):
    """For values between 0 and 1, of which each key's first one is evidence."""

    def counts(self, value: float, share: float) -> bool:
        """See `SequentialTest`."""
        return 0 < share < 1

    def _bet(self, value: float, share: float, *, candidate: bool) -> None:
        logs = self.logs or [0.0] * len(STAKES)
        requests = self.stable.requests + self.candidate.requests
        usual = (0.5 + self.stable.sum + self.candidate.sum) / (1 + requests)
        # Depends on nothing of this request but its share, so that the bet is fair.
        most = 1 / max((1 - usual) * share, usual * (1 - share))
        won = (value - usual) * ((1 - share) if candidate else -share) * most
        self.logs = [log + math.log1p(stake * won) for log, stake in zip(logs, STAKES, strict=True)]
