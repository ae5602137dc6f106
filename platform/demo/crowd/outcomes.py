"""The outcomes of the crowd's requests, as gateways would have written them: figures by hour and,
for recent times, by minute; and some refused requests.

Derived from the existing events, for the time that `tenants.housekeeping` keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from demo.crowd import Size
from inference.gateway.measuring.measures import DURATION_S
from inference.gateway.measuring.sums import BUCKETS
from tenants.directory.outcomes import ADDED
from tenants.housekeeping import MINUTES_KEPT

EVERY = 40
"""One of this many requests is followed by one that a limit refuses."""

_REFUSED = """
INSERT INTO tenants_refusedrequest (
    id, started_at, tenant_id, key_id, version_id, adapter, base_model, model, surface, outcome,
    status, code, message, limit_kind, limit_scope, total_s)
SELECT 'x' || substr(id, 2), started_at + interval '1 second', tenant_id, key_id, NULL, adapter, '',
       model, 'api', 'refused', 429, 'rate_limit_exceeded',
       'Rate limit reached for tenant: 6000 requests per minute; used 6000, requested 1. '
           || 'Try again in 4 s.',
       'requests_per_minute', 'tenant', 0.004
FROM tenants_usageevent
WHERE tenant_id = ANY(%(tenants)s) AND started_at >= %(refused_since)s
  AND abs(hashtext(id)::bigint) %% %(every)s = 0
"""
_ENDED = """
CREATE TEMPORARY TABLE crowd_ended ON COMMIT DROP AS
SELECT tenant_id, key_id, version_id, adapter, base_model, started_at,
       CASE WHEN finish_reason IN ('stop', 'length') THEN 'completed'
            WHEN finish_reason = 'cancelled' THEN 'cancelled' ELSE 'failed' END AS outcome,
       finish_reason AS code, '' AS limit_kind, '' AS limit_scope, prompt_tokens, cached_tokens,
       completion_tokens AS output_tokens, cost,
       (version_id IS NOT NULL AND finish_reason = 'stop'
           AND abs(hashtext(id)::bigint) %% 40 BETWEEN 1 AND 19)::int AS conformed,
       (version_id IS NOT NULL AND finish_reason = 'stop'
           AND abs(hashtext(id)::bigint) %% 40 = 0)::int AS malformed,
       (version_id IS NOT NULL AND finish_reason = 'length'
           AND abs(hashtext(id)::bigint) %% 2 = 0)::int AS unchecked,
       greatest(0, completion_tokens - 1) AS decode_tokens, total_s - ttft_s AS decode_s,
       width_bucket(ttft_s, %(bounds)s) AS first,
       CASE WHEN finish_reason IN ('stop', 'length') THEN width_bucket(total_s, %(bounds)s)
            END AS total
FROM tenants_usageevent WHERE tenant_id = ANY(%(tenants)s) AND started_at >= %(hours_since)s
UNION ALL
SELECT tenant_id, key_id, NULL, adapter, base_model, started_at, outcome, code, limit_kind,
       limit_scope, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL
FROM tenants_refusedrequest WHERE tenant_id = ANY(%(tenants)s)
"""
_COUNTS = (
    "prompt_tokens, cached_tokens, output_tokens, cost, conformed, malformed, unchecked, "
    "decode_tokens, decode_s"
)
_WHAT = "outcome, code, limit_kind, limit_scope"


def _figures(table: str, whose: str, groups: str) -> str:
    """A statement that adds up the requests ended since a time, by span."""
    times = [
        f"ARRAY[{', '.join(f'count(*) FILTER (WHERE {name} = {at})' for at in range(BUCKETS))}]"
        for name in ("first", "total")
    ]
    sums = ", ".join(f"sum({name})" for name in _COUNTS.split(", "))
    return f"""
        INSERT INTO {table} AS known (
            {whose}, at, {_WHAT}, requests, {_COUNTS}, first_tokens, totals)
        SELECT {whose}, at, {_WHAT}, count(*), {sums}, {", ".join(times)}
        FROM (SELECT *, date_trunc(%(span)s, started_at, 'UTC') AS at FROM crowd_ended
              WHERE started_at >= %(since)s) AS ended
        GROUP BY {groups}
        ON CONFLICT ({whose}, at, {_WHAT}) DO UPDATE SET {ADDED}"""


_DETAILS = "tenant_id, key_id, version_id, adapter, base_model"


def make(size: Size, tenants: Sequence[int]) -> None:
    """Make the outcomes of these tenants' requests (row ids). Call it inside a transaction."""
    hours_since = size.until - timedelta(days=settings.HISTORY_DAYS)
    values: dict[str, Any] = {
        "tenants": list(tenants), "every": EVERY, "bounds": list(DURATION_S),
        "hours_since": hours_since,
        "refused_since": size.until - timedelta(days=settings.REFUSED_REQUESTS_DAYS),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_REFUSED, values)
        cursor.execute(_ENDED, values)
        for span, since in (("hour", hours_since), ("minute", size.until - MINUTES_KEPT)):
            of_span: dict[str, Any] = {"span": span, "since": since}
            details = _figures(f"tenants_request{span}", _DETAILS, f"{_DETAILS}, at, {_WHAT}")
            sets = f"GROUPING SETS ((tenant_id, at, {_WHAT}), (at, {_WHAT}))"
            cursor.execute(details, of_span)
            cursor.execute(_figures(f"tenants_total{span}", "tenant_id", sets), of_span)
