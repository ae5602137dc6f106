"""Error messages of refusals: the scope, the limit, what was used, and when to try again."""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil

from inference.errors import InferenceError, InsufficientQuota, RateLimitExceeded
from inference.interfaces.directory import MICRO, Limits
from tenants.limits.commands import LimitRefused
from tenants.limits.kinds import KINDS, Kinds
from tenants.limits.window import WINDOW_S

SCOPES = {"t": "tenant", "k": "key", "a": "adapter"}
"""The kind of scope by the first letter of `Limits.scope_id`."""


def error_of(
    refused: LimitRefused, limits: Limits, currency: str, kinds: Kinds = KINDS
) -> InferenceError:
    """The error to raise; `limits` are those of the scope that refused."""
    error = _worded(refused, limits, currency, kinds)
    error.limit_kind, error.limit_scope = refused.kind, SCOPES.get(limits.scope_id[:1], "")
    return error


def _worded(refused: LimitRefused, limits: Limits, currency: str, kinds: Kinds) -> InferenceError:
    kind, limit = kinds[refused.kind], limits.values[refused.kind]

    def shown(value: int) -> str:
        return money(value, currency) if kind.is_money else str(value)

    facts = (
        f"{limits.shown}: {shown(limit)} {kind.wording}; "
        f"used {shown(refused.used)}, requested {shown(refused.requested)}."
    )
    if refused.renews_at is not None:
        renewal = datetime.fromtimestamp(refused.renews_at, UTC)
        return InsufficientQuota(
            f"Budget exhausted for {facts} It renews on {renewal:%Y-%m-%d} UTC."
        )
    if refused.wait_ms is None:
        return RateLimitExceeded(f"Request too large for {facts} It exceeds the limit on its own.")
    # A bucket leaves when its whole second is a minute ago, so up to a second late; OpenAI's SDKs
    # ignore a `retry-after` above a minute.
    wait_s = min(refused.wait_ms / 1000, WINDOW_S)
    return RateLimitExceeded(
        f"Rate limit reached for {facts} Try again in {max(1, ceil(wait_s))} s.",
        retry_after_s=wait_s,
    )


def money(micro: int, currency: str) -> str:
    """An amount in micro-units, such as `12.50 USD`: two decimals, or up to six if needed."""
    whole, rest = divmod(micro, MICRO)
    return f"{whole}.{f'{rest:06d}'.rstrip('0'):0<2} {currency.upper()}"
