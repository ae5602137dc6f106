"""What one budget period of one scope has spent and reserved. Sans-IO.

`spent` starts from the ledger and is kept by settling, to the pico-unit: each request rounded up
would make a budget of cheap ones smaller than it is. It can only ever fall short of the truth, by
what was settled where this counter was not (a Redis that lost its memory, another gateway while
Redis was away), and the ledger by what is on its way to it. So from time to time the ledger is
asked again and the greater figure holds; both end at the same one. Only an estimate that stayed
(nobody knew what a request used) may exceed the truth: then the ledger's figure replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.grants import MICRO
from tenants.limits.amounts import Outcome
from tenants.limits.commands import Budget

REFRESH_MS = 60_000
"""How often the ledger is asked again, while the budget is in use."""


@dataclass(slots=True)
class Purse:
    """Tokens, and costs in micro-units of the currency."""

    budget: Budget
    tokens: int = 0
    cost: int = 0
    reserved_tokens: int = 0
    reserved_cost: int = 0
    due_ms: int = 0
    """When the ledger is to be asked again, in unix time."""
    rest: int = 0
    """Of the cost, below a micro-unit: in pico-units."""
    estimated: bool = False
    seeded: bool = False
    """Whether the ledger's figure is in it."""

    @property
    def whole_cost(self) -> int:
        """A started micro-unit counted whole."""
        return self.cost + (self.rest > 0)

    def seed(self, tokens: int, cost: int, now_ms: int) -> None:
        """Take the ledger's figure."""
        self.seeded = True
        if self.estimated:
            self.tokens, self.cost, self.rest, self.estimated = tokens, cost, 0, False
        self.tokens = max(self.tokens, tokens)
        if cost > self.cost:
            self.cost, self.rest = cost, 0
        self.ask_again(now_ms)

    def ask_again(self, now_ms: int) -> None:
        """Somebody asks, or did just now: it is due in a while."""
        self.due_ms = now_ms + REFRESH_MS

    def reserve(self, tokens: int, cost: int) -> None:
        self.reserved_tokens += tokens
        self.reserved_cost += cost

    def end(self, tokens: int, cost: int, outcome: Outcome) -> None:
        """What was reserved of it is spent by the outcome."""
        self.reserved_tokens -= tokens
        self.reserved_cost -= cost
        self.tokens += outcome.prompt_tokens + outcome.output_tokens
        whole, self.rest = divmod(self.rest + outcome.rest, MICRO)
        self.cost += outcome.cost + whole
        self.estimated |= outcome.estimated
        if outcome.doubted:
            self.due_ms = 0
