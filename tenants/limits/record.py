"""One reservation: what was counted for a request, where and when. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenants.limits.commands import Rate
from tenants.limits.counters import WEIGHTS, Place
from tenants.limits.outcome import Outcome
from tenants.limits.window import GONE_S, Window

KINDS = {
    "requests_per_minute": (("requests", "requests"),),
    "tokens_per_minute": (
        ("prompt_tokens", "prompt_tokens"),
        ("output_tokens", "output_tokens"),
    ),
    "prompt_tokens_per_minute": (("prompt_tokens", "uncached_tokens"),),
    "output_tokens_per_minute": (("output_tokens", "output_tokens"),),
}
"""What a window counts: fields of Part, each with the field of Outcome that replaces it."""


class Part(NamedTuple):
    """What was reserved at one moment, a unix time in seconds."""

    second: int
    requests: int
    prompt_tokens: int
    output_tokens: int

    def counted(self, name: str) -> int:
        """What the window of this limit counts of it."""
        requests, prompt, output = WEIGHTS[name]
        return requests * self.requests + prompt * self.prompt_tokens + output * self.output_tokens


@dataclass(slots=True)
class Record:
    """A reservation. `parts` are those of the last minute, the totals are of all of it."""

    holder: str
    rate: Rate
    places: Sequence[Place]
    parts: list[Part] = field(default_factory=list)
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def cost(self, prompt_tokens: int = 0, output_tokens: int = 0) -> int:
        """In micro-units, of what is reserved and so many tokens more; none of them cached."""
        return self.rate.cost(
            self.prompt_tokens + prompt_tokens, 0, self.output_tokens + output_tokens
        )

    def add(self, part: Part) -> None:
        """Reserve more; parts that no window holds any longer can't be given back to one."""
        self.parts = [old for old in self.parts if old.second > part.second - GONE_S]
        self.parts.append(part)
        self.requests += part.requests
        self.prompt_tokens += part.prompt_tokens
        self.output_tokens += part.output_tokens

    def affordable(self, prompt_tokens: int, wanted: int, money: int) -> int:
        """The most output tokens, up to `wanted`, that `money` micro-units pay for after so many
        prompt tokens; -1 where it doesn't pay for these."""
        money += self.cost()
        if self.cost(prompt_tokens, wanted) <= money:
            return wanted
        enough, too_many = -1, wanted
        while too_many - enough > 1:
            middle = (enough + too_many) // 2
            if self.cost(prompt_tokens, middle) <= money:
                enough = middle
            else:
                too_many = middle
        return enough

    def kept(self) -> Outcome:
        """The outcome where nobody knows any better."""
        return Outcome(
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            uncached_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cost=self.cost(),
            estimated=True,
        )

    def used(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> Outcome:
        """The outcome by the engine's figures."""
        uncached = prompt_tokens - cached_tokens
        cost = self.rate.cost(uncached, cached_tokens, output_tokens)
        return Outcome(self.requests, prompt_tokens, uncached, output_tokens, cost)

    def correct(self, window: Window, name: str, outcome: Outcome) -> None:
        """Make the window of this limit count the outcome instead of what was reserved."""
        for kind, final in KINDS[name]:
            unused = getattr(self, kind) - getattr(outcome, final)
            if unused > 0:
                self._give_back(window, kind, unused)
            elif unused < 0:
                window.add(-unused)

    def _give_back(self, window: Window, kind: str, unused: int) -> None:
        """To the seconds in which it was reserved, the newest first."""
        for part in reversed(self.parts):
            back = min(getattr(part, kind), unused)
            window.give_back(part.second, back)
            unused -= back
