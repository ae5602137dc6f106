"""What one scope has spent and reserved in one period. Sans-IO.

A budget starts from the ledger's figure and is updated by settling, to the pico-unit: rounding each
request up would make a budget of cheap requests smaller than it is. Its figure can only fall short
of the truth, by what was settled elsewhere (by a Redis that lost its memory, by another gateway
while Redis was down); the ledger's only by what has not reached it yet. So from time to time the
ledger is read again and the greater figure is taken; both converge. Only an estimate that was kept,
because a request's usage was unknown, can exceed the truth: then the ledger's figure replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from inference.interfaces.directory import MICRO
from tenants.limits.commands import BudgetPeriod

REFRESH_MS = 60_000
"""How often the ledger is read again while the budget is in use."""

Amounts = dict[str, int]
"""How much of each measure (`kinds.Kind.measure`); a missing one is 0."""


class BudgetOutcome(msgspec.Struct, frozen=True, gc=False):
    """What stays counted of a reservation that ended: amounts by measure, and its cost."""

    amounts: Amounts = {}
    """By measure, and the prompt's `uncached_tokens`."""
    cost: int = 0
    """In whole micro-units of the currency."""
    rest: int = 0
    """The part of the cost below a micro-unit, in pico-units."""
    estimated: bool = False
    """The figures may not match the ledger's, which replace them: the usage is unknown (these are
    the reserved figures), or the ledger may have it already."""
    doubted: bool = False
    """The request may have used something: the ledger is to be read."""

    @property
    def tokens(self) -> int:
        return self.amounts.get("prompt_tokens", 0) + self.amounts.get("output_tokens", 0)


@dataclass(slots=True)
class LimitBudget:
    """Tokens, and costs in micro-units of the currency."""

    period: BudgetPeriod
    tokens: int = 0
    cost: int = 0
    reserved_tokens: int = 0
    reserved_cost: int = 0
    due_ms: int = 0
    """When the ledger is to be read again, in unix milliseconds."""
    rest: int = 0
    """The part of the cost below a micro-unit, in pico-units."""
    estimated: bool = False
    seeded: bool = False
    """Whether the ledger's figure is in it."""

    @property
    def whole_cost(self) -> int:
        """The cost in micro-units, rounded up."""
        return self.cost + (self.rest > 0)

    def seed(self, tokens: int, cost: int, now_ms: int) -> None:
        """Take the ledger's figure if it is greater, or if the budget's own is an estimate."""
        self.seeded = True
        if self.estimated:
            self.tokens, self.cost, self.rest, self.estimated = tokens, cost, 0, False
        self.tokens = max(self.tokens, tokens)
        if cost > self.cost:
            self.cost, self.rest = cost, 0
        self.refreshed(now_ms)

    def refreshed(self, now_ms: int) -> None:
        """Note that the ledger is being read, or was: it is due again after REFRESH_MS."""
        self.due_ms = now_ms + REFRESH_MS

    def reserve(self, tokens: int, cost: int) -> None:
        self.reserved_tokens += tokens
        self.reserved_cost += cost

    def settle(self, tokens: int, cost: int, outcome: BudgetOutcome) -> None:
        """Replace what was reserved by the outcome."""
        self.reserved_tokens -= tokens
        self.reserved_cost -= cost
        self.tokens += outcome.tokens
        whole, self.rest = divmod(self.rest + outcome.rest, MICRO)
        self.cost += outcome.cost + whole
        self.estimated |= outcome.estimated
        if outcome.doubted:
            self.due_ms = 0
