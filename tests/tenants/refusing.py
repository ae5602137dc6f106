"""Refused requests, and figures of requests, as gateways would have written them."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

from django.db import connection

from inference.gateway.measuring.outcomes import OutcomeGroup, OutcomeSums
from inference.gateway.measuring.sums import BUCKETS
from tenants.directory.outcomes import ADD, encoded_sums
from tenants.models import AdapterVersion, ApiKey, RefusedRequest

_numbers = itertools.count(1)


def refuse(key: ApiKey, at: datetime, **fields: Any) -> RefusedRequest:
    """A request that a limit refused, unless `fields` say otherwise."""
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
    version: AdapterVersion | None = None,
    **fields: Any,
) -> None:
    """Record `requests` of one minute with this outcome and their times in `bucket`."""
    times = [0] * BUCKETS
    if bucket is not None:
        times[bucket] = requests
    defaults = {"adapter": "", "base_model": "base", "code": "stop", "limit_kind": "",
                "limit_scope": ""}  # fmt: skip
    whose = defaults | {name: fields.pop(name) for name in defaults if name in fields}
    minute = int(at.replace(second=0, microsecond=0).timestamp())
    ids = key.tenant_id, key.pk, version.pk if version else 0
    group = OutcomeGroup(minute, *ids, outcome=outcome, **whose)
    sums = OutcomeSums(requests, **fields, first_tokens=times, totals=times)
    with connection.cursor() as cursor:
        for statement in ADD:
            cursor.execute(statement, {"sums": encoded_sums([(group, sums)])})
