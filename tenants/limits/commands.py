"""What a store of counters is asked, and what it answers. Each command is atomic in every store.

Maps with field names, which Redis's script reads by name; so fields may be added in any order.
Every number stays below 2**53, up to which the doubles of Lua are exact: limits are at most 1e12
(`tenants.models.limits.MAX_LIMIT`), prices as well, tokens of one request at most MAX_TOKENS.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

import msgspec

from inference.grants import MICRO, Limits, Price
from tenants.limits.kinds import Period

MAX_TOKENS = 10**9
"""What an ask is cut to: no model generates that much, and no product of it overflows."""
DAY_S = 86_400


class Value(msgspec.Struct, frozen=True):
    """A plain value inside commands and answers."""


class Scope(Value, frozen=True):
    """`inference.grants.Limits` without the words: the value of each limit that is set, by kind."""

    id: str
    limits: dict[str, int] = {}

    def __hash__(self) -> int:
        """As Limits."""
        return hash(self.id)

    @staticmethod
    def of(limits: Limits) -> Scope:
        return Scope(limits.scope_id, dict(limits.values))


class BudgetPeriod(Value, frozen=True):
    """One period of one scope's budgets; `start` is its first second in unix time."""

    scope_id: str
    period: Period
    start: int

    @property
    def end(self) -> int:
        """The first second after it."""
        return end_of(self.period, self.start)


def start_of(period: Period, second: int) -> int:
    """The first second of the UTC day or month that this unix time lies in."""
    if period == "day":
        return second - second % DAY_S
    day = datetime.fromtimestamp(second, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp())


def end_of(period: Period, start: int) -> int:
    """The first second after the period."""
    return start + DAY_S if period == "day" else start_of("month", start + 31 * DAY_S)


class Rate(Value, frozen=True):
    """`inference.grants.Price`, in pico-units of the currency per token."""

    prompt: int = 0
    cached_prompt: int = 0
    output: int = 0

    @classmethod
    def of(cls, price: Price) -> Rate:
        return cls(price.prompt, price.cached_prompt, price.output)

    def exact_cost(self, uncached: int, cached: int, output: int) -> int:
        """In pico-units of the currency."""
        return uncached * self.prompt + cached * self.cached_prompt + output * self.output

    def cost(self, uncached: int, cached: int, output: int) -> int:
        """In micro-units of the currency, a started one counted whole."""
        return -(-self.exact_cost(uncached, cached, output) // MICRO)


# --- commands ------------------------------------------------------------------------------------


class Command(msgspec.Struct, tag_field="type", frozen=True):
    """One question to a store."""


class Charge(Command, tag="charge", frozen=True):
    """Reserve in all scopes or in none; answered by Granted, Refused, Unseeded or Withdrawn.

    Under an id that has a reservation it reserves more, in the scopes of that one, which `scopes`
    must be. A reservation that the store has lost is made anew, so that a stream goes on after
    Redis was restarted. `quantities` is what it takes besides tokens, by measure: one of `requests`
    if it is new, nothing if it runs and needs more tokens. `holder` names the gateway process,
    whose lease is renewed.
    """

    id: str
    holder: str
    scopes: tuple[Scope, ...]
    rate: Rate
    quantities: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    least_output_tokens: int


class Settle(Command, tag="settle", frozen=True):
    """The request ended and used this; only the first Settle, Keep or Release of an id counts."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Report(Command, tag="report", frozen=True):
    """An engine says, through another gateway than the one that reserved, what a request used, or
    an attempt of it: it counts once the lease of that one is over, who else settles it. Of several
    the one with most output counts. Without a reservation it is as Release."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Keep(Command, tag="keep", frozen=True):
    """The request ended and nobody knows what it used: what was reserved stays as used."""

    id: str


class Release(Command, tag="release", frozen=True):
    """The request never ran: give everything back.

    An id without a reservation is not reserved for the next minute: the Charge is still on its
    way, and who sent it has given up on it.
    """

    id: str


class Take(Command, tag="take", frozen=True):
    """This gateway process goes on with the request of another one: the reservation is under its
    lease from now on. Answered by Taken."""

    id: str
    holder: str


class Renew(Command, tag="renew", frozen=True):
    """Set the lease of this gateway process to `lease_ms` from now; 0: it has left."""

    holder: str
    lease_ms: int


class Holds(Command, tag="holds", frozen=True):
    """Which reservations this gateway process has; answered by Ids."""

    holder: str


class Seed(Command, tag="seed", frozen=True):
    """What the ledger has for a budget, in tokens and in micro-units of the currency."""

    budget: BudgetPeriod
    tokens: int
    cost: int


class Look(Command, tag="look", frozen=True):
    """How much is left of each scope's limits; answered by Rooms."""

    scopes: tuple[Scope, ...]


class Count(Command, tag="count", frozen=True):
    """What is counted against this scope's limits, but for budgets; answered by Counts."""

    scope: Scope


AnyCommand = Charge | Settle | Report | Keep | Release | Take | Renew | Holds | Seed | Look | Count

# --- answers -------------------------------------------------------------------------------------


class Answer(msgspec.Struct, tag_field="type", frozen=True):
    """One answer of a store."""


class Left(Value, frozen=True):
    """What is left of a limit of a scope, and in how many milliseconds its window is empty."""

    kind: str
    limit: int
    remaining: int
    reset_ms: int


class Granted(Answer, tag="granted", frozen=True):
    """Reserved. `due` are budgets whose figure should be compared with the ledger again."""

    output_tokens: int
    left: list[Left]
    due: list[BudgetPeriod]


class Refused(Answer, tag="refused", frozen=True):
    """Nothing was reserved: the limit `kind` of the scope with this index is in the way.

    `requested` is the least that would do. `wait_ms` is the time until it fits if nobody else
    comes, None where it never will; for a budget the time until it renews, at the unix time
    `renews_at` in seconds. Of several limits in the way it is the one to wait longest for. `due` as
    of Granted: an estimate must not keep a budget exhausted for which less was billed.
    """

    scope: int
    kind: str
    used: int
    requested: int
    wait_ms: int | None = None
    renews_at: int | None = None
    due: list[BudgetPeriod] = []


class Unseeded(Answer, tag="unseeded", frozen=True):
    """Nothing was reserved: Seed these budgets first."""

    budgets: list[BudgetPeriod]


class Withdrawn(Answer, tag="withdrawn", frozen=True):
    """Nothing was reserved: the id was released before."""


class Rooms(Answer, tag="rooms", frozen=True):
    """Answers Look."""

    left: list[Left]


class Used(Value, frozen=True):
    """How much of a limit is used and reserved."""

    kind: str
    amount: int


class Counts(Answer, tag="counts", frozen=True):
    """Answers Count."""

    used: list[Used]


class Taken(Answer, tag="taken", frozen=True):
    """Answers Take: the output tokens that are reserved, None if the reservation has ended."""

    output_tokens: int | None = None


class Ids(Answer, tag="ids", frozen=True):
    """Answers Holds."""

    ids: list[str]


class Done(Answer, tag="done", frozen=True):
    """Answers every other command."""


AnyAnswer = Granted | Refused | Unseeded | Withdrawn | Rooms | Counts | Taken | Ids | Done


class StoreDown(Exception):
    """The store cannot be reached; what it was told may or may not have been done."""


class Store(Protocol):
    """Where the counters are."""

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        """Each command in order, its answer at the same place.

        Raises:
            StoreDown: some or all of them may not have been done.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
