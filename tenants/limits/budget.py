"""What one period of one scope has spent and reserved. Sans-IO.

A budget starts from the ledger's figure and is kept by settling, to the pico-unit: each request
rounded up would make a budget of cheap ones smaller than it is. Its figure can only fall short of
the truth, by what was settled where this counter was not (a Redis that lost its memory, another
gateway while Redis was away); the ledger's only by what is on its way to it. So from time to time
the ledger is asked again and the greater figure holds; both converge. Only an estimate that stayed
(nobody knew what a request used) may exceed the truth: then the ledger's figure replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from inference.grants import MICRO
from tenants.limits.commands import BudgetPeriod

REFRESH_MS = 60_000
"""How often the ledger is asked again, while the budget is in use."""

Amounts = dict[str, int]
"""How much of each measure (`kinds.Kind.measure`); one that is missing is 0."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What stays counted of a reservation that ended: by measure, and in money."""

    amounts: Amounts = {}
    """Also `uncached_tokens`, of the prompt."""
    cost: int = 0
    rest: int = 0
    """Of the cost, below a micro-unit: in pico-units."""
    estimated: bool = False
    """Nobody knows what it used: these are the figures that were reserved."""
    doubted: bool = False
    """It may have used something: the ledger is to be asked."""

    @property
    def tokens(self) -> int:
        return self.amounts.get("prompt_tokens", 0) + self.amounts.get("output_tokens", 0)


@dataclass(slots=True)
class Budget:
    """Tokens, and costs in micro-units of the currency."""

    period: BudgetPeriod
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
        self.refreshed(now_ms)

    def refreshed(self, now_ms: int) -> None:
        """The ledger is being asked, or was: it is due again after REFRESH_MS."""
        self.due_ms = now_ms + REFRESH_MS

    def reserve(self, tokens: int, cost: int) -> None:
        self.reserved_tokens += tokens
        self.reserved_cost += cost

    def settle(self, tokens: int, cost: int, outcome: Outcome) -> None:
        """Replace what was reserved by the outcome."""
        self.reserved_tokens -= tokens
        self.reserved_cost -= cost
        self.tokens += outcome.tokens
        whole, self.rest = divmod(self.rest + outcome.rest, MICRO)
        self.cost += outcome.cost + whole
        self.estimated |= outcome.estimated
        if outcome.doubted:
            self.due_ms = 0
