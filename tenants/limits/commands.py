"""Commands to a store of counters, and its answers. Each command is atomic in every store.

They are encoded as maps, whose fields the Redis script reads by name; so fields may be added in any
order. Every number stays below 2**53, up to which Lua's doubles are exact: limits and prices are at
most 1e12 (`tenants.models.limits.MAX_LIMIT`), tokens of one request at most MAX_TOKENS.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

import msgspec

from inference.interfaces.directory import MICRO, Limits, TokenPrice
from tenants.limits.kinds import Period
from tenants.utc import month_end, month_start

MAX_TOKENS = 10**9
"""Upper bound to which each number of an ask is cut: no model generates as much, and no product of
it overflows."""
DAY_S = 86_400


class StoredValue(msgspec.Struct, frozen=True):
    """A plain value inside commands and answers."""


class CountedScope(StoredValue, frozen=True):
    """`interfaces.directory.Limits` without its display name: each limit that is set, by kind."""

    id: str
    limits: dict[str, int] = {}

    def __hash__(self) -> int:
        """As `interfaces.directory.Limits`."""
        return hash(self.id)

    @staticmethod
    def of(limits: Limits) -> CountedScope:
        return CountedScope(limits.scope_id, dict(limits.values))


class BudgetPeriod(StoredValue, frozen=True):
    """One period of one scope's budgets; `start` is its first second in unix time."""

    scope_id: str
    period: Period
    start: int

    @property
    def end(self) -> int:
        """The first second after it."""
        return end_of(self.period, self.start)


def start_of(period: Period, second: int) -> int:
    """The first second of the UTC day or month that contains this unix time."""
    if period == "day":
        return second - second % DAY_S
    return int(month_start(datetime.fromtimestamp(second, UTC)).timestamp())


def end_of(period: Period, start: int) -> int:
    """The first second after the period."""
    if period == "day":
        return start + DAY_S
    return int(month_end(datetime.fromtimestamp(start, UTC)).timestamp())


class TokenRate(StoredValue, frozen=True):
    """`interfaces.directory.Price`, in pico-units of the currency per token."""

    prompt: int = 0
    cached_prompt: int = 0
    output: int = 0

    @classmethod
    def of(cls, price: TokenPrice) -> TokenRate:
        return cls(price.prompt, price.cached_prompt, price.output)

    def exact_cost(self, uncached: int, cached: int, output: int) -> int:
        """In pico-units of the currency."""
        return uncached * self.prompt + cached * self.cached_prompt + output * self.output

    def cost(self, uncached: int, cached: int, output: int) -> int:
        """In micro-units of the currency, rounded up."""
        return -(-self.exact_cost(uncached, cached, output) // MICRO)


# --- commands ------------------------------------------------------------------------------------


class Command(msgspec.Struct, tag_field="type", frozen=True):
    """Base of the commands to a store."""


class Charge(Command, tag="charge", frozen=True):
    """Reserve in all scopes or in none; answered by Granted, Refused, Unseeded or Withdrawn.

    For an id that has a reservation it reserves more, in that reservation's scopes, to which
    `scopes` must be equal. A reservation that the store has lost is made again, so that a stream
    continues after a restart of Redis. `quantities` is what it takes besides tokens, by measure:
    one of `requests` for a new request, nothing for a running one that needs more tokens. `holder`
    names the gateway process, whose lease is renewed.
    """

    id: str
    holder: str
    scopes: tuple[CountedScope, ...]
    rate: TokenRate
    quantities: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    least_output_tokens: int


class SettleReservation(Command, tag="settle", frozen=True):
    """The request ended and used this. Only the first Settle, Keep or Release of an id counts.
    `rate` is that of the bill; None: the one with which it was reserved."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    rate: TokenRate | None = None


class SpentReport(Command, tag="report", frozen=True):
    """The usage of a request, or of one attempt of it, which an engine reports through a gateway
    other than the one that reserved. It counts after the lease of the reserving gateway has ended;
    until then that gateway may settle the request itself. Of several reports the one with the most
    output counts. Without a reservation it acts as Release. `rate` as in SettleReservation."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    rate: TokenRate | None = None


class Keep(Command, tag="keep", frozen=True):
    """The request ended and its usage is unknown: what was reserved counts as used."""

    id: str


class Release(Command, tag="release", frozen=True):
    """The request never ran: give everything back.

    If the id has no reservation, a Charge under it is refused for the next minute: that Charge is
    still in transit, and its sender has given up on it.
    """

    id: str


class Take(Command, tag="take", frozen=True):
    """This gateway process continues a request of another one: from now on the reservation is under
    its lease. Answered by Taken."""

    id: str
    holder: str


class Renew(Command, tag="renew", frozen=True):
    """Set the lease of this gateway process to `lease_ms` from now; 0: it has stopped."""

    holder: str
    lease_ms: int


class Holds(Command, tag="holds", frozen=True):
    """Which reservations this gateway process has; answered by Ids."""

    holder: str


class Seed(Command, tag="seed", frozen=True):
    """The ledger's figures for a budget, in tokens and in micro-units of the currency."""

    budget: BudgetPeriod
    tokens: int
    cost: int


class Peek(Command, tag="look", frozen=True):
    """How much is left of each scope's limits; answered by Rooms."""

    scopes: tuple[CountedScope, ...]


class Count(Command, tag="count", frozen=True):
    """What is counted against this scope's limits, except budgets; answered by Counts."""

    scope: CountedScope


AnyCommand = (
    Charge
    | SettleReservation
    | SpentReport
    | Keep
    | Release
    | Take
    | Renew
    | Holds
    | Seed
    | Peek
    | Count
)

# --- answers -------------------------------------------------------------------------------------


class CommandAnswer(msgspec.Struct, tag_field="type", frozen=True):
    """Base of a store's answers."""


class Left(StoredValue, frozen=True):
    """What is left of one limit, and the milliseconds until its window is empty."""

    kind: str
    limit: int
    remaining: int
    reset_ms: int


class Granted(CommandAnswer, tag="granted", frozen=True):
    """Reserved. `due` are budgets whose figures should be read from the ledger again."""

    output_tokens: int
    left: list[Left]
    due: list[BudgetPeriod]


class LimitRefused(CommandAnswer, tag="refused", frozen=True):
    """Nothing was reserved: the limit `kind` of the scope with the index `scope` has no room.

    `requested` is the least that the request accepts. `wait_ms` is the time until that fits if no
    other request comes, None if it never will; for a budget the time until it renews, at the unix
    time `renews_at` in seconds. Of several exceeded limits it is the one with the longest wait.
    `due` is as in Granted: an estimate must not keep a budget exhausted when less was billed.
    """

    scope: int
    kind: str
    used: int
    requested: int
    wait_ms: int | None = None
    renews_at: int | None = None
    due: list[BudgetPeriod] = []


class Unseeded(CommandAnswer, tag="unseeded", frozen=True):
    """Nothing was reserved: these budgets need a Seed first."""

    budgets: list[BudgetPeriod]


class Withdrawn(CommandAnswer, tag="withdrawn", frozen=True):
    """Nothing was reserved: the id was released before."""


class Rooms(CommandAnswer, tag="rooms", frozen=True):
    """Answers Peek."""

    left: list[Left]


class Used(StoredValue, frozen=True):
    """How much of a limit is used and reserved."""

    kind: str
    amount: int


class LimitCounts(CommandAnswer, tag="counts", frozen=True):
    """Answers Count."""

    used: list[Used]


class TakenOver(CommandAnswer, tag="taken", frozen=True):
    """Answers Take: the output tokens that are reserved, None if the reservation has ended."""

    output_tokens: int | None = None


class Ids(CommandAnswer, tag="ids", frozen=True):
    """Answers Holds."""

    ids: list[str]


class CommandDone(CommandAnswer, tag="done", frozen=True):
    """Answers every other command."""


AnyAnswer = (
    Granted
    | LimitRefused
    | Unseeded
    | Withdrawn
    | Rooms
    | LimitCounts
    | TakenOver
    | Ids
    | CommandDone
)


class StoreDown(Exception):
    """The store cannot be reached; the commands may or may not have been executed."""


class LimitStore(Protocol):
    """Holds the counters."""

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        """Execute the commands in order; returns their answers in the same order.

        Raises:
            StoreDown: some or all of them may not have been executed.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
