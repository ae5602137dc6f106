"""A database that is away, as those find out who ask it. Sans-IO: `now` is a monotonic time.

To ask in vain takes seconds. So while it is away one caller at a time asks for all, and whoever has
something to go on with goes on.
"""

from __future__ import annotations

ASK_AGAIN_S = 5.0
"""Longer than an answer is waited for."""


class Outage:
    def __init__(self) -> None:
        self._lasts = False
        self._ask_at = 0.0

    def spares(self, now: float) -> bool:
        """Whether there is no use in asking now; if there is, the others are spared meanwhile."""
        if not self._lasts:
            return False
        if now < self._ask_at:
            return True
        self._ask_at = now + ASK_AGAIN_S
        return False

    def found(self, now: float) -> None:
        """Somebody has asked in vain."""
        self._lasts, self._ask_at = True, now + ASK_AGAIN_S

    def over(self) -> None:
        """Somebody was answered."""
        self._lasts = False
