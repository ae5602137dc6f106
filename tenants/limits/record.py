"""One reservation: what was counted for a request, where and when. Sans-IO."""

from __future__ import annotations

import msgspec

from inference.grants import MICRO
from tenants.limits.amounts import Outcome, Part
from tenants.limits.commands import Charge, Rate, Settle
from tenants.limits.counters import Place
from tenants.limits.window import GONE_S, Window

ENDS = {
    "requests": (("requests", "requests"),),
    "tokens": (("prompt_tokens", "prompt_tokens"), ("output_tokens", "output_tokens")),
    "prompt_tokens": (("prompt_tokens", "uncached_tokens"),),
    "output_tokens": (("output_tokens", "output_tokens"),),
}
"""By what a window counts: fields of Part, each with the field of Outcome that replaces it."""


class Record(msgspec.Struct):
    """A reservation. `parts` are those of the last minute, the totals are of all of it; the cost
    is in micro-units, as if nothing were cached."""

    holder: str
    rate: Rate
    place: Place
    parts: list[Part] = []
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def part(self, charge: Charge, output_tokens: int, second: int) -> Part:
        """What the charge reserves with so many output tokens, if it does."""
        prompt_tokens = charge.prompt_tokens
        cost = self.rate.cost(
            self.prompt_tokens + prompt_tokens, 0, self.output_tokens + output_tokens
        )
        tokens = prompt_tokens + output_tokens
        return Part(second, charge.requests, prompt_tokens, output_tokens, tokens, cost - self.cost)

    def add(self, part: Part) -> None:
        """Reserve more; parts that no window holds any longer can't be given back to one."""
        self.parts = [old for old in self.parts if old.second > part.second - GONE_S]
        self.parts.append(part)
        self.requests += part.requests
        self.prompt_tokens += part.prompt_tokens
        self.output_tokens += part.output_tokens
        self.cost += part.cost

    def kept(self) -> Outcome:
        """The outcome where nobody knows any better."""
        return Outcome(
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            uncached_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cost=self.cost,
            estimated=True,
        )

    def used(self, settle: Settle) -> Outcome:
        """The outcome by the engine's figures."""
        uncached = settle.prompt_tokens - settle.cached_tokens
        cached, output = settle.cached_tokens, settle.output_tokens
        cost, rest = divmod(self.rate.exact_cost(uncached, cached, output), MICRO)
        return Outcome(self.requests, settle.prompt_tokens, uncached, output, cost, rest)

    def correct(self, window: Window, kind: str, outcome: Outcome) -> None:
        """Make a window of this kind count the outcome instead of what was reserved."""
        for reserved, final in ENDS[kind]:
            unused = getattr(self, reserved) - getattr(outcome, final)
            if unused > 0:
                self._give_back(window, reserved, unused)
            elif unused < 0:
                window.add(-unused)

    def _give_back(self, window: Window, kind: str, unused: int) -> None:
        """To the seconds in which it was reserved, the newest first."""
        for part in reversed(self.parts):
            back = min(getattr(part, kind), unused)
            window.give_back(part.second, back)
            unused -= back
