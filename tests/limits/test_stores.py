"""The contract of a store of counters. Each command goes to the one in memory and to the one on
Redis, which must answer alike."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tenants.limits.budget import REFRESH_MS
from tenants.limits.commands import (
    BudgetPeriod,
    Charge,
    CommandDone,
    Count,
    Granted,
    Holds,
    Ids,
    Keep,
    Left,
    LimitCounts,
    LimitRefused,
    LimitStore,
    Release,
    Renew,
    Seed,
    SettleReservation,
    SpentReport,
    Take,
    TakenOver,
    TokenRate,
    Unseeded,
    Used,
    Withdrawn,
)
from tenants.limits.kinds import KINDS
from tenants.limits.state import (
    LEASE_MS,
    RECLAIMED_AT_ONCE,
    STREAM_WAIT_MS,
    SWEEP_MS,
)
from tests.limits.asking import (
    COUNTED,
    DAY,
    MONTH,
    TODAY,
    Clock,
    ask,
    charge,
    granted,
    left,
    live_on,
    more,
    refused,
    remaining,
    scope,
)
from tests.limits.histories import Lives
from tests.limits.redis_server import RedisServer

pytestmark = pytest.mark.pure

# --- one decision over all scopes ----------------------------------------------------------------


async def test_a_reservation_counts_in_every_scope(store: LimitStore) -> None:
    tenant = scope("t1", requests_per_minute=10, tokens_per_minute=1000)
    key = scope("k1", tokens_per_minute=500)
    answer = await ask(store, charge("r1", tenant, key, prompt=100, output=50))
    expected = [
        Left("requests_per_minute", 10, 9, 61_000),
        Left("tokens_per_minute", 1000, 850, 61_000),
        Left("tokens_per_minute", 500, 350, 61_000),
    ]
    assert answer == Granted(50, expected, [])
    assert await left(store, tenant, key) == expected


async def test_one_scope_that_refuses_leaves_all_as_they_were(store: LimitStore) -> None:
    tenant = scope("t1", requests_per_minute=10, tokens_per_minute=1000, concurrent_streams=1)
    key = scope("k1", requests_per_minute=10, tokens_per_minute=100)
    answer = await refused(store, charge("r1", tenant, key, prompt=60, output=50))
    assert (answer.scope, answer.kind) == (1, "tokens_per_minute")
    assert await remaining(store, tenant, key) == [10, 1000, 10, 100]
    assert await granted(store, charge("r1", tenant, key, prompt=60, output=40)) == 40


@pytest.mark.parametrize(
    ("limit", "value", "used", "requested"),
    [
        ("requests_per_minute", 2, 2, 1),
        ("tokens_per_minute", 79, 60, 30),
        ("prompt_tokens_per_minute", 29, 20, 10),
        ("output_tokens_per_minute", 59, 40, 20),
        ("concurrent_streams", 2, 2, 1),
        ("tokens_per_day", 79, 60, 30),
        ("tokens_per_month", 79, 60, 30),
        ("cost_per_day", 9, 6, 4),
        ("cost_per_month", 9, 6, 4),
    ],
)
async def test_each_limit_refuses_by_its_own_measure(
    store: LimitStore, limit: str, value: int, used: int, requested: int
) -> None:
    """Two requests fit, a third does not. A request costs 10 x 0.1 + 20 x 0.1 micro-units; a
    started micro-unit counts whole."""
    only = scope("t1", **{limit: value})
    rate = TokenRate(100_000, 50_000, 100_001)
    await store.run(Seed(DAY, 0, 0), Seed(MONTH, 0, 0))
    for id in ("r1", "r2"):
        assert await granted(store, charge(id, only, rate=TokenRate(100_000, 0, 100_000))) == 20
    answer = await refused(store, charge("r3", only, rate=rate))
    assert (answer.kind, answer.used, answer.requested) == (limit, used, requested)


async def test_a_limit_of_zero_lets_nothing_through(store: LimitStore) -> None:
    for limit in ("requests_per_minute", "tokens_per_minute", "concurrent_streams"):
        answer = await refused(store, charge("r1", scope("t1", **{limit: 0})))
        assert (answer.kind, answer.used, answer.wait_ms) == (limit, 0, None)


async def test_a_scope_without_a_limit_on_something_does_not_count_it(store: LimitStore) -> None:
    await granted(store, charge("r1", scope("t1", requests_per_minute=10)))
    both = scope("t1", requests_per_minute=10, tokens_per_minute=100)
    assert await remaining(store, both) == [9, 100]


async def test_count_answers_for_each_limit_that_is_set(store: LimitStore) -> None:
    every = scope("t1", **dict.fromkeys(KINDS, 1000))
    await store.run(Seed(DAY, 0, 0), Seed(MONTH, 0, 0))
    assert await ask(store, Count(every)) == LimitCounts([Used(name, 0) for name in COUNTED])
    await granted(store, charge("r1", every, prompt=30, output=50))
    await granted(store, charge("r2", every, prompt=30, output=50))
    await ask(store, SettleReservation("r1", 30, 20, 5))
    counted = dict(zip(COUNTED, (2, 35 + 80, 10 + 30, 5 + 50, 1), strict=True))
    assert await ask(store, Count(every)) == LimitCounts([Used(*each) for each in counted.items()])
    some = scope("t1", output_tokens_per_minute=1, tokens_per_day=1)
    assert await ask(store, Count(some)) == LimitCounts([Used("output_tokens_per_minute", 55)])
    assert await ask(store, Count(scope("t1"))) == LimitCounts([])
    assert await ask(store, Count(scope("t2", concurrent_streams=1))) == LimitCounts(
        [Used("concurrent_streams", 0)]
    )


async def test_numbers_up_to_the_largest_limit_stay_exact(store: LimitStore) -> None:
    limit = 10**12
    only = scope("t1", tokens_per_minute=limit, cost_per_day=limit)
    dear = TokenRate(0, 0, 999_999_999_999)
    await ask(store, Seed(DAY, 0, limit - 1_000_001))
    assert await granted(store, charge("r1", only, prompt=0, output=1, rate=dear)) == 1
    answer = await refused(store, charge("r2", only, prompt=0, output=1, rate=dear))
    assert (answer.used, answer.requested) == (limit - 1, 1_000_000)
    await ask(store, SettleReservation("r1", 999_999_999, 0, 999_999_999))
    assert await remaining(store, only) == [limit - 1_999_999_998]


# --- how much is granted -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [
        ("tokens_per_minute", 75, 65),
        ("output_tokens_per_minute", 75, 75),
        ("tokens_per_day", 75, 65),
        ("tokens_per_month", 75, 65),
        ("cost_per_day", 75, 27),
        ("cost_per_month", 75, 27),
        ("requests_per_minute", 75, 100),
        ("concurrent_streams", 75, 100),
        ("prompt_tokens_per_minute", 75, 100),
    ],
)
async def test_less_than_wanted_is_granted_where_it_is_enough(
    store: LimitStore, limit: str, value: int, expected: int
) -> None:
    """The prompt costs 20 micro-units, each output token 2."""
    await store.run(Seed(DAY, 0, 0), Seed(MONTH, 0, 0))
    asked = charge(
        "r1", scope("t1", **{limit: value}), scope("k1", tokens_per_minute=10_000),
        output=100, least_output_tokens=27, rate=TokenRate(2_000_000, 0, 2_000_000),
    )  # fmt: skip
    assert await granted(store, asked) == expected


async def test_the_tightest_scope_bounds_the_grant(store: LimitStore) -> None:
    scopes = scope("t1", tokens_per_minute=80), scope("k1", output_tokens_per_minute=30)
    assert await granted(store, charge("r1", *scopes, output=100, least_output_tokens=30)) == 30
    answer = await refused(store, charge("r2", *scopes, output=100, least_output_tokens=30))
    assert (answer.scope, answer.used, answer.requested) == (1, 30, 30)


async def test_an_exhausted_budget_refuses_even_what_is_free(store: LimitStore) -> None:
    await ask(store, Seed(DAY, 0, 101))
    answer = await refused(store, charge("r1", scope("t1", cost_per_day=100)))
    assert (answer.kind, answer.used, answer.requested) == ("cost_per_day", 101, 0)


# --- time ----------------------------------------------------------------------------------------


async def test_a_refusal_says_when_there_is_room(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", tokens_per_minute=100)
    await granted(store, charge("r1", only, prompt=0, output=30))
    await live_on(store, clock, 10.25)
    await granted(store, charge("r2", only, prompt=0, output=60))
    await live_on(store, clock, 1)
    later = {20: 61 - 11.25, 40: 61 - 11.25, 41: 71 - 11.25, 100: 71 - 11.25}
    for output, wait_s in later.items():
        answer = await refused(store, charge("r3", only, prompt=0, output=output))
        assert answer.wait_ms == wait_s * 1000
    await live_on(store, clock, later[20] - 0.001)
    await refused(store, charge("r3", only, prompt=0, output=20))
    clock.pass_s(0.001)
    assert await granted(store, charge("r3", only, prompt=0, output=40)) == 40


async def test_a_request_above_the_limit_is_not_told_to_wait(store: LimitStore) -> None:
    answer = await refused(store, charge("r1", scope("t1", tokens_per_minute=29)))
    assert answer == LimitRefused(0, "tokens_per_minute", 0, 30, None, None)


async def test_streams_are_worth_trying_again_soon(store: LimitStore) -> None:
    only = scope("t1", concurrent_streams=1)
    await granted(store, charge("r1", only))
    assert (await refused(store, charge("r2", only))).wait_ms == STREAM_WAIT_MS


async def test_the_limit_to_wait_longest_for_decides(store: LimitStore) -> None:
    both = scope("t1", requests_per_minute=1, concurrent_streams=1)
    other = scope("k1", requests_per_minute=1)
    await granted(store, charge("r1", both, other))
    answer = await refused(store, charge("r2", both, other))
    assert (answer.scope, answer.kind) == (0, "requests_per_minute")
    await ask(store, Seed(DAY, 100, 0))
    budget = scope("t1", requests_per_minute=1, tokens_per_day=100)
    answer = await refused(store, charge("r2", budget, other))
    assert (answer.scope, answer.kind) == (0, "tokens_per_day")
    answer = await refused(store, charge("r2", budget, scope("k1", tokens_per_minute=1)))
    assert (answer.scope, answer.kind) == (1, "tokens_per_minute")


async def test_a_window_is_empty_when_its_newest_second_has_left(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", requests_per_minute=5, tokens_per_minute=1000)
    assert [each.reset_ms for each in await left(store, only)] == [0, 0]
    await granted(store, charge("r1", only))
    await live_on(store, clock, 20.5)
    await granted(store, charge("r2", only, prompt=0, output=0))
    assert [each.reset_ms for each in await left(store, only)] == [60_500, 40_500]
    await live_on(store, clock, 40.5)
    assert await left(store, only) == [
        Left("requests_per_minute", 5, 4, 20_000),
        Left("tokens_per_minute", 1000, 1000, 0),
    ]


async def test_a_clock_that_steps_back_opens_no_room(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", tokens_per_minute=100)
    await granted(store, charge("r1", only, prompt=0, output=60))
    clock.pass_s(-30)
    assert await remaining(store, only) == [40]
    await granted(store, charge("r2", only, prompt=0, output=40))
    clock.pass_s(30 + 60)
    assert await remaining(store, only) == [0]
    clock.pass_s(1)
    assert await remaining(store, only) == [100]


async def test_a_clock_that_was_set_back_by_hours_keeps_nobody_out_for_hours(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", requests_per_minute=5, tokens_per_minute=100)
    await granted(store, charge("r1", only, prompt=0, output=60))
    clock.pass_s(-3600)
    assert await remaining(store, only) == [5, 100]
    await granted(store, charge("r2", only, prompt=0, output=70))
    await ask(store, SettleReservation("r1", 0, 0, 10))
    assert await remaining(store, only) == [4, 30]
    await ask(store, SettleReservation("r2", 0, 0, 20))
    assert await remaining(store, only) == [4, 80]
    clock.pass_s(61)
    assert await remaining(store, only) == [5, 100]


async def test_a_long_silence_forgets_everything(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", requests_per_minute=5, tokens_per_minute=1000)
    for number in range(5):
        await granted(store, charge(f"r{number}", only))
        clock.pass_s(13)
    clock.pass_s(100_000)
    assert await remaining(store, only) == [5, 1000]
    await granted(store, charge("again", only))
    assert await remaining(store, only) == [4, 970]


# --- ending a reservation ------------------------------------------------------------------------

EVERYTHING = scope(
    "t1",
    requests_per_minute=10,
    tokens_per_minute=1000,
    prompt_tokens_per_minute=1000,
    output_tokens_per_minute=1000,
    concurrent_streams=10,
    tokens_per_day=1000,
    tokens_per_month=1000,
    cost_per_day=1000,
    cost_per_month=1000,
)
MICRO_EACH = TokenRate(1_000_000, 500_000, 2_000_000)


async def spent_of(store: LimitStore) -> dict[str, int]:
    """What each limit of EVERYTHING has counted, read from the refusals of requests that are too
    large."""
    found = {}
    for name, limit in EVERYTHING.limits.items():
        if name == "requests_per_minute":
            found[name] = (
                limit - (await remaining(store, scope("t1", requests_per_minute=limit)))[0]
            )
        elif name == "concurrent_streams":
            asked = charge("look", scope("t1", concurrent_streams=0), holder="g9")
            found[name] = (await refused(store, asked)).used
        else:
            rate = TokenRate(0, 0, 1_000_000)
            asked = charge("look", scope("t1", **{name: 0}), holder="g9", rate=rate)
            found[name] = (await refused(store, asked)).used
    return found


async def reserve_everything(store: LimitStore, *, seeded: tuple[int, int] = (0, 0)) -> Charge:
    """Reserve 100 + 50 tokens, which cost 200 micro-units."""
    await store.run(Seed(DAY, *seeded), Seed(MONTH, *seeded))
    made = charge("r1", EVERYTHING, prompt=100, output=50, rate=MICRO_EACH)
    assert await granted(store, made) == 50
    return made


def counted(
    requests: int, total: int, prompt: int, output: int, streams: int, budget: int, cost: int
) -> dict[str, int]:
    figures = (requests, total, prompt, output, streams, budget, budget, cost, cost)
    return dict(zip(EVERYTHING.limits, figures, strict=True))


async def test_a_reservation_counts_everywhere(store: LimitStore) -> None:
    await reserve_everything(store, seeded=(5, 7))
    assert await spent_of(store) == counted(1, 150, 100, 50, 1, 155, 207)


async def test_settling_replaces_the_estimate_by_what_was_used(store: LimitStore) -> None:
    await reserve_everything(store, seeded=(5, 7))
    assert await ask(store, SettleReservation("r1", 90, 41, 20)) == CommandDone()
    assert await spent_of(store) == counted(1, 110, 49, 20, 0, 115, 7 + 110)


async def test_settling_charges_what_the_reservation_did_not_cover(
    store: LimitStore, clock: Clock
) -> None:
    await reserve_everything(store)
    clock.pass_s(30)
    await ask(store, SettleReservation("r1", 130, 0, 60))
    assert await spent_of(store) == counted(1, 190, 130, 60, 0, 190, 250)
    clock.pass_s(31)
    assert await spent_of(store) == counted(0, 40, 30, 10, 0, 190, 250)


async def test_an_estimate_stays_where_nobody_knows_better(store: LimitStore) -> None:
    await reserve_everything(store, seeded=(5, 7))
    assert await ask(store, Keep("r1")) == CommandDone()
    assert await spent_of(store) == counted(1, 150, 100, 50, 0, 155, 207)


async def test_a_request_that_never_ran_leaves_no_trace(store: LimitStore) -> None:
    await reserve_everything(store, seeded=(5, 7))
    assert await ask(store, Release("r1")) == CommandDone()
    assert await spent_of(store) == counted(0, 0, 0, 0, 0, 5, 7)


@pytest.mark.parametrize("late", [SettleReservation("r1", 1, 0, 1), Keep("r1"), Release("r1")])
@pytest.mark.parametrize("first", [SettleReservation("r1", 90, 0, 20), Keep("r1"), Release("r1")])
async def test_the_first_end_of_a_reservation_counts(
    store: LimitStore,
    first: SettleReservation | Keep | Release,
    late: SettleReservation | Keep | Release,
) -> None:
    await reserve_everything(store)
    await ask(store, first)
    before = await spent_of(store)
    await ask(store, late)
    assert await spent_of(store) == before


async def test_tokens_that_left_the_window_are_not_given_back(
    store: LimitStore, clock: Clock
) -> None:
    await reserve_everything(store)
    clock.pass_s(61)
    await granted(store, charge("r2", EVERYTHING, prompt=100, output=50))
    await ask(store, Release("r1"))
    assert await spent_of(store) == counted(1, 150, 100, 50, 1, 150, 0)


async def test_ending_an_unknown_reservation_changes_nothing(store: LimitStore) -> None:
    await reserve_everything(store)
    before = await spent_of(store)
    assert (
        await store.run(SettleReservation("r9", 5, 0, 5), Keep("r9"), Release("r9"))
        == [CommandDone()] * 3
    )
    assert await spent_of(store) == before


async def test_a_release_that_overtakes_its_charge_stops_it(store: LimitStore) -> None:
    only = scope("t1", concurrent_streams=5, tokens_per_minute=100)
    await ask(store, Release("r1"))
    assert await ask(store, charge("r1", only)) == Withdrawn()
    assert await remaining(store, only) == [100]


async def test_a_report_by_another_gateway_does_not_end_a_reservation(
    store: LimitStore, clock: Clock
) -> None:
    """Its engine was lost to the gateway that reserved, and reported it to another gateway."""
    only = scope("t1", tokens_per_minute=1000, concurrent_streams=1)
    made = charge("r1", only, prompt=100, output=50)
    await granted(store, made)
    await ask(store, SpentReport("r1", 100, 0, 20))
    assert (await refused(store, charge("r2", only))).kind == "concurrent_streams"
    await granted(store, more(made, 50))
    await ask(store, SettleReservation("r1", 100, 0, 90))
    assert await remaining(store, only) == [810]
    await granted(store, charge("r2", only))


async def test_reports_by_other_gateways_count_once_the_holder_is_dead(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", tokens_per_minute=1000, concurrent_streams=2)
    await granted(store, charge("r1", only, prompt=100, output=50))
    await granted(store, charge("r2", only, prompt=100, output=50, holder="g2"))
    for said in (
        SpentReport("r1", 100, 0, 20),
        SpentReport("r1", 100, 0, 30),
        SpentReport("r1", 100, 0, 25),
    ):
        await ask(store, said)
    clock.pass_s(LEASE_MS / 2000)
    await ask(store, Renew("g2", LEASE_MS))
    clock.pass_s(LEASE_MS / 2000)
    await ask(store, Renew("g2", LEASE_MS))
    assert await remaining(store, only) == [1000 - 130 - 150], "the most of it"
    await granted(store, charge("r3", only, holder="g2"))


async def test_a_report_that_overtakes_its_charge_or_its_gateways_end_stops_it(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", tokens_per_minute=1000)
    await ask(store, SpentReport("r1", 1, 0, 1))
    assert await ask(store, charge("r1", only)) == Withdrawn()
    made = charge("r2", only, prompt=100, output=50)
    await granted(store, made)
    clock.pass_s(LEASE_MS / 1000)
    await ask(store, SpentReport("r2", 100, 0, 20))
    assert await ask(store, more(made, 10)) == Withdrawn()
    assert await remaining(store, only) == [880]


# --- more of it ----------------------------------------------------------------------------------


async def test_a_reservation_can_grow(store: LimitStore) -> None:
    made = await reserve_everything(store)
    assert await granted(store, more(made, 200)) == 200
    assert await spent_of(store) == counted(1, 350, 100, 250, 1, 350, 600)
    await ask(store, SettleReservation("r1", 100, 0, 120))
    assert await spent_of(store) == counted(1, 220, 100, 120, 0, 220, 340)


async def test_a_reservation_grows_by_what_is_left_until_nothing_is(store: LimitStore) -> None:
    only = scope("t1", tokens_per_minute=100, concurrent_streams=1)
    made = charge("r1", only, prompt=30, output=20)
    assert await granted(store, made) == 20
    assert await granted(store, more(made, 80)) == 50
    answer = await refused(store, more(made, 80))
    assert (answer.kind, answer.used, answer.requested) == ("tokens_per_minute", 100, 1)


async def test_limits_on_other_things_do_not_stop_it_from_growing(store: LimitStore) -> None:
    only = scope("t1", requests_per_minute=1, concurrent_streams=1, prompt_tokens_per_minute=10)
    made = charge("r1", only)
    await granted(store, made)
    assert await granted(store, more(made, 500)) == 500
    await ask(store, SettleReservation("r1", 50, 0, 500))
    assert (await refused(store, charge("r2", scope("t1", prompt_tokens_per_minute=55)))).used == 50


async def test_each_part_leaves_the_window_on_its_own(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", tokens_per_minute=1000)
    made = charge("r1", only, prompt=100, output=50)
    await granted(store, made)
    await live_on(store, clock, 40)
    await granted(store, more(made, 30))
    await live_on(store, clock, 21)
    assert await remaining(store, only) == [970]
    await granted(store, more(made, 5))
    await ask(store, SettleReservation("r1", 100, 0, 60))
    assert await remaining(store, only) == [990]


async def test_a_budget_covers_growth_at_the_price_of_its_start(store: LimitStore) -> None:
    """The request costs 200 micro-units; 101 more pay for 50 tokens at 2."""
    await store.run(Seed(DAY, 0, 0), Seed(MONTH, 0, 699))
    made = charge("r1", EVERYTHING, prompt=100, output=50, rate=MICRO_EACH)
    await granted(store, made)
    assert await granted(store, more(made, 80)) == 50
    answer = await refused(store, more(made, 80))
    assert (answer.kind, answer.used, answer.requested) == ("cost_per_month", 999, 2)


async def test_a_lost_reservation_grows_anew(store: LimitStore) -> None:
    """As after a restart of Redis: the stream takes its place again, but the request is not counted
    again."""
    only = scope("t1", requests_per_minute=5, tokens_per_minute=100, concurrent_streams=1)
    assert await granted(store, more(charge("r1", only), 30)) == 30
    assert await remaining(store, only) == [5, 70]
    assert (await refused(store, charge("r2", only))).kind == "concurrent_streams"
    await ask(store, SettleReservation("r1", 10, 0, 20))
    assert await remaining(store, only) == [5, 70]
    await granted(store, charge("r2", only))


# --- budgets -------------------------------------------------------------------------------------


async def test_a_budget_asks_for_what_was_spent_before(store: LimitStore) -> None:
    only = scope("t1", cost_per_month=100, tokens_per_day=50)
    key = scope("k1", cost_per_day=10)
    answer = await ask(store, charge("r1", only, key))
    assert answer == Unseeded([DAY, MONTH, BudgetPeriod("k1", "day", TODAY)])
    await store.run(Seed(DAY, 30, 0), Seed(MONTH, 0, 0))
    answer = await ask(store, charge("r1", only, key))
    assert answer == Unseeded([BudgetPeriod("k1", "day", TODAY)])
    await ask(store, Seed(BudgetPeriod("k1", "day", TODAY), 0, 0))
    refusal = await refused(store, charge("r1", only, key))
    assert (refusal.kind, refusal.used) == ("tokens_per_day", 30)
    assert await granted(store, charge("r1", only, key, output=10)) == 10


@pytest.mark.parametrize(
    ("limit", "now", "renewal"),
    [
        ("tokens_per_day", datetime(2028, 2, 28, 23, 59, 59), datetime(2028, 2, 29)),
        ("cost_per_day", datetime(2026, 12, 31), datetime(2027, 1, 1)),
        ("tokens_per_month", datetime(2028, 2, 29, 23), datetime(2028, 3, 1)),
        ("cost_per_month", datetime(2026, 12, 1), datetime(2027, 1, 1)),
        ("tokens_per_month", datetime(2027, 2, 28, 23, 59, 59), datetime(2027, 3, 1)),
        ("tokens_per_month", datetime(2100, 2, 28, 23, 59, 59), datetime(2100, 3, 1)),
    ],
)
async def test_a_budget_renews_with_the_calendar_of_utc(
    store: LimitStore, clock: Clock, limit: str, now: datetime, renewal: datetime
) -> None:
    clock.now_ms = int(now.replace(tzinfo=UTC).timestamp() * 1000)
    only = scope("t1", **{limit: 10})
    unseeded = await ask(store, charge("r1", only))
    assert isinstance(unseeded, Unseeded)
    await ask(store, Seed(unseeded.budgets[0], 10, 11))
    answer = await refused(store, charge("r1", only))
    end = renewal.replace(tzinfo=UTC)
    assert answer.renews_at == end.timestamp()
    assert answer.wait_ms == end.timestamp() * 1000 - clock.now_ms
    clock.now_ms = int(end.timestamp() * 1000)
    assert isinstance(await ask(store, charge("r1", only)), Unseeded)


async def test_every_month_begins_where_the_calendar_says(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", tokens_per_month=10)
    for year in (1999, 2000, 2026, 2100, 2400):
        for month in range(1, 13):
            first = int(datetime(year, month, 1, tzinfo=UTC).timestamp())
            last = int(datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()) - 1
            for second in (first, (first + last) // 2, last):
                clock.now_ms = second * 1000
                answer = await ask(store, charge("r1", only))
                assert answer == Unseeded([BudgetPeriod("t1", "month", first)])


async def test_one_of_two_reservations_gives_back_its_own_part(store: LimitStore) -> None:
    await reserve_everything(store, seeded=(0, 0))
    other = charge("r2", EVERYTHING, prompt=30, output=20, rate=TokenRate(0, 0, 3_000_000))
    await granted(store, other)
    assert await spent_of(store) == counted(2, 200, 130, 70, 2, 200, 260)
    await ask(store, SettleReservation("r1", 10, 0, 10))
    assert await spent_of(store) == counted(2, 70, 40, 30, 1, 70, 90)
    await ask(store, Release("r2"))
    assert await spent_of(store) == counted(1, 20, 10, 10, 0, 20, 30)


async def test_a_request_belongs_to_the_day_on_which_it_began(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", tokens_per_day=100)
    clock.pass_s(86_400 / 2 - 60)
    await ask(store, Seed(DAY, 0, 0))
    made = charge("r1", only, prompt=20, output=20)
    await granted(store, made)
    await live_on(store, clock, 60)
    tomorrow = BudgetPeriod("t1", "day", TODAY + 86_400)
    await ask(store, Seed(tomorrow, 0, 0))
    assert await granted(store, more(made, 80)) == 60
    answer = await refused(store, more(made, 1))
    assert (answer.used, answer.wait_ms, answer.renews_at) == (100, 0, tomorrow.start)
    await granted(store, charge("r2", only, prompt=50, output=50))
    await ask(store, SettleReservation("r1", 20, 0, 70))
    assert (await refused(store, charge("r3", only, prompt=0, output=1))).used == 100


async def test_all_parts_of_a_long_request_end_with_it(store: LimitStore, clock: Clock) -> None:
    """Including parts that were reserved minutes ago."""
    only = scope("t1", output_tokens_per_minute=1000, tokens_per_day=1000)
    await ask(store, Seed(DAY, 0, 0))
    made = charge("r1", only, prompt=10, output=20)
    await granted(store, made)
    for output in (30, 40, 50, 60):
        await live_on(store, clock, 40)
        await granted(store, more(made, output))
    assert await ask(store, Count(only)) == LimitCounts([Used("output_tokens_per_minute", 110)])
    await ask(store, SettleReservation("r1", 10, 0, 145))
    assert await ask(store, Count(only)) == LimitCounts([Used("output_tokens_per_minute", 55)])
    assert (await refused(store, charge("r2", scope("t1", tokens_per_day=0)))).used == 155


async def test_a_budget_in_use_is_compared_with_the_ledger_now_and_then(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", tokens_per_day=100_000)
    await ask(store, Seed(DAY, 0, 0))
    dues = []
    for number, wait_s in enumerate((0, REFRESH_MS / 1000 - 1, 1, 1, REFRESH_MS / 1000)):
        clock.pass_s(wait_s)
        await ask(store, Renew("g1", LEASE_MS))
        answer = await ask(store, charge(f"r{number}", only))
        assert isinstance(answer, Granted)
        dues.append(answer.due)
    assert dues == [[], [], [DAY], [], [DAY]]


async def test_an_exhausted_budget_is_compared_as_well(store: LimitStore, clock: Clock) -> None:
    """Otherwise an estimate that was never billed would lock its tenant out until the budget
    renews."""
    only = scope("t1", tokens_per_day=100)
    await ask(store, Seed(DAY, 0, 0))
    await granted(store, charge("r1", only, prompt=50, output=50))
    await ask(store, Keep("r1"))
    assert (await refused(store, charge("r2", only, prompt=5, output=5))).due == []
    clock.pass_s(REFRESH_MS / 1000)
    await ask(store, Renew("g1", LEASE_MS))
    assert (await refused(store, charge("r2", only, prompt=5, output=5))).due == [DAY]
    assert (await refused(store, charge("r2", only, prompt=5, output=5))).due == []
    await ask(store, Seed(DAY, 10, 0))
    await granted(store, charge("r2", only, prompt=5, output=5))


async def test_the_ledger_adds_what_this_store_never_saw(store: LimitStore) -> None:
    only = scope("t1", tokens_per_day=1000)
    await ask(store, Seed(DAY, 100, 0))
    await granted(store, charge("r1", only, prompt=100, output=100))
    await ask(store, SettleReservation("r1", 100, 0, 100))
    await ask(store, Seed(DAY, 250, 0))  # the ledger is behind
    assert (await refused(store, charge("r2", only, output=990))).used == 300
    await ask(store, Seed(DAY, 700, 0))
    assert (await refused(store, charge("r2", only, output=990))).used == 700


async def test_the_ledger_replaces_an_estimate(store: LimitStore) -> None:
    only = scope("t1", tokens_per_day=1000)
    await ask(store, Seed(DAY, 100, 0))
    await granted(store, charge("r1", only, prompt=300, output=300))
    await ask(store, Keep("r1"))
    await ask(store, Seed(DAY, 150, 0))
    await ask(store, Seed(DAY, 140, 0))
    assert (await refused(store, charge("r2", only, output=990))).used == 150


async def test_requests_that_cost_less_than_a_unit_add_up_to_what_they_cost(
    store: LimitStore,
) -> None:
    """Rounded one by one, ten thousand short requests would use up the budget of three thousand."""
    only = scope("t1", cost_per_day=100)
    await ask(store, Seed(DAY, 0, 0))
    cheap = TokenRate(0, 0, 300_000)
    for number in range(11):
        await granted(store, charge(f"r{number}", only, prompt=0, output=1, rate=cheap))
        await ask(store, SettleReservation(f"r{number}", 0, 0, 1))
    full = charge("x", scope("t1", cost_per_day=4), prompt=0, output=1, rate=cheap)
    assert (await refused(store, full)).used == 4, "3.3, and a started one counts whole"
    await ask(store, Seed(DAY, 0, 4))  # as the ledger sums it up
    assert (await refused(store, full)).used == 4


# --- leases --------------------------------------------------------------------------------------


async def test_a_dead_gateway_s_reservations_are_given_back(
    store: LimitStore, clock: Clock
) -> None:
    await reserve_everything(store)
    clock.pass_s(LEASE_MS / 1000 - 0.001)
    await ask(store, Renew("g2", LEASE_MS))
    assert (await spent_of(store))["concurrent_streams"] == 1
    clock.pass_s(0.001)
    await ask(store, Renew("g2", LEASE_MS))
    assert await spent_of(store) == counted(1, 0, 0, 0, 0, 0, 0)


async def test_any_request_frees_the_slots_of_dead_gateways(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", concurrent_streams=1)
    await granted(store, charge("r1", only))
    clock.pass_s(LEASE_MS / 1000)
    await granted(store, charge("r2", only, holder="g2"))
    await ask(store, SettleReservation("r1", 10, 0, 20))
    assert (await refused(store, charge("r3", only, holder="g2"))).used == 1


async def test_a_gateway_that_sends_commands_is_alive_however_much_time_has_passed(
    store: LimitStore, clock: Clock
) -> None:
    """A clock that was set, or a machine that was paused, frees no stream that still runs."""
    only = scope("t1", concurrent_streams=1)
    await granted(store, charge("r1", only))
    clock.pass_s(3600)
    for id in ("r2", "r3"):
        assert (await refused(store, charge(id, only))).used == 1


async def test_a_budget_is_reread_from_the_ledger_after_a_gateway_died(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", tokens_per_day=1000)
    await ask(store, Seed(DAY, 100, 0))
    await granted(store, charge("r1", only))
    clock.pass_s(LEASE_MS / 1000)
    answer = await ask(store, charge("r2", only, holder="g2"))
    assert isinstance(answer, Granted) and answer.due == [DAY]


async def test_renewing_keeps_what_is_held(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", concurrent_streams=1)
    await granted(store, charge("r1", only))
    for _ in range(10):
        clock.pass_s(LEASE_MS / 1000 - 1)
        await ask(store, Renew("g1", LEASE_MS))
    assert (await refused(store, charge("r2", only, holder="g2"))).used == 1


async def test_a_leaving_gateway_releases_its_reservations_at_once(store: LimitStore) -> None:
    only = scope("t1", concurrent_streams=1)
    await granted(store, charge("r1", only))
    await ask(store, Renew("g1", 0))
    await granted(store, charge("r2", only, holder="g2"))


async def test_a_gateway_can_ask_what_it_holds(store: LimitStore) -> None:
    only = scope("t1", requests_per_minute=50)
    for id, holder in (("r1", "g1"), ("r2", "g2"), ("r3", "g1"), ("r4", "g1")):
        await granted(store, charge(id, only, holder=holder))
    await store.run(SettleReservation("r3", 1, 0, 1))
    held = await ask(store, Holds("g1"))
    assert isinstance(held, Ids) and sorted(held.ids) == ["r1", "r4"]
    assert await ask(store, Holds("g9")) == Ids([])


async def test_usage_in_the_ledger_before_settlement_is_not_counted_twice(
    store: LimitStore,
) -> None:
    """The ledger had it when a budget was compared; it is settled only afterwards."""
    only = scope("t1", tokens_per_day=1000)
    await ask(store, Seed(DAY, 100, 0))
    await granted(store, charge("r1", only, prompt=10, output=20))
    await ask(store, SpentReport("r1", 10, 0, 20))
    await ask(store, Seed(DAY, 130, 0))
    await ask(store, SettleReservation("r1", 10, 0, 20))
    await ask(store, Seed(DAY, 130, 0))
    least = charge("r2", only, prompt=1000, output=1)
    assert (await refused(store, least)).used == 130


async def test_another_gateway_goes_on_with_a_reservation(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", tokens_per_minute=1000, concurrent_streams=1)
    made = charge("r1", only, prompt=100, output=50)
    await granted(store, made)
    await ask(store, SpentReport("r1", 100, 0, 20))
    assert await ask(store, Take("r1", "g2")) == TakenOver(50)
    assert [await ask(store, Holds(holder)) for holder in ("g1", "g2")] == [Ids([]), Ids(["r1"])]
    await ask(store, Renew("g2", 2 * LEASE_MS))
    clock.pass_s(LEASE_MS / 1000)
    await ask(store, Renew("g3", LEASE_MS))
    assert (await refused(store, charge("r2", only, holder="g3"))).kind == "concurrent_streams"
    assert await granted(store, more(made, 50)) == 50, "it grows as before"
    assert await remaining(store, only) == [800]
    await ask(store, SettleReservation("r1", 100, 0, 80))
    assert await remaining(store, only) == [820], "counted once"
    assert await ask(store, Holds("g2")) == Ids([])


async def test_a_taken_over_reservation_ends_with_the_lease_of_its_new_holder(
    store: LimitStore, clock: Clock
) -> None:
    only = scope("t1", concurrent_streams=1)
    await granted(store, charge("r1", only))
    await ask(store, Renew("g2", LEASE_MS))
    assert isinstance(await ask(store, Take("r1", "g2")), TakenOver)
    await ask(store, Renew("g1", 0))
    assert (await refused(store, charge("r2", only, holder="g3"))).used == 1
    await ask(store, Renew("g2", 0))
    await granted(store, charge("r2", only, holder="g3"))


async def test_an_ended_reservation_cannot_be_taken_over(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", tokens_per_minute=1000, concurrent_streams=1)
    await granted(store, charge("r1", only))
    clock.pass_s(LEASE_MS / 1000)
    await ask(store, Renew("g2", LEASE_MS))
    assert await ask(store, Take("r1", "g2")) == TakenOver(None)
    assert await remaining(store, only) == [1000]
    assert await ask(store, Holds("g2")) == Ids([])


async def test_many_reservations_are_given_back_a_few_at_a_time(
    store: LimitStore, clock: Clock
) -> None:
    held = RECLAIMED_AT_ONCE * 2 + 1
    only = scope("t1", concurrent_streams=held)
    for number in range(held):
        await granted(store, charge(f"r{number}", only))
    clock.pass_s(LEASE_MS / 1000)
    full = scope("t1", concurrent_streams=0)
    seen = [(await refused(store, charge("x", full, holder="g2"))).used for _ in range(4)]
    assert seen == [RECLAIMED_AT_ONCE + 1, 1, 0, 0]


async def test_a_gateway_that_was_only_slow_goes_on(store: LimitStore, clock: Clock) -> None:
    only = scope("t1", concurrent_streams=5, tokens_per_minute=1000)
    made = charge("r1", only)
    await granted(store, made)
    clock.pass_s(LEASE_MS / 1000)
    await ask(store, Renew("g2", LEASE_MS))
    assert await remaining(store, only) == [1000]
    assert await granted(store, more(made, 40)) == 40
    await ask(store, SettleReservation("r1", 10, 0, 60))
    assert (await refused(store, charge("r2", scope("t1", concurrent_streams=0)))).used == 0


async def test_two_weeks_of_use_leave_only_what_is_current(store: LimitStore, clock: Clock) -> None:
    """Housekeeping keeps everything that still counts."""
    only = scope("t1", tokens_per_day=1000, tokens_per_month=100_000, requests_per_minute=5)
    await ask(store, Seed(MONTH, 0, 0))
    for day in range(14):
        await ask(store, Seed(BudgetPeriod("t1", "day", TODAY + day * 86_400), 0, 0))
        await granted(store, charge(f"r{day}", only, prompt=50, output=50))
        await ask(store, SettleReservation(f"r{day}", 50, 0, 50))
        clock.pass_s(86_400)
        await ask(store, Renew("g1", LEASE_MS))
    clock.pass_s(SWEEP_MS / 1000)
    await ask(store, Renew("g1", LEASE_MS))
    assert await remaining(store, only) == [5]
    await ask(store, Seed(BudgetPeriod("t1", "day", TODAY + 14 * 86_400), 0, 0))
    answer = await refused(store, charge("x", scope("t1", tokens_per_month=1000)))
    assert answer.used == 1400


# --- random histories ----------------------------------------------------------------------------


def test_random_histories_are_those_of_the_model(redis_server: RedisServer) -> None:
    lives = type("LivesOnRedis", (Lives,), {"server": redis_server})
    run_state_machine_as_test(lives, settings=settings(stateful_step_count=60))
