"""A refusal states scope and limit, what was used, and when to retry."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from inference.errors import InsufficientQuota, RateLimitExceeded
from tenants.limits.commands import LimitRefused
from tenants.limits.refusals import error_of, money
from tests.limits.asking import limits

pytestmark = pytest.mark.pure

NEW_YEAR = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp())


def refusal(kind: str, **fields: Any) -> LimitRefused:
    facts: dict[str, Any] = {"scope": 0, "used": 100, "requested": 1, "wait_ms": None}
    return LimitRefused(**(facts | {"kind": kind, "renews_at": None} | fields))


def test_a_rate_limit_says_when_to_try_again() -> None:
    error = error_of(
        refusal("requests_per_minute", wait_ms=11_001), limits(requests_per_minute=100), "usd"
    )
    assert isinstance(error, RateLimitExceeded)
    assert error.message == (
        "Rate limit reached for tenant `acme`: 100 requests per minute; used 100, requested 1. "
        "Try again in 12 s."
    )
    assert error.retry_after_s == 11.001


@pytest.mark.parametrize(
    ("scope_id", "scope"), [("t12", "tenant"), ("k7", "key"), ("a3", "adapter")]
)
def test_a_refusal_says_which_kind_of_limit_it_is_and_whose(scope_id: str, scope: str) -> None:
    of = replace(limits(requests_per_minute=100), scope_id=scope_id)
    error = error_of(refusal("requests_per_minute", wait_ms=1000), of, "usd")
    assert (error.limit_kind, error.limit_scope) == ("requests_per_minute", scope)
    assert RateLimitExceeded().limit_kind == ""


def test_a_wait_is_a_minute_at_most() -> None:
    """Although what arrived within one second leaves only when all of that second is a minute
    old."""
    error = error_of(
        refusal("requests_per_minute", wait_ms=60_990), limits(requests_per_minute=100), "usd"
    )
    assert error.message.endswith("Try again in 60 s.")
    assert error.retry_after_s == 60


def test_a_wait_is_a_second_at_least() -> None:
    error = error_of(refusal("concurrent_streams", wait_ms=0), limits(concurrent_streams=2), "usd")
    assert error.message.endswith("2 concurrent requests; used 100, requested 1. Try again in 1 s.")


def test_a_request_above_the_limit_is_not_retryable() -> None:
    error = error_of(
        refusal("tokens_per_minute", used=0, requested=500), limits(tokens_per_minute=100), "usd"
    )
    assert isinstance(error, RateLimitExceeded)
    assert error.message == (
        "Request too large for tenant `acme`: 100 tokens per minute; used 0, requested 500. "
        "It exceeds the limit on its own."
    )
    assert error.retry_after_s is None


def test_a_budget_in_tokens_says_when_it_renews() -> None:
    error = error_of(
        refusal("tokens_per_month", wait_ms=5, renews_at=NEW_YEAR),
        limits("k1", "key `ci`", tokens_per_month=100),
        "usd",
    )
    assert isinstance(error, InsufficientQuota)
    assert error.message == (
        "Budget exhausted for key `ci`: 100 tokens per month; used 100, requested 1. "
        "It renews on 2027-01-01 UTC."
    )
    assert error.retry_after_s is None


def test_a_budget_in_money_is_in_the_currency() -> None:
    error = error_of(
        refusal("cost_per_day", used=12_499_990, requested=20, wait_ms=5, renews_at=NEW_YEAR),
        limits(cost_per_day=12_500_000),
        "eur",
    )
    assert error.message == (
        "Budget exhausted for tenant `acme`: 12.50 EUR per day; used 12.49999 EUR, "
        "requested 0.00002 EUR. It renews on 2027-01-01 UTC."
    )


@pytest.mark.parametrize(
    ("micro", "shown"),
    [(0, "0.00 USD"), (1, "0.000001 USD"), (1_000_000, "1.00 USD"), (1_230_000, "1.23 USD")],
)
def test_money_has_two_decimals_or_as_many_as_it_needs(micro: int, shown: str) -> None:
    assert money(micro, "usd") == shown
