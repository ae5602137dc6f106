"""Estimates how long a request will wait, from the rate of completions: for `retry-after`."""

from __future__ import annotations

import math

MEMORY_S = 30.0
"""Time after which a measurement counts for 1/e: longer than most answers, shorter than a rush."""

ENOUGH = 3
"""Completions before a rate is estimated."""

DEFAULT_WAIT_S = 2.0
"""Used before anything was measured: the time in which a full queue of short requests moves on."""

LONGEST_WAIT_S = 600.0
"""No request waits longer than its time limit."""


class WaitEstimate:
    """Completions per second, measured only while requests wait: idle time says nothing.

    Both completions and time decay exponentially, so their quotient is right from the start.
    """

    def __init__(self) -> None:
        self._measured = 0
        self._completed = 0.0
        self._busy_s = 0.0
        self._since: float | None = None
        """Time of the last `look`, if requests waited then."""

    def advance(self, now: float, *, waiting: bool) -> None:
        """The time is `now`; `waiting`: whether requests wait from now on."""
        if self._since is not None:
            elapsed_s = max(0.0, now - self._since)
            fading = math.exp(-elapsed_s / MEMORY_S)
            self._completed *= fading
            self._busy_s = self._busy_s * fading + elapsed_s
        self._since = now if waiting else None

    def completed(self) -> None:
        """A request ended; counts only while requests wait. Call `look` first."""
        if self._since is not None:
            self._measured += 1
            self._completed += 1

    def wait_s(self, requests: int) -> float:
        """How long until this many requests have ended, in seconds."""
        if self._measured < ENOUGH or not self._busy_s:
            return DEFAULT_WAIT_S
        if not self._completed:  # decayed to 0: the engine has stood still for hours
            return LONGEST_WAIT_S
        return min(requests * self._busy_s / self._completed, LONGEST_WAIT_S)
