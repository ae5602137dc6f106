"""Tracks whether the database is down, from the results of queries. Sans-IO: `now` is a monotonic
time in seconds.

A query that gets no answer takes seconds. So during an outage only one caller at a time tries, and
callers that have a cached value use it at once.
"""

from __future__ import annotations

ASK_AGAIN_S = 5.0
"""Interval between tries; longer than the timeout of a query."""


class Outage:
    def __init__(self) -> None:
        self._lasts = False
        self._ask_at = 0.0

    def spares(self, now: float) -> bool:
        """Whether the caller should not query now. If False during an outage, this caller tries,
        and others are spared for ASK_AGAIN_S."""
        if not self._lasts:
            return False
        if now < self._ask_at:
            return True
        self._ask_at = now + ASK_AGAIN_S
        return False

    def found(self, now: float) -> None:
        """A query got no answer."""
        self._lasts, self._ask_at = True, now + ASK_AGAIN_S

    def over(self) -> None:
        """A query was answered."""
        self._lasts = False
