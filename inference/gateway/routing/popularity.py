"""The recent share of each tenant and adapter in a gateway's prompts.

Each gateway sees a random part of all requests, so its own shares are about those of the fleet. No
IO, no clock: the window is counted in tokens.
"""

from __future__ import annotations

from collections import defaultdict
from math import sqrt

from msgspec.structs import replace

from inference.gateway.routing.engine_state import Needs

WINDOW_TOKENS = 8 << 20
"""Prompt tokens of a base model after which all its counts are halved, so that new requests weigh
as much as all earlier ones together."""
LEAST_TOKENS = 256
"""The least that a request counts. This bounds the counted adapters to 32,768, the number that fits
into the window."""
SURE = 1.0
"""Standard deviations subtracted from a share: one of the first ten requests is not yet evidence
for a tenth of the traffic."""


class Popularity:
    """Call `note` for each request sent; `weighed` adds the share of such requests."""

    def __init__(self) -> None:
        self._windows: defaultdict[str, _Window] = defaultdict(_Window)
        """By base model."""

    def note(self, needs: Needs) -> None:
        """A request with these needs was sent to an engine."""
        if (home := needs.home) is not None:
            self._windows[needs.base_model].note(home, needs.prompt_tokens)

    def weighed(self, needs: Needs) -> Needs:
        """The same needs with their share of the traffic."""
        window = self._windows.get(needs.base_model)
        if window is None or (home := needs.home) is None or not (share := window.share(home)):
            return needs
        return replace(needs, share=share)


class _Window:
    """The counts of one base model."""

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
        """The share of this home in all tokens, 0 to 1, reduced by SURE standard deviations."""
        if not (count := self._counts.get(home, 0)):
            return 0.0
        share = count / self._total
        return share * max(0.0, 1 - SURE / sqrt(share * self._requests))
