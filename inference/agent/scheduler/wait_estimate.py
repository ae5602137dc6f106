"""Estimates how long a request will wait, from the rate of completions: for `retry-after`."""

from __future__ import annotations

import math

MEMORY_S = 30.0
"""Time after which a measurement counts for 1/e: longer than most answers, shorter than a rush."""

ENOUGH = 3
"""Completions before there is a rate to speak of."""

DEFAULT_WAIT_S = 2.0
"""Said before anything was measured: the time in which a full queue of short requests moves on."""

LONGEST_WAIT_S = 600.0
"""Nobody waits longer than a request's time limit."""


class WaitEstimate:
    """Completions per second, measured only while somebody waits: idle time says nothing.

    Both completions and time fade away exponentially, so their quotient is right from the start.
    """

    def __init__(self) -> None:
        self._measured = 0
        self._completed = 0.0
        self._busy_s = 0.0
        self._since: float | None = None
        """When somebody was last seen waiting, and does so still."""

    def look(self, now: float, *, waiting: bool) -> None:
        """The time is `now`, and from here on somebody waits or nobody does."""
        if self._since is not None:
            elapsed_s = max(0.0, now - self._since)
            fading = math.exp(-elapsed_s / MEMORY_S)
            self._completed *= fading
            self._busy_s = self._busy_s * fading + elapsed_s
        self._since = now if waiting else None

    def completed(self) -> None:
        """A request ended; counts if somebody waits. Call `look` first."""
        if self._since is not None:
            self._measured += 1
            self._completed += 1

    def wait_s(self, requests: int) -> float:
        """How long until this many requests have ended, in seconds."""
        if self._measured < ENOUGH or not self._busy_s:
            return DEFAULT_WAIT_S
        if not self._completed:  # faded to nothing: the engine has stood still for hours
            return LONGEST_WAIT_S
        return min(requests * self._busy_s / self._completed, LONGEST_WAIT_S)
