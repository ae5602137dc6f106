"""Waits after failed attempts: the arithmetic, and whose failures delay whom."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.core.cache import cache
from django.http import HttpRequest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from frontend.sign_in.throttling import (
    CODES,
    INVITATION_LINKS,
    PASSWORDS,
    RESET_MAILS,
    Limit,
    SignInFailures,
    Throttle,
    TooManyAttempts,
    duration,
)

pytestmark = pytest.mark.pure

LIMIT = Limit(free=3, first_wait_s=10, longest_wait_s=100, forget_s=50)
ALL = (PASSWORDS, CODES, RESET_MAILS, INVITATION_LINKS)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> Throttle:
    cache.clear()
    return Throttle("test", replace(LIMIT, free=6), LIMIT, clock=clock)


def asked_from(address: str) -> HttpRequest:
    return RequestFactory().get("/", REMOTE_ADDR=address)


HERE, ELSEWHERE = asked_from("192.0.2.1"), asked_from("198.51.100.7")


def refused_for(throttle: Throttle, request: HttpRequest, *accounts: str) -> int:
    """Seconds that the next attempt has to wait; 0 if it is allowed, and then counts as failed."""
    try:
        throttle.begin(request, accounts)
    except TooManyAttempts as refused:
        return refused.retry_after_s
    return 0


# --- The arithmetic ------------------------------------------------------------------------------


def test_each_failure_doubles_the_wait_up_to_the_longest() -> None:
    waits, failures, now = [], SignInFailures(), 0.0
    for _ in range(10):
        wait = LIMIT.wait_s(failures, now)
        waits.append(wait)
        now += wait
        failures = replace(LIMIT, forget_s=1e9).failed(failures, now)
    assert waits == [0, 0, 0, 10, 20, 40, 80, 100, 100, 100]


def test_failures_are_forgotten_one_by_one() -> None:
    failures = SignInFailures(5, last_at=0)
    assert LIMIT.failed(failures, now=100) == SignInFailures(4, 100)
    assert LIMIT.failed(failures, now=1e6) == SignInFailures(1, 1e6)


@given(
    st.lists(st.floats(0, 1e4), max_size=60),
    st.integers(1, 30), st.floats(1, 60), st.floats(60, 3600), st.floats(1, 3600),
)  # fmt: skip
def test_however_attempts_are_spaced_no_wait_is_too_long_and_all_waits_end(
    pauses: list[float], free: int, first: float, longest: float, forget: float
) -> None:
    limit = Limit(free, first, longest, forget)
    failures, now = SignInFailures(), 0.0
    for pause in pauses:
        now += pause
        wait = limit.wait_s(failures, now)
        assert 0 <= wait <= longest
        assert limit.wait_s(failures, now + wait) <= 1e-6
        if wait == 0:
            failures = limit.failed(failures, now)
        assert limit.lifetime_s(failures) >= limit.wait_s(failures, now)


def test_nobody_guesses_much_in_a_day(clock: Clock) -> None:
    """Bounds the attempts that each limit allows to a client that tries as soon as it may."""
    tries = {}
    for throttle in ALL:
        for name in ("per_address", "per_account_and_address", "per_account"):
            limit = getattr(throttle, name)
            if limit is None:
                continue
            failures, now, count = SignInFailures(), 0.0, 0
            while now < 86_400:
                failures = limit.failed(failures, now)
                count += 1
                now += limit.wait_s(failures, now)
            tries[throttle.action, name] = count
    assert tries["password", "per_account_and_address"] <= 110
    assert tries["password", "per_address"] <= 3_000
    assert tries["code", "per_account"] <= 60
    assert tries["reset-mail", "per_account"] <= 35


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1, "1 second"), (90, "90 seconds"), (91, "2 minutes"), (900, "15 minutes")],
)
def test_waits_are_said_as_people_say_them(seconds: int, said: str) -> None:
    assert duration(seconds) == said


# --- Whom failures delay -------------------------------------------------------------------------


def test_an_account_is_slowed_down_where_it_is_guessed_at_and_nowhere_else(
    throttle: Throttle, clock: Clock
) -> None:
    assert [refused_for(throttle, HERE, "ann") for _ in range(4)] == [0, 0, 0, 10]
    assert refused_for(throttle, ELSEWHERE, "ann") == 0
    assert refused_for(throttle, HERE, "bob") == 0
    clock.now += 10
    assert refused_for(throttle, HERE, "ann") == 0
    assert refused_for(throttle, HERE, "ann") == 20


def test_an_address_that_tries_many_accounts_is_slowed_down(
    throttle: Throttle, clock: Clock
) -> None:
    assert [refused_for(throttle, HERE, f"user {n}") for n in range(6)] == [0] * 6
    assert refused_for(throttle, HERE, "user 7") == 10
    assert refused_for(throttle, ELSEWHERE, "user 7") == 0


def test_waiting_ends_however_often_somebody_asks_meanwhile(
    throttle: Throttle, clock: Clock
) -> None:
    for _ in range(3):
        refused_for(throttle, HERE, "ann")
    for _ in range(9):
        clock.now += 1
        assert refused_for(throttle, HERE, "ann") > 0
    clock.now += 1
    assert refused_for(throttle, HERE, "ann") == 0


def test_a_refusal_for_one_account_costs_the_address_nothing(throttle: Throttle) -> None:
    for _ in range(20):
        refused_for(throttle, HERE, "ann")  # 3 of them count
    assert [refused_for(throttle, HERE, "bob") for _ in range(3)] == [0, 0, 0]
    assert refused_for(throttle, HERE, "eve") == 10


def test_success_forgets_the_accounts_failures_and_not_the_addresss(throttle: Throttle) -> None:
    """Otherwise an attacker could sign in to an account of his own after every few guesses."""
    for account in ("ann", "ann", "bob", "bob", "eve"):
        throttle.begin(HERE, [account])
    throttle.begin(HERE, ["ann"]).succeeded()
    assert refused_for(throttle, HERE, "ann") == 0
    assert refused_for(throttle, HERE, "mine") == 10


def test_many_attempts_at_once_are_no_more_than_one_after_the_other(throttle: Throttle) -> None:
    with ThreadPoolExecutor(16) as pool:
        waits = list(pool.map(lambda _: refused_for(throttle, HERE, "ann"), range(64)))
    assert waits.count(0) == 3


def test_a_limit_of_the_whole_account_counts_all_addresses(clock: Clock) -> None:
    cache.clear()
    throttle = Throttle("test", LIMIT, per_account=LIMIT, clock=clock)
    waits = [refused_for(throttle, asked_from(f"192.0.2.{n}"), "ann") for n in range(4)]
    assert waits == [0, 0, 0, 10]
