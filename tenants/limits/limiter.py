"""The limiter of the token path: `interfaces.limiter.Limiter` over a store of counters.

Reserving waits for the store, ending a reservation never does. A reservation is settled in the
store where it was made; what was reserved in another store while that one was down stays counted
in that other store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import NamedTuple, Self

import msgspec
import structlog
from django.conf import settings

from inference.errors import Unavailable
from inference.interfaces.directory import Grant, Limits, ResolvedTarget, TokenPrice
from inference.interfaces.limiter import Reservation, ReservationRequest, Room
from inference.link.accounts import Usage
from inference.process.supervision import ended, supervised
from tenants.limits.commands import (
    MAX_TOKENS,
    AnyAnswer,
    BudgetPeriod,
    Charge,
    Count,
    CountedScope,
    Granted,
    Holds,
    Ids,
    Keep,
    Left,
    LimitCounts,
    LimitRefused,
    LimitStore,
    Peek,
    Release,
    Rooms,
    Seed,
    SettleReservation,
    SpentReport,
    StoreDown,
    Take,
    TakenOver,
    TokenRate,
    Unseeded,
)
from tenants.limits.failover import Failover
from tenants.limits.kinds import KINDS, Kinds
from tenants.limits.memory import MemoryStore
from tenants.limits.redis_store import TIMEOUT_S, RedisStore
from tenants.limits.refusals import error_of
from tenants.limits.spent import Spent
from tenants.limits.state import LEASE_MS
from tenants.limits.window import WINDOW_S

log = structlog.get_logger(__name__)

ROUNDS = 4
"""Attempts of one charge: a store may ask to seed budgets and then go down, after which the local
one may ask for the same."""

SCOPES = 8192
"""Sets of limits whose derived values are cached: most requests share a few of them."""


class HeldReservation(msgspec.Struct, eq=False):
    """A reservation of this process: the charge that made it, and the stores that hold a part of
    it, the one in which it was made first."""

    charge: Charge
    limits: tuple[Limits, ...]
    stores: list[LimitStore] = []


class StoreLimiter:
    """`interfaces.limiter.Limiter`. Use as an async context manager; its exit settles the rest."""

    def __init__(
        self, failover: Failover, spent: Spent, currency: str, kinds: Kinds = KINDS
    ) -> None:
        """`spent` supplies the figures that seed budgets; `currency` is for messages. The stores of
        `failover` must count the same kinds."""
        self._failover, self._spent, self._currency = failover, spent, currency
        self._kinds = kinds
        self._limited = lru_cache(SCOPES)(partial(_limited, kinds))
        self._held: dict[str, HeldReservation | None] = {}
        """By request id; None if nothing limits the request."""
        self._reading: dict[BudgetPeriod, asyncio.Task[Seed]] = {}
        self._refreshing: set[asyncio.Task[None]] = set()
        self._on_reserved: list[Callable[[int], None]] = []

    def on_reserved(self, callback: Callable[[int], None]) -> None:
        """Call `callback(tenant_id)` for each reservation that is made from now on."""
        self._on_reserved.append(callback)

    @property
    def reservations(self) -> int:
        """Requests of this process that hold a reservation, for the metrics page."""
        return sum(held is not None for held in self._held.values())

    @property
    def degraded(self) -> bool:
        """Whether Redis is down at the moment."""
        return self._failover.degraded

    @property
    def shared(self) -> bool:
        """Whether counters are on Redis at the moment, and so shared by all gateways."""
        return self._failover.redis is not None and not self.degraded

    @property
    def degraded_decisions(self) -> int:
        """Decisions without Redis since the start, including refusals because of its absence."""
        return self._failover.degraded_decisions

    @property
    def redis_failures(self) -> int:
        """Calls to Redis that failed since the start."""
        return self._failover.redis_failures

    async def __aenter__(self) -> Self:
        await self._failover.__aenter__()
        self._strays = asyncio.create_task(supervised("strays", self._end_strays))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await ended([self._strays, *self._refreshing, *self._reading.values()])
        await self._failover.__aexit__(*exc)

    # --- grants.Limiter --------------------------------------------------------------------------

    async def reserve(
        self, id: str, grant: Grant, target: ResolvedTarget, ask: ReservationRequest
    ) -> Reservation:
        """As `interfaces.limiter.Limiter`. Asks no store if no scope sets a limit."""
        limited = self._limited(grant.limits + target.limits)
        if not limited.scopes:
            self._held[id] = None
            return Reservation(id)
        charge = Charge(
            id=id,
            holder=self._failover.holder,
            scopes=limited.scopes,
            rate=TokenRate.of(target.reserved_price),
            quantities={m: min(n, MAX_TOKENS) for m, n in ask.quantities.items()} | {"requests": 1},
            prompt_tokens=min(ask.prompt_tokens, MAX_TOKENS),
            output_tokens=min(ask.output_tokens, MAX_TOKENS),
            least_output_tokens=min(ask.least_output_tokens, MAX_TOKENS),
        )
        held = self._held[id] = HeldReservation(charge, limited.limits)
        try:
            granted = await self._charge(held, charge)
        finally:
            if not held.stores:
                self._held.pop(id, None)
        for reserved in self._on_reserved:
            reserved(grant.tenant_id)
        output_tokens = granted.output_tokens if limited.output else None
        return Reservation(id, output_tokens, self._rooms(granted.left))

    async def extend(self, reservation: Reservation, output_tokens: int) -> None:
        """As `interfaces.limiter.Limiter`. Reserves nothing for a request that has ended.

        Raises:
            Unavailable: the counters cannot be reached and the settings say to refuse.
        """
        held = self._held.get(reservation.id)
        if held is None or reservation.output_tokens is None:
            return
        charge = msgspec.structs.replace(
            held.charge,
            holder=self._failover.holder,
            quantities={},
            prompt_tokens=0,
            output_tokens=output_tokens,
            least_output_tokens=1,
        )
        granted = await self._charge(held, charge)
        reservation.output_tokens += granted.output_tokens

    async def take_over(self, id: str, grant: Grant, target: ResolvedTarget) -> Reservation:
        """As `interfaces.limiter.Limiter`."""
        limited = self._limited(grant.limits + target.limits)
        self._held[id] = None
        if not limited.scopes:
            return Reservation(id)
        store = self._failover.redis
        if store is None or self.degraded:
            store = self._failover.local
        try:
            (taken,) = await store.run(Take(id, self._failover.holder))
        except StoreDown as error:
            self._failover.failed(error)
            return Reservation(id)
        assert isinstance(taken, TakenOver)
        if taken.output_tokens is None:
            return Reservation(id)
        charge = Charge(
            id=id,
            holder=self._failover.holder,
            scopes=limited.scopes,
            rate=TokenRate.of(target.reserved_price),
            quantities={},
            prompt_tokens=0,
            output_tokens=0,
            least_output_tokens=0,
        )
        self._held[id] = HeldReservation(charge, limited.limits, [store])
        return Reservation(id, taken.output_tokens if limited.output else None)

    def hand_over(self, id: str) -> None:
        """As `interfaces.limiter.Limiter`. The reservation stays under the lease of this process
        until another gateway takes it over or `end_strays` ends it."""
        if self._held.pop(id, None) is not None:
            self._failover.lingers = True

    def settle(self, id: str, usage: Usage | None, price: TokenPrice | None = None) -> None:
        """As `interfaces.limiter.Limiter`."""
        if usage is None:
            self._end(id, Keep(id))
        else:
            settle = SettleReservation(
                id,
                min(usage.prompt_tokens, MAX_TOKENS),
                min(usage.cached_tokens, MAX_TOKENS),
                min(usage.completion_tokens, MAX_TOKENS),
                None if price is None else TokenRate.of(price),
            )
            self._end(id, settle)

    def release(self, id: str) -> None:
        """As `interfaces.limiter.Limiter`."""
        self._end(id, Release(id))

    async def peek(self, limits: tuple[Limits, ...]) -> Reservation:
        """As `interfaces.limiter.Limiter`.

        Raises:
            Unavailable: the counters cannot be reached and the settings say to refuse.
        """
        scopes = self._limited(limits).scopes
        if not scopes:
            return Reservation("")
        rooms = await self._read_only(Peek(scopes))
        assert isinstance(rooms, Rooms)
        return Reservation("", None, self._rooms(rooms.left))

    async def used(self, limits: Limits) -> dict[str, int]:
        """What is used and reserved now of each limit that is set, except budgets, by the name of
        its kind; reserves nothing.

        Raises:
            Unavailable: the counters cannot be reached and the settings say to refuse.
        """
        counts = await self._read_only(Count(CountedScope.of(limits)))
        assert isinstance(counts, LimitCounts)
        return {used.kind: used.amount for used in counts.used}

    def _rooms(self, left: Sequence[Left]) -> dict[str, Room]:
        """The room per header, each of the scope that has the least left of that limit."""
        rooms: dict[str, Room] = {}
        for each in left:
            header = self._kinds[each.kind].header
            if header not in rooms or each.remaining < rooms[header].remaining:
                reset_s = min(each.reset_ms / 1000, WINDOW_S)
                rooms[header] = Room(each.limit, each.remaining, reset_s)
        return rooms

    async def _read_only(self, command: Peek | Count) -> AnyAnswer:
        try:
            (answer,) = await self._failover.decide().run(command)
        except StoreDown as error:
            self._failover.failed(error)
            (answer,) = await self._failover.decide().run(command)
        return answer

    async def flushed(self) -> None:
        """Wait until everything settled, released and refreshed so far is in the store."""
        await asyncio.gather(*self._refreshing)
        await self._failover.flushed()

    async def end_strays(self) -> None:
        """End reservations that Redis holds for this process although their requests have ended: a
        Redis that lost its last second in a crash has reservations again that were ended in it."""
        redis = self._failover.redis
        if redis is None or self.degraded:
            return
        try:
            (held,) = await redis.run(Holds(self._failover.holder))
        except StoreDown as error:
            self._failover.failed(error)
            return
        assert isinstance(held, Ids)
        for id in held.ids:
            if id not in self._held:
                self._failover.end(redis, Keep(id))

    async def _end_strays(self) -> None:
        """Call `end_strays` once per lease."""
        while True:
            await asyncio.sleep(LEASE_MS / 1000)
            await self.end_strays()

    # --- reserving -------------------------------------------------------------------------------

    async def _charge(self, held: HeldReservation, charge: Charge) -> Granted:
        for _ in range(ROUNDS):
            store = self._store_for(held)
            try:
                answer = await self._ask(store, held, charge)
            except StoreDown as error:
                self._failover.failed(error)
                continue
            if isinstance(answer, Granted):
                return answer
            if isinstance(answer, LimitRefused):
                limits = held.limits[answer.scope]
                raise error_of(answer, limits, self._currency, self._kinds)
        raise Unavailable("The rate limits cannot be checked.", retry_after_s=1.0)

    def _store_for(self, held: HeldReservation) -> LimitStore:
        """A request that began in the local store stays there when Redis is back."""
        local = self._failover.local
        began_locally = held.stores[:1] == [local]
        return local if began_locally and not self.degraded else self._failover.decide()

    async def _ask(self, store: LimitStore, held: HeldReservation, charge: Charge) -> AnyAnswer:
        """Try once; if the store asks for budgets, seed them, so that the next attempt passes."""
        try:
            (answer,) = await store.run(charge)
        except (StoreDown, asyncio.CancelledError):
            if store not in held.stores:  # it may have reserved, and its answer was lost
                self._failover.end(store, Release(charge.id))
            raise
        match answer:
            case Granted():
                if store not in held.stores:
                    held.stores.append(store)
                if self._held.get(charge.id) is not held:  # the request ended meanwhile
                    self._failover.end(store, Release(charge.id))
                self._refresh(store, answer.due)
            case LimitRefused():
                self._refresh(store, answer.due)
            case Unseeded():
                await self._seed(store, answer.budgets)
        return answer

    def _end(self, id: str, command: SettleReservation | Keep | Release) -> None:
        if id in self._held:
            held = self._held.pop(id)
            rest = command if isinstance(command, Release) else Keep(id)
            for store in held.stores if held is not None else ():
                self._failover.end(store, command)
                command = rest
        elif (redis := self._failover.redis) is not None and isinstance(command, SettleReservation):
            # Another gateway reserved it: that one may be dead, or have moved the request to
            # another engine.
            self._failover.end(redis, SpentReport(id, *msgspec.structs.astuple(command)[1:]))

    # --- budgets ---------------------------------------------------------------------------------

    async def _seed(self, store: LimitStore, budgets: Iterable[BudgetPeriod]) -> None:
        await store.run(*[await self._spent_of(budget) for budget in budgets])

    async def _spent_of(self, budget: BudgetPeriod) -> Seed:
        """The ledger's figure; concurrent callers share one read."""
        if (task := self._reading.get(budget)) is None:
            task = self._reading[budget] = asyncio.create_task(self._read(budget), name="spent")
            task.add_done_callback(lambda _: self._reading.pop(budget))
        return await asyncio.shield(task)

    async def _read(self, budget: BudgetPeriod) -> Seed:
        start, end = (datetime.fromtimestamp(at, UTC) for at in (budget.start, budget.end))
        return Seed(budget, *await self._spent.spent(budget.scope_id, start, end))

    def _refresh(self, store: LimitStore, due: Collection[BudgetPeriod]) -> None:
        """Seed budgets from the ledger again, in the background."""
        if due:
            task = asyncio.create_task(self._refresh_now(store, due), name="budgets")
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)

    async def _refresh_now(self, store: LimitStore, due: Collection[BudgetPeriod]) -> None:
        try:
            await self._seed(store, due)
        except Unavailable as error:  # they are due again in a minute
            log.warning("budgets_not_refreshed", budgets=len(due), error=error.message)
        except StoreDown as error:
            self._failover.failed(error)


def configured(spent: Spent, *, timeout_s: float = TIMEOUT_S) -> StoreLimiter:
    """A limiter according to the settings; each exchange with Redis may take `timeout_s`.

    Raises:
        ValueError: REDIS_URL is not a valid Redis URL.
    """
    url = settings.REDIS_URL
    redis = RedisStore(url, timeout_s=timeout_s) if url else None
    refuse = settings.LIMITS_WITHOUT_REDIS == "refuse"
    failover = Failover(MemoryStore(), redis, refuse=refuse)
    return StoreLimiter(failover, spent, settings.CURRENCY)


class _Limited(NamedTuple):
    """The limits that set anything, the same as scopes for the stores, and whether any of them
    bounds the output."""

    limits: tuple[Limits, ...]
    scopes: tuple[CountedScope, ...]
    output: bool


def _limited(kinds: Kinds, all_limits: tuple[Limits, ...]) -> _Limited:
    limiting = tuple(limits for limits in all_limits if limits.values)
    names = {name for limits in limiting for name in limits.values}
    output = any(kind.bounds_output for kind in kinds.values() if kind.name in names)
    return _Limited(limiting, tuple(map(CountedScope.of, limiting)), output)
