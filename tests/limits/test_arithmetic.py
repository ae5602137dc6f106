"""Kinds, periods, money, budgets, and what a reservation becomes when it ends. No store, no event
loop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.interfaces.directory import TokenPrice
from inference.link.accounts import Usage
from tenants.limits.budget import REFRESH_MS, BudgetOutcome, LimitBudget
from tenants.limits.commands import (
    BudgetPeriod,
    CountedScope,
    SettleReservation,
    TokenRate,
    end_of,
    start_of,
)
from tenants.limits.counters import BoundLimits
from tenants.limits.kinds import KINDS
from tenants.limits.reservation import ReservedPart, StoredReservation
from tenants.limits.window import GONE_S, LimitWindow
from tests.limits.asking import DAY, NOON, charge, limits

pytestmark = pytest.mark.pure

moments = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1)).map(
    lambda at: at.replace(tzinfo=UTC)
)
rates = st.builds(TokenRate, *[st.integers(0, 10**12)] * 3)
tokens = st.integers(0, 10**6)


# --- periods -------------------------------------------------------------------------------------


@given(moments)
def test_days_are_those_of_utc(at: datetime) -> None:
    start = start_of("day", int(at.timestamp()))
    assert datetime.fromtimestamp(start, UTC) == at.replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    assert end_of("day", start) - start == 86_400


@given(moments)
def test_months_are_those_of_utc(at: datetime) -> None:
    start = start_of("month", int(at.timestamp()))
    first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert datetime.fromtimestamp(start, UTC) == first
    following = (first + timedelta(days=32)).replace(day=1)
    assert datetime.fromtimestamp(BudgetPeriod("t1", "month", start).end, UTC) == following


# --- scopes and money ----------------------------------------------------------------------------


def test_a_scope_has_the_values_of_its_limits_and_hashes_as_they_do() -> None:
    of_tenant = limits(tokens_per_day=0, requests_per_minute=7)
    made = CountedScope.of(of_tenant)
    assert made == CountedScope("t1", {"requests_per_minute": 7, "tokens_per_day": 0})
    assert len({made, CountedScope.of(of_tenant), CountedScope("t1")}) == 2
    assert hash(made) == hash(of_tenant)


@given(st.builds(TokenPrice, *[st.integers(0, 10**12)] * 3), tokens, tokens, tokens)
def test_a_cost_is_the_ledgers_in_whole_micro_units_never_less(
    price: TokenPrice, uncached: int, cached: int, output: int
) -> None:
    usage = Usage(prompt_tokens=uncached + cached, cached_tokens=cached, completion_tokens=output)
    micro, pico = TokenRate.of(price).cost(uncached, cached, output), price.cost(usage)
    assert micro * 10**6 - 10**6 < pico <= micro * 10**6


# --- budgets -------------------------------------------------------------------------------------


def used(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "output_tokens": output}


def test_the_greater_figure_of_ledger_and_counter_holds() -> None:
    budget = LimitBudget(DAY)
    budget.seed(100, 10, 0)
    budget.reserve(50, 5)
    budget.settle(50, 5, BudgetOutcome(used(30, 10), cost=4))
    budget.seed(120, 13, 0)
    assert (budget.tokens, budget.cost) == (140, 14)
    budget.seed(150, 15, 0)
    assert (budget.tokens, budget.cost) == (150, 15)
    assert (budget.reserved_tokens, budget.reserved_cost) == (0, 0)


def test_the_ledger_corrects_an_estimate_downwards_once() -> None:
    budget = LimitBudget(DAY)
    budget.seed(100, 10, 0)
    budget.reserve(500, 50)
    budget.settle(500, 50, BudgetOutcome(used(100, 400), cost=50, estimated=True))
    assert (budget.tokens, budget.cost) == (600, 60)
    budget.seed(130, 13, 0)
    budget.seed(120, 12, 0)
    assert (budget.tokens, budget.cost) == (130, 13)


def test_a_budget_is_due_until_it_is_seeded_once_per_interval_and_after_a_doubt() -> None:
    budget = LimitBudget(DAY)
    assert budget.due_ms == 0
    budget.seed(0, 0, 1000)
    assert budget.due_ms == 1000 + REFRESH_MS
    budget.refreshed(5000)
    assert budget.due_ms == 5000 + REFRESH_MS
    budget.settle(0, 0, BudgetOutcome(doubted=True))
    assert budget.due_ms == 0


# --- reservations --------------------------------------------------------------------------------


NOWHERE = BoundLimits.of([], (), NOON, KINDS)


def reserve(
    reservation: StoredReservation, second: int, prompt: int, output: int, requests: int = 1
) -> ReservedPart:
    """Reserve; returns the added part."""
    asked = charge(prompt=prompt, quantities={"requests": requests})
    made = reservation.part(asked, output, second)
    reservation.add(made, asked.quantities)
    return made


@given(rates, *[tokens] * 4)
def test_parts_cost_together_what_their_tokens_cost_at_once(
    rate: TokenRate, prompt: int, output: int, more_prompt: int, more_output: int
) -> None:
    reservation = StoredReservation("g1", rate, NOWHERE)
    reserve(reservation, NOON, prompt, output)
    reserve(reservation, NOON, more_prompt, more_output, requests=0)
    assert reservation.amount("cost") == rate.cost(prompt + more_prompt, 0, output + more_output)


def test_parts_that_have_left_every_window_are_forgotten_but_not_their_sums() -> None:
    reservation = StoredReservation("g1", TokenRate(), NOWHERE)
    reserve(reservation, 100, 10, 5)
    reserve(reservation, 100 + GONE_S - 1, 0, 7, requests=0)
    assert len(reservation.parts) == 2
    reserve(reservation, 100 + GONE_S, 0, 9, requests=0)
    assert [kept.amounts["output_tokens"] for kept in reservation.parts] == [7, 9]
    assert (reservation.amount("requests"), reservation.amount("tokens")) == (1, 31)


figures = st.integers(0, 200)
schedules = st.lists(st.tuples(st.integers(0, 70), figures), min_size=1, max_size=8)


@given(figures, schedules, st.integers(0, 70), st.tuples(figures, figures, figures), st.booleans())
def test_after_settling_a_window_counts_what_was_used_where_it_was_reserved(
    prompt: int,
    extensions: list[tuple[int, int]],
    wait_s: int,
    used: tuple[int, int, int],
    kept: bool,
) -> None:
    """With no other request, the window ends with the outcome less what had left it before."""
    reservation, window, second = StoredReservation("g1", TokenRate(), NOWHERE), LimitWindow(), NOON
    for number, (gap_s, output) in enumerate(extensions):
        second += gap_s
        first = number == 0
        made = reserve(reservation, second, prompt if first else 0, output, requests=int(first))
        window.slide(second)
        window.add(made.amounts["tokens"])
    window.slide(second + wait_s)
    before = window.used
    cached = min(used[0], used[1])
    outcome = (
        reservation.kept()
        if kept
        else reservation.used(SettleReservation("r1", used[0], cached, used[2]))
    )
    reservation.correct(window, "tokens", outcome)
    change = outcome.tokens - reservation.amount("tokens")
    assert window.used >= max(0, before + change)
    if second + wait_s < NOON + GONE_S:
        assert window.used == before + change


@pytest.mark.parametrize(
    ("name", "reserved", "settled"),
    [
        ("requests_per_minute", 1, 1),
        ("tokens_per_minute", 150, 120),
        ("prompt_tokens_per_minute", 100, 50),
        ("output_tokens_per_minute", 50, 30),
    ],
)
def test_each_window_counts_its_own_measure(name: str, reserved: int, settled: int) -> None:
    reservation, window = StoredReservation("g1", TokenRate(), NOWHERE), LimitWindow()
    measure = KINDS[name].measure
    made = reserve(reservation, NOON, 100, 50)
    window.slide(NOON)
    window.add(made.amounts[measure])
    assert window.used == reserved
    reservation.correct(window, measure, reservation.used(SettleReservation("r1", 90, 40, 30)))
    assert window.used == settled


def test_prompt_and_output_are_given_back_where_each_was_reserved() -> None:
    reservation, window = StoredReservation("g1", TokenRate(), NOWHERE), LimitWindow()
    for second, prompt, output in ((100, 40, 10), (110, 0, 20), (120, 0, 30)):
        made = reserve(reservation, second, prompt, output)
        window.slide(second)
        window.add(made.amounts["tokens"])
    reservation.correct(window, "tokens", reservation.used(SettleReservation("r1", 35, 0, 25)))
    assert window.used == 60
    window.slide(100 + GONE_S)
    assert window.used == 15  # 35 + 10 have left; the newest 30 and 5 of the middle were unused
    window.slide(110 + GONE_S)
    assert window.used == 0
