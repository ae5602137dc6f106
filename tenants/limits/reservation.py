"""One reservation: what was counted for a request, where and when. Sans-IO."""

from __future__ import annotations

import msgspec

from inference.interfaces.directory import MICRO
from tenants.limits.budget import Amounts, BudgetOutcome
from tenants.limits.commands import Charge, SettleReservation, SpentReport, TokenRate
from tenants.limits.counters import BoundLimits
from tenants.limits.kinds import PROMPT_TOKENS
from tenants.limits.window import GONE_S, LimitWindow

_SETTLED_BY = {
    "tokens": ((PROMPT_TOKENS, PROMPT_TOKENS), ("output_tokens", "output_tokens")),
    PROMPT_TOKENS: ((PROMPT_TOKENS, "uncached_tokens"),),
}
"""By measure of a window: the reserved amounts, each with the amount of the Outcome that replaces
it. Any other measure is replaced by the amount of the same name."""


class ReservedPart(msgspec.Struct, frozen=True, gc=False):
    """The amounts of every measure that are reserved in one second of unix time."""

    second: int
    amounts: Amounts


class StoredReservation(msgspec.Struct):
    """A reservation as a store keeps it. `parts` are those of the last minute, `amounts` the sum of
    these and all older ones. The cost is in micro-units and assumes that nothing is cached."""

    holder: str
    rate: TokenRate
    bound: BoundLimits
    parts: list[ReservedPart] = []
    amounts: Amounts = {}
    quantities: Amounts = {}
    """The amounts that were known when the request started, such as `requests`."""

    def amount(self, measure: str) -> int:
        return self.amounts.get(measure, 0)

    def part(self, charge: Charge, output_tokens: int, second: int) -> ReservedPart:
        """What the charge would reserve with this many output tokens; changes nothing."""
        prompt_tokens = charge.prompt_tokens
        cost = self.rate.cost(
            self.amount(PROMPT_TOKENS) + prompt_tokens,
            0,
            self.amount("output_tokens") + output_tokens,
        )
        amounts = {
            **charge.quantities,
            PROMPT_TOKENS: prompt_tokens,
            "output_tokens": output_tokens,
            "tokens": prompt_tokens + output_tokens,
            "cost": cost - self.amount("cost"),
        }
        return ReservedPart(second, amounts)

    def add(self, part: ReservedPart, quantities: Amounts) -> None:
        """Reserve more. Drops parts that have left the window and cannot get anything back."""
        self.parts = [old for old in self.parts if old.second > part.second - GONE_S]
        self.parts.append(part)
        self.amounts = _sum(self.amounts, part.amounts)
        self.quantities = _sum(self.quantities, quantities)

    def kept(self) -> BudgetOutcome:
        """The outcome if the usage is unknown: all that was reserved."""
        prompt = self.amount(PROMPT_TOKENS)
        amounts = {**self.amounts, "uncached_tokens": prompt}
        return BudgetOutcome(amounts, self.amount("cost"), estimated=True)

    def used(
        self, settle: SettleReservation | SpentReport, *, known: bool = False
    ) -> BudgetOutcome:
        """The outcome by the engine's figures; `known`: the ledger may have them already."""
        uncached = settle.prompt_tokens - settle.cached_tokens
        cached, output = settle.cached_tokens, settle.output_tokens
        rate = settle.rate or self.rate
        cost, rest = divmod(rate.exact_cost(uncached, cached, output), MICRO)
        amounts = {
            **self.quantities,
            PROMPT_TOKENS: settle.prompt_tokens,
            "uncached_tokens": uncached,
            "output_tokens": output,
        }
        return BudgetOutcome(amounts, cost, rest, estimated=known)

    def abandoned(self) -> BudgetOutcome:
        """The outcome if the holder died: the quantities that starting took stay counted."""
        return BudgetOutcome(self.quantities, doubted=True)

    def correct(self, window: LimitWindow, measure: str, outcome: BudgetOutcome) -> None:
        """Make a window of this measure count the outcome instead of what was reserved."""
        for reserved, final in _SETTLED_BY.get(measure, ((measure, measure),)):
            unused = self.amount(reserved) - outcome.amounts.get(final, 0)
            if unused > 0:
                self._give_back(window, reserved, unused)
            elif unused < 0:
                window.add(-unused)

    def _give_back(self, window: LimitWindow, measure: str, unused: int) -> None:
        """Give `unused` back to the seconds in which it was reserved, the newest first."""
        for part in reversed(self.parts):
            back = min(part.amounts.get(measure, 0), unused)
            window.give_back(part.second, back)
            unused -= back


def _sum(one: Amounts, other: Amounts) -> Amounts:
    if not one:
        return dict(other)
    return {measure: one.get(measure, 0) + other.get(measure, 0) for measure in one | other}
