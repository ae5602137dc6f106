"""The limiter as the token path uses it: reservations, refusals, rooms; on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest

from inference.errors import InsufficientQuota, RateLimitExceeded, Unavailable
from inference.interfaces.directory import TokenPrice
from inference.interfaces.limiter import Reservation, Room
from inference.link.accounts import Usage
from tenants.limits.budget import REFRESH_MS
from tenants.limits.commands import LimitStore
from tenants.limits.failover import Failover
from tenants.limits.limiter import StoreLimiter
from tenants.limits.memory import MemoryStore
from tests.limits.asking import Clock, FakeSpent, FlakyStore, grant, limits, target, wanted

USED = Usage(prompt_tokens=8, cached_tokens=3, completion_tokens=12)
DOLLAR_EACH = TokenPrice(prompt=10**12, cached_prompt=0, output=10**12)


@pytest.fixture
def spent() -> FakeSpent:
    return FakeSpent()


@pytest.fixture
async def limiter(store: LimitStore, spent: FakeSpent) -> AsyncIterator[StoreLimiter]:
    if isinstance(store, MemoryStore):
        failover = Failover(store)
    else:
        failover = Failover(MemoryStore(), store)
    async with StoreLimiter(failover, spent, "usd") as limiter:
        yield limiter


async def settled(limiter: StoreLimiter, *ids: str, usage: Usage | None = USED) -> None:
    """Settle and wait until that is done, so that later questions see it."""
    for id in ids:
        limiter.settle(id, usage)
    await limiter.flushed()


async def test_a_request_without_limits_needs_no_store(limiter: StoreLimiter) -> None:
    reservation = await limiter.reserve("r1", grant(limits()), target(), wanted())
    assert reservation == Reservation("r1")
    assert limiter.reservations == 0
    await limiter.extend(reservation, 100)
    assert reservation.output_tokens is None
    await settled(limiter, "r1")


async def test_listeners_are_told_of_counted_reservations(limiter: StoreLimiter) -> None:
    told: list[int] = []
    limiter.on_reserved(told.append)
    await limiter.reserve("r1", grant(limits()), target(), wanted())
    assert told == []  # no limit counts it
    caller = grant(limits("t1", requests_per_minute=1))
    await limiter.reserve("r2", caller, target(), wanted())
    with suppress(RateLimitExceeded):
        await limiter.reserve("r3", caller, target(), wanted())
    assert told == [caller.tenant_id]


async def test_a_reservation_tells_what_it_got_and_what_is_left(limiter: StoreLimiter) -> None:
    caller = grant(
        limits("t1", requests_per_minute=10, tokens_per_minute=100),
        limits("k1", requests_per_minute=5),
    )
    adapter = target(limits("a1", tokens_per_minute=60))
    reservation = await limiter.reserve("r1", caller, adapter, wanted(10, 90, 20))
    assert (reservation.id, reservation.output_tokens) == ("r1", 50)
    assert reservation.rooms["requests"] == Room(5, 4, 60)
    assert reservation.rooms["tokens"] == Room(60, 0, 60)
    assert limiter.reservations == 1


async def test_output_is_unlimited_if_only_requests_are_limited(limiter: StoreLimiter) -> None:
    caller = grant(
        limits(requests_per_minute=10, concurrent_streams=2, prompt_tokens_per_minute=99)
    )
    reservation = await limiter.reserve("r1", caller, target(), wanted())
    assert reservation.output_tokens is None
    assert "tokens" not in reservation.rooms


async def test_a_refusal_names_the_scope_and_reserves_nothing(limiter: StoreLimiter) -> None:
    caller = grant(
        limits("t1", requests_per_minute=10), limits("k1", "key `ci`", tokens_per_minute=50)
    )
    await limiter.reserve("r1", caller, target(), wanted(10, 20))
    with pytest.raises(
        RateLimitExceeded, match="for key `ci`: 50 tokens per minute; used 30,"
    ) as e:
        await limiter.reserve("r2", caller, target(), wanted(10, 20))
    assert e.value.retry_after_s == 60
    assert limiter.reservations == 1
    assert (await limiter.peek(caller.limits)).rooms["requests"] == Room(10, 9, 60)


async def test_reading_the_remaining_limits_reserves_nothing(limiter: StoreLimiter) -> None:
    caller = grant(limits(requests_per_minute=10, tokens_per_minute=100))
    for _ in range(2):
        rooms = await limiter.peek(caller.limits)
        assert rooms.rooms == {"requests": Room(10, 10, 0.0), "tokens": Room(100, 100, 0.0)}
    assert await limiter.peek(()) == Reservation("")


async def test_usage_of_a_scope(limiter: StoreLimiter) -> None:
    mine = limits("t1", requests_per_minute=10, output_tokens_per_minute=99, tokens_per_day=500)
    await limiter.reserve("r1", grant(mine), target(), wanted(10, 20))
    for _ in range(2):
        assert await limiter.used(mine) == {
            "requests_per_minute": 1,
            "output_tokens_per_minute": 20,
        }
    assert await limiter.used(limits("t9")) == {}


async def test_settling_gives_the_rest_back(limiter: StoreLimiter) -> None:
    caller = grant(limits(requests_per_minute=10, tokens_per_minute=100, concurrent_streams=1))
    await limiter.reserve("r1", caller, target(), wanted(10, 80))
    with pytest.raises(RateLimitExceeded):
        await limiter.reserve("r2", caller, target(), wanted(1, 1))
    await settled(limiter, "r1")
    assert limiter.reservations == 0
    reservation = await limiter.reserve("r2", caller, target(), wanted(10, 80, 1))
    assert reservation.output_tokens == 70
    assert reservation.rooms["requests"] == Room(10, 8, 60)


async def test_the_first_settlement_of_a_request_counts(limiter: StoreLimiter) -> None:
    caller = grant(limits(tokens_per_minute=100))
    await limiter.reserve("r1", caller, target(), wanted(10, 50))
    await settled(limiter, "r1", usage=None)
    await settled(limiter, "r1")
    limiter.release("r1")
    await limiter.flushed()
    assert (await limiter.peek(caller.limits)).rooms["tokens"] == Room(100, 40, 60)


async def test_a_release_gives_all_of_it_back(limiter: StoreLimiter) -> None:
    caller = grant(limits(requests_per_minute=10, tokens_per_minute=100))
    await limiter.reserve("r1", caller, target(), wanted(10, 50))
    limiter.release("r1")
    await limiter.flushed()
    rooms = await limiter.peek(caller.limits)
    assert rooms.rooms == {"requests": Room(10, 10, 0.0), "tokens": Room(100, 100, 0.0)}


async def test_a_reservation_grows_by_what_there_is(limiter: StoreLimiter) -> None:
    caller = grant(limits(tokens_per_minute=100))
    reservation = await limiter.reserve("r1", caller, target(), wanted(10, 20))
    await limiter.extend(reservation, 50)
    assert reservation.output_tokens == 70
    await limiter.extend(reservation, 50)
    assert reservation.output_tokens == 90
    with pytest.raises(RateLimitExceeded, match="used 100, requested 1"):
        await limiter.extend(reservation, 50)
    assert reservation.output_tokens == 90


async def test_an_ended_reservation_does_not_grow(limiter: StoreLimiter) -> None:
    caller = grant(limits(tokens_per_minute=100, concurrent_streams=1))
    reservation = await limiter.reserve("r1", caller, target(), wanted(10, 20))
    await settled(limiter, "r1")
    await limiter.extend(reservation, 50)
    assert (await limiter.peek(caller.limits)).rooms["tokens"] == Room(100, 80, 60)


async def test_a_request_that_ends_while_it_grows_leaves_nothing(
    limiter: StoreLimiter, spent: FakeSpent
) -> None:
    caller = grant(limits(tokens_per_minute=100, concurrent_streams=1))
    reservation = await limiter.reserve("r1", caller, target(), wanted(10, 20))
    growing = asyncio.create_task(limiter.extend(reservation, 50))
    limiter.settle("r1", USED)
    await growing
    await limiter.flushed()
    assert (await limiter.peek(caller.limits)).rooms["tokens"] == Room(100, 80, 60)
    await limiter.reserve("r2", caller, target(), wanted(10, 20))


async def test_a_caller_that_goes_away_leaves_nothing(limiter: StoreLimiter) -> None:
    caller = grant(limits(requests_per_minute=10, concurrent_streams=1))
    for number in range(5):
        going = asyncio.create_task(limiter.reserve(f"r{number}", caller, target(), wanted()))
        await asyncio.sleep(0)
        going.cancel()
        with suppress(asyncio.CancelledError):  # the store in memory has answered already
            await going
            limiter.release(f"r{number}")
        await limiter.flushed()
    assert limiter.reservations == 0
    assert (await limiter.peek(caller.limits)).rooms["requests"] == Room(10, 10, 0.0)
    await limiter.reserve("r9", caller, target(), wanted())


async def test_a_huge_ask_is_refused_like_any_other(limiter: StoreLimiter) -> None:
    caller = grant(limits(tokens_per_minute=100))
    with pytest.raises(RateLimitExceeded, match="exceeds the limit on its own"):
        await limiter.reserve("r1", caller, target(), wanted(10, 10**30))


# --- budgets -------------------------------------------------------------------------------------


async def test_a_budget_starts_from_the_ledger(limiter: StoreLimiter, spent: FakeSpent) -> None:
    spent.figures["t1"] = (70, 0)
    caller = grant(limits(tokens_per_day=100, tokens_per_month=1000))
    reservation = await limiter.reserve("r1", caller, target(), wanted(10, 100, 5))
    assert reservation.output_tokens == 20
    assert [(c, start.isoformat(), end.isoformat()) for c, start, end in spent.asked] == [
        ("t1", "2026-05-14T00:00:00+00:00", "2026-05-15T00:00:00+00:00"),
        ("t1", "2026-05-01T00:00:00+00:00", "2026-06-01T00:00:00+00:00"),
    ]
    with pytest.raises(InsufficientQuota, match="100 tokens per day; used 100, requested 2"):
        await limiter.reserve("r2", caller, target(), wanted(1, 1))
    assert len(spent.asked) == 2


async def test_money_buys_as_many_tokens_as_are_left(
    limiter: StoreLimiter, spent: FakeSpent
) -> None:
    """A token costs a dollar; a hundred dollars a month, of which forty are spent."""
    spent.figures["t1"] = (0, 40_000_000)
    caller = grant(limits(cost_per_month=100_000_000))
    reservation = await limiter.reserve("r1", caller, target(price=DOLLAR_EACH), wanted(10, 200, 1))
    assert reservation.output_tokens == 50
    assert "tokens" not in reservation.rooms
    await settled(limiter, "r1")
    reservation = await limiter.reserve("r2", caller, target(price=DOLLAR_EACH), wanted(1, 99, 1))
    assert reservation.output_tokens == 100 - 40 - 5 - 12 - 1
    expected = "100.00 USD per month; used 100.00 USD, requested 1.00 USD. It renews on 2026-06-01"
    with pytest.raises(InsufficientQuota, match=expected):
        await limiter.extend(reservation, 1)


async def test_the_higher_of_two_prices_is_reserved_and_the_billed_one_counts(
    limiter: StoreLimiter,
) -> None:
    """A token costs a dollar, or two on an overflow engine."""
    caller, twice = grant(limits(cost_per_month=100_000_000)), TokenPrice(2 * 10**12, 0, 2 * 10**12)
    asked = msgspec.structs.replace(target(price=DOLLAR_EACH), overflow_price=twice)
    for id, price, left in (("r1", DOLLAR_EACH, 83), ("r2", twice, 49)):
        await limiter.reserve(id, caller, asked, wanted(10, 20))
        limiter.settle(id, USED, price)
        await limiter.flushed()
        with pytest.raises(InsufficientQuota, match=f"used {100 - left}.00 USD"):
            await limiter.reserve("more", caller, asked, wanted(left // 2, 1))


async def test_many_first_requests_ask_the_ledger_once(
    limiter: StoreLimiter, spent: FakeSpent
) -> None:
    caller = grant(limits(tokens_per_day=10_000))
    asks = (limiter.reserve(f"r{n}", caller, target(), wanted()) for n in range(50))
    await asyncio.gather(*asks)
    assert len(spent.asked) == 1


async def test_a_new_budget_admits_nothing_while_the_ledger_is_unavailable(
    limiter: StoreLimiter, spent: FakeSpent
) -> None:
    spent.away = True
    caller = grant(limits(tokens_per_day=100))
    with pytest.raises(Unavailable, match="ledger is away"):
        await limiter.reserve("r1", caller, target(), wanted())
    assert limiter.reservations == 0
    spent.away = False
    await limiter.reserve("r1", caller, target(), wanted())
    spent.away = True
    await limiter.reserve("r2", caller, target(), wanted())


async def test_a_known_budget_is_refreshed_in_the_background(
    limiter: StoreLimiter, spent: FakeSpent, clock: Clock
) -> None:
    caller = grant(limits(tokens_per_day=100))
    await limiter.reserve("r1", caller, target(), wanted(10, 10))
    await settled(limiter, "r1", usage=Usage(prompt_tokens=10, completion_tokens=10))
    clock.pass_s(REFRESH_MS / 1000)
    spent.figures["t1"] = (75, 0)
    await limiter.reserve("r2", caller, target(), wanted(5, 5))
    await limiter.flushed()
    with pytest.raises(InsufficientQuota, match="used 85,"):
        await limiter.reserve("r3", caller, target(), wanted(10, 10))


async def test_an_exhausted_budget_is_refreshed_too(
    limiter: StoreLimiter, spent: FakeSpent, clock: Clock
) -> None:
    """A request whose engine died was counted by its estimate, but billed less."""
    caller = grant(limits(tokens_per_day=100))
    await limiter.reserve("r1", caller, target(), wanted(50, 50))
    await settled(limiter, "r1", usage=None)
    spent.figures["t1"] = (20, 0)
    clock.pass_s(REFRESH_MS / 1000)
    with pytest.raises(InsufficientQuota):
        await limiter.reserve("r2", caller, target(), wanted(5, 5))
    await limiter.flushed()
    await limiter.reserve("r3", caller, target(), wanted(5, 5))


async def test_a_refresh_that_fails_harms_nothing(
    limiter: StoreLimiter, spent: FakeSpent, clock: Clock
) -> None:
    caller = grant(limits(tokens_per_day=100))
    await limiter.reserve("r1", caller, target(), wanted(10, 10))
    clock.pass_s(REFRESH_MS / 1000)
    spent.away = True
    await limiter.reserve("r2", caller, target(), wanted(10, 10))
    await limiter.flushed()
    assert len(spent.asked) == 2
    await limiter.reserve("r3", caller, target(), wanted(10, 10))


# --- a store that comes and goes -----------------------------------------------------------------


@pytest.fixture
def flaky(clock: Clock) -> FlakyStore:
    return FlakyStore(clock)


@pytest.fixture
async def on_flaky(
    flaky: FlakyStore, clock: Clock, spent: FakeSpent
) -> AsyncIterator[StoreLimiter]:
    failover = Failover(MemoryStore(clock), flaky, retry_s=0.001)
    async with StoreLimiter(failover, spent, "usd") as limiter:
        yield limiter


async def test_remaining_limits_are_those_of_the_store_in_use(
    flaky: FlakyStore, on_flaky: StoreLimiter
) -> None:
    caller = grant(limits(requests_per_minute=5))
    await on_flaky.reserve("r1", caller, target(), wanted())
    flaky.away = True
    assert (await on_flaky.peek(caller.limits)).rooms["requests"] == Room(5, 5, 0.0)
    assert await on_flaky.used(caller.limits[0]) == {"requests_per_minute": 0}
    assert on_flaky.degraded


async def test_budgets_follow_to_the_local_store(
    flaky: FlakyStore, on_flaky: StoreLimiter, spent: FakeSpent
) -> None:
    spent.figures["t1"] = (60, 0)
    caller = grant(limits(tokens_per_day=100))
    await on_flaky.reserve("r1", caller, target(), wanted(10, 10))
    flaky.away = True
    with pytest.raises(InsufficientQuota, match="used 60, requested 50"):
        await on_flaky.reserve("r2", caller, target(), wanted(10, 40))
    assert len(spent.asked) == 2


async def back(flaky: FlakyStore, limiter: StoreLimiter) -> None:
    flaky.away = False
    async with asyncio.timeout(10):
        while limiter.degraded:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_each_store_keeps_the_part_of_a_request_that_it_counted(
    flaky: FlakyStore, on_flaky: StoreLimiter
) -> None:
    """The store in which it began settles all of it; the others keep what was reserved in them."""
    caller = grant(limits(tokens_per_minute=1000))
    reservation = await on_flaky.reserve("r1", caller, target(), wanted(10, 20))
    flaky.away = True
    await on_flaky.extend(reservation, 70)
    on_flaky.settle("r1", USED)
    assert (await on_flaky.peek(caller.limits)).rooms["tokens"] == Room(1000, 930, 60)
    await back(flaky, on_flaky)
    await on_flaky.flushed()
    assert (await on_flaky.peek(caller.limits)).rooms["tokens"] == Room(1000, 980, 60)


async def test_a_request_that_began_locally_stays_local(
    flaky: FlakyStore, on_flaky: StoreLimiter
) -> None:
    caller = grant(limits(tokens_per_minute=100, concurrent_streams=1))
    flaky.away = True
    reservation = await on_flaky.reserve("r1", caller, target(), wanted(10, 20))
    await back(flaky, on_flaky)
    await on_flaky.extend(reservation, 200)
    assert reservation.output_tokens == 90
    assert (await on_flaky.peek(caller.limits)).rooms["tokens"] == Room(100, 100, 0.0)
    on_flaky.release("r1")
    await on_flaky.reserve("r2", caller, target(), wanted(10, 20))


async def test_a_request_that_began_in_redis_grows_there_again(
    flaky: FlakyStore, on_flaky: StoreLimiter
) -> None:
    caller = grant(limits(tokens_per_minute=100))
    reservation = await on_flaky.reserve("r1", caller, target(), wanted(10, 20))
    flaky.away = True
    await on_flaky.extend(reservation, 10)
    await back(flaky, on_flaky)
    await on_flaky.reserve("r2", caller, target(), wanted(10, 60))
    with pytest.raises(RateLimitExceeded, match="used 100, requested 1"):
        await on_flaky.extend(reservation, 10)


async def test_a_request_that_ends_while_it_is_made_anew_leaves_nothing(
    flaky: FlakyStore, on_flaky: StoreLimiter, spent: FakeSpent
) -> None:
    caller = grant(limits(tokens_per_day=100, concurrent_streams=1))
    reservation = await on_flaky.reserve("r1", caller, target(), wanted(10, 10))
    flaky.forget()
    spent.may_answer.clear()
    growing = asyncio.create_task(on_flaky.extend(reservation, 20))
    while len(spent.asked) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    on_flaky.settle("r1", USED)
    spent.may_answer.set()
    await growing
    await on_flaky.flushed()
    reservation = await on_flaky.reserve("r2", caller, target(), wanted(10, 90))
    assert reservation.output_tokens == 90


async def test_a_refresh_that_finds_the_store_gone_harms_nothing(
    flaky: FlakyStore, on_flaky: StoreLimiter, spent: FakeSpent, clock: Clock
) -> None:
    caller = grant(limits(tokens_per_day=100))
    await on_flaky.reserve("r1", caller, target(), wanted(10, 10))
    clock.pass_s(REFRESH_MS / 1000)
    spent.may_answer.clear()
    await on_flaky.reserve("r2", caller, target(), wanted(10, 10))
    flaky.away = True
    spent.may_answer.set()
    await on_flaky.flushed()
    assert on_flaky.degraded


async def test_shutdown_does_not_wait_for_the_ledger(flaky: FlakyStore, clock: Clock) -> None:
    spent, caller = FakeSpent(), grant(limits(tokens_per_day=100))
    async with StoreLimiter(Failover(MemoryStore(clock), flaky), spent, "usd") as limiter:
        await limiter.reserve("r1", caller, target(), wanted(10, 10))
        clock.pass_s(REFRESH_MS / 1000)
        spent.may_answer.clear()
        await limiter.reserve("r2", caller, target(), wanted(10, 10))


async def test_a_store_that_forgets_all_the_time_is_given_up(
    flaky: FlakyStore, on_flaky: StoreLimiter
) -> None:
    flaky.forgetful = True
    with pytest.raises(Unavailable, match="cannot be checked"):
        await on_flaky.reserve("r1", grant(limits(tokens_per_day=100)), target(), wanted())
    assert on_flaky.reservations == 0


async def test_reservations_that_reappear_after_a_crash_of_redis_are_ended(
    flaky: FlakyStore, on_flaky: StoreLimiter
) -> None:
    caller = grant(limits(concurrent_streams=2))
    for id in ("ended", "runs"):
        await on_flaky.reserve(id, caller, target(), wanted())
    flaky.snapshot()
    await settled(on_flaky, "ended")
    flaky.roll_back()
    with pytest.raises(RateLimitExceeded):
        await on_flaky.reserve("r1", caller, target(), wanted())
    await on_flaky.end_strays()
    await on_flaky.flushed()
    await on_flaky.reserve("r1", caller, target(), wanted())
    with pytest.raises(RateLimitExceeded, match="used 2"):
        await on_flaky.reserve("r2", caller, target(), wanted())


async def test_stray_reservations_are_not_searched_for_without_redis(
    flaky: FlakyStore, on_flaky: StoreLimiter, clock: Clock
) -> None:
    flaky.away = True
    await on_flaky.end_strays()
    assert on_flaky.redis_failures == 1 and on_flaky.degraded
    await on_flaky.end_strays()
    async with StoreLimiter(Failover(MemoryStore(clock)), FakeSpent(), "usd") as alone:
        await alone.reserve("r1", grant(limits(concurrent_streams=1)), target(), wanted())
        await alone.end_strays()
        assert alone.reservations == 1


# --- another gateway goes on ---------------------------------------------------------------------


async def test_another_gateway_goes_on_with_a_reservation(
    store: LimitStore, limiter: StoreLimiter
) -> None:
    """Both use one store, as gateways use one Redis."""
    caller = grant(limits(tokens_per_minute=100, concurrent_streams=1))
    await limiter.reserve("r1", caller, target(), wanted(10, 20))
    failover = Failover(store) if isinstance(store, MemoryStore) else Failover(MemoryStore(), store)
    other = StoreLimiter(failover, FakeSpent(), "usd")
    taken = await other.take_over("r1", caller, target())
    assert taken == Reservation("r1", 20) and other.reservations == 1
    limiter.hand_over("r1")
    assert limiter.reservations == 0
    await other.extend(taken, 30)
    assert taken.output_tokens == 50
    assert (await limiter.peek(caller.limits)).rooms["tokens"].remaining == 40
    other.settle("r1", Usage(10, 0, 30))
    if not isinstance(store, MemoryStore):
        await failover._tell()
    assert (await limiter.peek(caller.limits)).rooms["tokens"].remaining == 60
    await limiter.reserve("r2", caller, target(), wanted(1, 1))


async def test_taking_over_a_released_reservation_counts_nothing(limiter: StoreLimiter) -> None:
    caller = grant(limits(tokens_per_minute=100))
    taken = await limiter.take_over("r1", caller, target())
    assert taken == Reservation("r1") and limiter.reservations == 0
    await limiter.extend(taken, 30)
    await settled(limiter, "r1")
    assert (await limiter.peek(caller.limits)).rooms["tokens"].remaining == 100


async def test_without_limits_there_is_nothing_to_take_over(limiter: StoreLimiter) -> None:
    assert await limiter.take_over("r1", grant(limits()), target()) == Reservation("r1")
    limiter.hand_over("r1")
    limiter.hand_over("r1")
    assert limiter.reservations == 0


async def test_an_answer_goes_on_though_redis_is_away(
    flaky: FlakyStore, on_flaky: StoreLimiter
) -> None:
    caller = grant(limits(tokens_per_minute=100))
    flaky.away = True
    for _ in range(2):  # the first call notices it, the second one knows
        assert await on_flaky.take_over("r1", caller, target()) == Reservation("r1")
    assert on_flaky.degraded


async def test_a_handed_over_reservation_outlives_its_gateway(
    flaky: FlakyStore, clock: Clock
) -> None:
    caller = grant(limits(concurrent_streams=1))
    async with StoreLimiter(Failover(MemoryStore(clock), flaky), FakeSpent(), "usd") as one:
        await one.reserve("r1", caller, target(), wanted())
        one.hand_over("r1")
    async with StoreLimiter(Failover(MemoryStore(clock), flaky), FakeSpent(), "usd") as other:
        with pytest.raises(RateLimitExceeded):
            await other.reserve("r2", caller, target(), wanted())
        await other.take_over("r1", caller, target())
        other.release("r1")
        await other.flushed()
        await other.reserve("r2", caller, target(), wanted())
