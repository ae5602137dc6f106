"""Refused requests, and figures of requests, as gateways would have written them."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

from inference.gateway.measuring.sums import BUCKETS
from tenants.models import (
    ApiKey,
    RefusedRequest,
    RequestHour,
    RequestMinute,
    Tenant,
    TotalHour,
    TotalMinute,
)

_numbers = itertools.count(1)


def refuse(key: ApiKey, at: datetime, **fields: Any) -> RefusedRequest:
    """A request that a limit refused, if nothing else is said."""
    defaults = {
        "id": f"refused{next(_numbers):025x}", "adapter": "", "base_model": "", "model": "base",
        "surface": "api", "outcome": "refused", "status": 429, "code": "rate_limit_exceeded",
        "message": "Rate limit reached for key `ci`: 60 requests per minute; used 60.",
        "limit_kind": "requests_per_minute", "limit_scope": "key", "total_s": 0.002,
    }  # fmt: skip
    return RefusedRequest.objects.create(
        started_at=at, tenant=key.tenant, key=key, **(defaults | fields)
    )


def met(
    key: ApiKey,
    at: datetime,
    outcome: str = "completed",
    requests: int = 1,
    *,
    bucket: int | None = None,
    **fields: Any,
) -> None:
    """So many requests of one minute; their first tokens fell into this bucket."""
    times = [0] * BUCKETS
    if bucket is not None:
        times[bucket] = requests
    figures = {
        "outcome": outcome, "code": "stop", "limit_kind": "", "limit_scope": "",
        "requests": requests, "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0,
        "cost": 0, "decode_tokens": 0, "decode_s": 0.0, "first_tokens": times, "totals": times,
    } | {name: value for name, value in fields.items() if name not in _WHOSE}  # fmt: skip
    whose = {"adapter": "", "base_model": "base", "version": None}
    whose |= {name: value for name, value in fields.items() if name in _WHOSE}
    minute = at.replace(second=0, microsecond=0)
    hour = minute.replace(minute=0)
    RequestMinute.objects.create(tenant=key.tenant, key=key, at=minute, **whose, **figures)
    RequestHour.objects.create(tenant=key.tenant, key=key, at=hour, **whose, **figures)
    totals: list[Tenant | None] = [key.tenant, None]
    for tenant in totals:
        TotalMinute.objects.create(tenant=tenant, at=minute, **figures)
        TotalHour.objects.create(tenant=tenant, at=hour, **figures)


_WHOSE = ("adapter", "base_model", "version")
