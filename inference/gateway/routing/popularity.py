"""What share of a gateway's prompts belongs to one tenant and adapter, lately.

Each gateway sees a random part of all requests, so that its own shares are about the fleet's. No
IO, no clock: what is lately is counted in tokens.
"""

from __future__ import annotations

from collections import defaultdict
from math import sqrt

from msgspec.structs import replace

from inference.gateway.routing.engine_state import Needs

WINDOW_TOKENS = 8 << 20
"""Of a base model, by when all counts are halved: what comes now weighs as much as all before."""
LEAST_TOKENS = 256
"""That a request counts, however short it is. So at most 32,768 adapters are counted: as many as
fit into the window."""
SURE = 1.0
"""Standard deviations of chance that a share is less by: one request in the first ten is no tenth
of the traffic."""


class Popularity:
    """`note` what is sent; `weighed` says what share of it is like that."""

    def __init__(self) -> None:
        self._windows: defaultdict[str, _Window] = defaultdict(_Window)
        """By base model."""

    def note(self, needs: Needs) -> None:
        """Such a request was sent to an engine."""
        if (home := needs.home) is not None:
            self._windows[needs.base_model].note(home, needs.prompt_tokens)

    def weighed(self, needs: Needs) -> Needs:
        """The same with its share."""
        window = self._windows.get(needs.base_model)
        if window is None or (home := needs.home) is None or not (share := window.share(home)):
            return needs
        return replace(needs, share=share)


class _Window:
    """Of one base model."""

    __slots__ = ("_counts", "_requests", "_total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total, self._requests = 0, 0.0

    def note(self, home: int, tokens: int) -> None:
        tokens = min(max(tokens, LEAST_TOKENS), WINDOW_TOKENS)
        self._counts[home] = self._counts.get(home, 0) + tokens
        self._total += tokens
        self._requests += 1
        if self._total > WINDOW_TOKENS:
            halves = {one: count // 2 for one, count in self._counts.items()}
            self._counts = {one: half for one, half in halves.items() if half >= LEAST_TOKENS}
            left = sum(self._counts.values())
            self._requests, self._total = self._requests * left / self._total, left

    def share(self, home: int) -> float:
        """Of all tokens, from 0 to 1: what chance can't have added."""
        if not (count := self._counts.get(home, 0)):
            return 0.0
        share = count / self._total
        return share * max(0.0, 1 - SURE / sqrt(share * self._requests))
