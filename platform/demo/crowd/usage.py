"""The crowd's usage: events, their hourly sums and their journals' sums, month by month.

Written as `tenants.billing.ledger` writes them, with one statement per month; triggers add the
monthly sums, and `manage.py reconcile --check-rollups` finds no difference. Requests come in bursts
because software calls the same adapter with the same key for a while: BURST requests of one line of
usage in one hour. Hash functions instead of random() make the same events every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from demo.crowd import HOURS, Size
from tenants.utc import month_end, month_start

BURST = 5
JOURNALS = 4
Report = Callable[[str, int, int], None]
"""Called with what is being made, how much of it is done, and the total."""

# Requests by hour: more by day than at night, on weekdays, and towards the end (growth).
_HOURS = """
CREATE TEMPORARY TABLE crowd_hour ON COMMIT DROP AS
WITH weighted AS (
    SELECT hour, (1 + 2 * n::float8 / %(hours)s)
        * CASE WHEN extract(hour FROM hour AT TIME ZONE 'UTC') BETWEEN 7 AND 18 THEN 5 ELSE 1 END
        * CASE WHEN extract(isodow FROM hour AT TIME ZONE 'UTC') < 6 THEN 3 ELSE 1 END AS weight
    FROM (SELECT n, %(start)s::timestamptz + n * interval '1 hour' AS hour
          FROM generate_series(0, %(hours)s - 1) AS n) AS every
), summed AS (
    SELECT hour, coalesce(sum(weight) OVER (ORDER BY hour ROWS BETWEEN UNBOUNDED PRECEDING
                                            AND 1 PRECEDING), 0) AS before,
           sum(weight) OVER (ORDER BY hour) AS upto, sum(weight) OVER () AS total
    FROM weighted
)
SELECT hour, floor(%(events)s * before / total)::bigint AS first,
       floor(%(events)s * upto / total)::bigint - 1 AS last
FROM summed
"""

# A line is a key with the model that it calls: every live adapter with one of its tenant's keys,
# and every key with a base model. The first lines are used most; the big tenant has the most lines.
# Ids are hashed as their distance from the smallest, because sequences don't begin at 1 everywhere.
_LINES = """
CREATE TEMPORARY TABLE crowd_line ON COMMIT DROP AS
WITH key AS (
    SELECT id, tenant_id, id - min(id) OVER () AS place,
           row_number() OVER (PARTITION BY tenant_id ORDER BY id) - 1 AS n,
           count(*) OVER (PARTITION BY tenant_id) AS count
    FROM tenants_apikey WHERE tenant_id = ANY(%(tenants)s) AND revoked_at IS NULL
), live AS (
    SELECT version.id AS version_id, adapter.id AS adapter_id, adapter.name AS adapter,
           adapter.name || '@' || version.number AS model, adapter.tenant_id,
           adapter.base_model_id, version.id - min(version.id) OVER () AS place,
           adapter.id - min(adapter.id) OVER () AS adapter_place
    FROM tenants_alias AS alias
    JOIN tenants_adapterversion AS version ON version.id = alias.version_id
    JOIN tenants_adapter AS adapter ON adapter.id = alias.adapter_id
    WHERE adapter.tenant_id = ANY(%(tenants)s)
), line AS (
    SELECT key.tenant_id, key.id AS key_id, version_id, adapter_id, adapter, model, base_model_id,
           hashint8(live.place) AS hash
    FROM live
    JOIN key ON key.tenant_id = live.tenant_id AND key.n = live.adapter_place %% key.count
    UNION ALL
    SELECT key.tenant_id, key.id, NULL, NULL, '', NULL, base.id, hashint8(-1 - key.place)
    FROM key, LATERAL (SELECT id FROM tenants_basemodel WHERE name = ANY(%(bases)s)
                       ORDER BY hashtext(key.place || name) LIMIT 1) AS base
)
SELECT row_number() OVER (ORDER BY hash) - 1 AS n, tenant_id, key_id, version_id, adapter_id,
       adapter, coalesce(model, base.name) AS model, base.id AS base_model_id,
       base.name AS base_model
FROM line JOIN tenants_basemodel AS base ON base.id = line.base_model_id;
CREATE UNIQUE INDEX ON crowd_line (n);
"""

_EVENTS = """
WITH priced AS MATERIALIZED (
    SELECT line.n AS line, line.tenant_id, line.key_id, line.version_id, line.adapter, line.model,
           line.base_model, coalesce(price.prompt, 0) AS prompt_price,
           coalesce(price.cached_prompt, 0) AS cached_prompt_price,
           coalesce(price.output, 0) AS output_price
    FROM crowd_line AS line LEFT JOIN LATERAL (
        SELECT prompt, cached_prompt, output FROM tenants_price
        WHERE starts_at <= %(month)s
          AND (adapter_id = line.adapter_id OR base_model_id = line.base_model_id)
        ORDER BY adapter_id NULLS LAST, starts_at DESC LIMIT 1
    ) AS price ON true
), request AS (
    SELECT n, hour + (n - first + 0.5) / (last - first + 1) * interval '1 hour' AS started_at,
           floor(%(lines)s * (abs(hashint8(n / %(burst)s + %(seed)s)::bigint)
                              / 2147483649.0::float8) ^ 3)::bigint AS line,
           abs(hashint8(n)::bigint) AS a, abs(hashint8(-n)::bigint) AS b
    FROM crowd_hour, generate_series(first, last) AS n
    WHERE hour >= %(month)s AND hour < %(next)s
), event AS (
    INSERT INTO tenants_usageevent (
        id, started_at, tenant_id, key_id, version_id, adapter, model, base_model, engine_id,
        journal, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, prompt_price,
        cached_prompt_price, output_price, cost, finish_reason, queue_s, load_s, ttft_s, total_s)
    SELECT lpad(to_hex((1000 * extract(epoch FROM started_at))::bigint), 12, '0')
               || lpad(to_hex(n), 20, '0'),
           started_at, tenant_id, key_id, version_id, adapter, model, base_model,
           'crowd-' || n %% %(journals)s, %(journal)s || n %% %(journals)s,
           prompt, cached, output, 0, prompt_price, cached_prompt_price, output_price,
           (prompt - cached) * prompt_price + cached * cached_prompt_price + output * output_price,
           CASE WHEN a %% 100 < 93 THEN 'stop' WHEN a %% 100 < 97 THEN 'length'
                WHEN a %% 100 < 99 THEN 'cancelled' ELSE 'engine_lost' END,
           (b %% 40) / 1000.0, CASE WHEN a %% 50 = 0 THEN 0.3 ELSE 0 END,
           0.04 + (b %% 300) / 1000.0, 0.3 + output * 0.012
    FROM (SELECT *, 50 + a %% 950 AS prompt, 10 + b %% 490 AS output,
                 CASE WHEN a %% 3 > 0 THEN (50 + a %% 950) / 2 ELSE 0 END AS cached
          FROM request) AS request
    JOIN priced ON priced.line = request.line
    RETURNING *
), rollup AS (
    INSERT INTO tenants_usagerollup (
        tenant_id, hour, key_id, adapter, model, base_model, requests, prompt_tokens,
        cached_tokens, completion_tokens, reasoning_tokens, cost)
    SELECT tenant_id, date_trunc('hour', started_at, 'UTC'), key_id, adapter, model, base_model,
           count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM event GROUP BY 1, 2, 3, 4, 5, 6
)
INSERT INTO tenants_enginejournal AS kept (
    journal, engine_id, ledger_requests, ledger_prompt_tokens, ledger_cached_tokens,
    ledger_completion_tokens, counted_requests, counted_prompt_tokens, counted_cached_tokens,
    counted_completion_tokens, unjournaled_tokens, waiting_requests, surplus_requests,
    surplus_tokens, reported_at)
SELECT journal, max(engine_id), count(*), sum(prompt_tokens), sum(cached_tokens),
       sum(completion_tokens), count(*), sum(prompt_tokens), sum(cached_tokens),
       sum(completion_tokens), 0, 0, 0, 0, now()
FROM event GROUP BY journal
ON CONFLICT (journal) DO UPDATE SET
    ledger_requests = kept.ledger_requests + excluded.ledger_requests,
    ledger_prompt_tokens = kept.ledger_prompt_tokens + excluded.ledger_prompt_tokens,
    ledger_cached_tokens = kept.ledger_cached_tokens + excluded.ledger_cached_tokens,
    ledger_completion_tokens = kept.ledger_completion_tokens + excluded.ledger_completion_tokens,
    counted_requests = kept.counted_requests + excluded.counted_requests,
    counted_prompt_tokens = kept.counted_prompt_tokens + excluded.counted_prompt_tokens,
    counted_cached_tokens = kept.counted_cached_tokens + excluded.counted_cached_tokens,
    counted_completion_tokens = kept.counted_completion_tokens + excluded.counted_completion_tokens
"""


def make(size: Size, tenants: Sequence[int], bases: Sequence[str], report: Report) -> None:
    """Make the usage of these tenants (row ids, the big one first) on these base models.

    Call it inside a transaction, at whose end the scratch tables are dropped.
    """
    start = size.until - timedelta(hours=HOURS)
    values: dict[str, Any] = {
        "start": start, "hours": HOURS, "events": size.events, "tenants": list(tenants),
        "bases": list(bases), "burst": BURST, "seed": size.seed,
        "journals": JOURNALS, "journal": f"crowd-{tenants[0]}-",
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_HOURS, values)
        cursor.execute(_LINES, values)
        cursor.execute("SELECT count(*) FROM crowd_line")
        values["lines"] = cursor.fetchone()[0]
        cursor.execute("ANALYZE crowd_hour, crowd_line")
        months = list(_months(start, size.until))
        for number, (month, following) in enumerate(months):
            report("usage", number, len(months))
            _make_month(cursor, values | {"month": month, "next": following})
        report("usage", len(months), len(months))


def _make_month(cursor: Any, values: dict[str, Any]) -> None:
    cursor.execute("SELECT tenants_usage_partition(%s)", [values["month"]])
    cursor.execute(_EVENTS, values)


def _months(start: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    month = month_start(start)
    while month < until:
        yield month, month_end(month)
        month = month_end(month)
