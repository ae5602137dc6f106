"""The words of a refusal: which scope, which limit, what was used, when to come back."""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil

from inference.errors import InferenceError, InsufficientQuota, RateLimitExceeded
from inference.grants import MICRO, Limits
from tenants.limits.commands import Refused

WORDS = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "prompt_tokens_per_minute": "prompt tokens per minute",
    "output_tokens_per_minute": "generated tokens per minute",
    "concurrent_streams": "requests at the same time",
    "tokens_per_day": "tokens per day",
    "tokens_per_month": "tokens per month",
    "cost_per_day": "per day",
    "cost_per_month": "per month",
}


def error_of(refused: Refused, limits: Limits, currency: str) -> InferenceError:
    """The error to raise; `limits` are those of the scope that refused."""
    limit = getattr(limits, refused.field)
    is_cost = refused.field.startswith("cost")

    def shown(value: int) -> str:
        return money(value, currency) if is_cost else str(value)

    facts = (
        f"{limits.shown}: {shown(limit)} {WORDS[refused.field]}; "
        f"used {shown(refused.used)}, requested {shown(refused.requested)}."
    )
    if refused.renews_at is not None:
        renewal = datetime.fromtimestamp(refused.renews_at, UTC)
        return InsufficientQuota(f"Budget used up for {facts} It renews on {renewal:%Y-%m-%d} UTC.")
    if refused.wait_ms is None:
        return RateLimitExceeded(f"Request too large for {facts} It is more than the limit allows.")
    wait_s = refused.wait_ms / 1000
    return RateLimitExceeded(
        f"Rate limit reached for {facts} Try again in {max(1, ceil(wait_s))} s.",
        retry_after_s=wait_s,
    )


def money(micro: int, currency: str) -> str:
    """An amount in micro-units, such as `12.50 USD`: two decimals, more where there are more."""
    whole, rest = divmod(micro, MICRO)
    return f"{whole}.{f'{rest:06d}'.rstrip('0'):0<2} {currency.upper()}"
