"""SQL by which a gateway adds the outcomes of its requests to the database: by minute and by hour,
in detail and as totals of each tenant and of the installation, and each refused request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from inference.gateway.measuring.outcomes import SUMMED, OutcomeGroup, OutcomeSums, Refusal
from inference.gateway.measuring.sums import BUCKETS

BATCH = 200
"""Groups, or refused requests, in one transaction: some 5 ms of the database's time."""
SUMS, TIMES = SUMMED, ("first_tokens", "totals")
WHAT = "outcome, code, limit_kind, limit_scope"
WHOSE = "key_id, version_id, adapter, base_model"

SENT = """
WITH sent AS (
    SELECT one.*, tenant.internal, date_trunc('{span}', to_timestamp(one.minute), 'UTC') AS at
    FROM jsonb_to_recordset(%(sums)s::jsonb) AS one(
        minute bigint, tenant_id bigint, key_id bigint, version_id bigint, adapter text,
        base_model text, outcome text, code text, limit_kind text, limit_scope text,
        requests bigint, prompt_tokens bigint, cached_tokens bigint, output_tokens bigint,
        cost numeric, conformed bigint, malformed bigint, unchecked bigint,
        decode_tokens bigint, decode_s float8,
        first_tokens bigint[], totals bigint[])
    JOIN tenants_tenant tenant ON tenant.id = one.tenant_id
)
"""


def each(name: str, term: str) -> str:
    """An SQL array with this term for each bucket."""
    return f"ARRAY[{', '.join(term.format(name, at) for at in range(1, BUCKETS + 1))}]"


ADDED = ", ".join(
    [f"{name} = known.{name} + excluded.{name}" for name in SUMS]
    + [f"{name} = {each(name, 'known.{0}[{1}] + excluded.{0}[{1}]')}" for name in TIMES]
)
"""Assignments that add to the figures of an existing row, `known`."""


def _add(table: str, span: str, columns: str, grouped: str) -> str:
    """A statement that adds totals over groups of the sent sums to a table. Rows are written in
    sorted order, so that concurrent gateways cannot deadlock."""
    made = [f"sum({name})" for name in SUMS]
    made += [each(name, "sum(coalesce({0}[{1}], 0))") for name in TIMES]
    return f"""{SENT.format(span=span)}
        INSERT INTO {table} AS known ({columns}, {", ".join((*SUMS, *TIMES))})
        SELECT {columns}, {", ".join(made)} FROM sent GROUP BY {grouped} ORDER BY {columns}
        ON CONFLICT ({columns}) DO UPDATE SET {ADDED}"""


ADD = [
    statement
    for span in ("minute", "hour")
    for statement in (
        _add(
            f"tenants_request{span}",
            span,
            f"tenant_id, at, {WHOSE}, {WHAT}",
            f"tenant_id, at, {WHOSE}, {WHAT}",
        ),
        _add(
            f"tenants_total{span}",
            span,
            f"tenant_id, at, {WHAT}",
            f"GROUPING SETS ((tenant_id, at, {WHAT}), (internal, at, {WHAT})) "
            "HAVING grouping(tenant_id) = 0 OR NOT internal",
        ),
    )
]
COLUMNS = (
    "tenant_id", "key_id", "adapter", "base_model", "model", "surface", "outcome", "status",
    "code", "message", "limit_kind", "limit_scope", "total_s", "trace_id",
)  # fmt: skip
REFUSALS = f"""
INSERT INTO tenants_refusedrequest (id, started_at, version_id, {", ".join(COLUMNS)})
SELECT one.id, to_timestamp(one.started_at), nullif(one.version_id, 0),
       {", ".join(f"one.{name}" for name in COLUMNS)}
FROM jsonb_to_recordset(%(refusals)s::jsonb) AS one(
    id text, started_at float8, version_id bigint, tenant_id bigint, key_id bigint, adapter text,
    base_model text, model text, surface text, outcome text, status int, code text, message text,
    limit_kind text, limit_scope text, total_s float8, trace_id text)
JOIN tenants_tenant tenant ON tenant.id = one.tenant_id
ON CONFLICT (id) DO NOTHING
"""
OBSERVATIONS = """
INSERT INTO tenants_splitrequest (split_id, request_id, candidate, key, weight, failed, cut,
                                  conforms, ttft_s, ended_at, is_read, scored)
SELECT one.split_id, one.request_id, one.candidate, one.key, one.weight, one.failed, one.cut,
       one.conforms, one.ttft_s, to_timestamp(one.ended_at), false, '{}'
FROM jsonb_to_recordset(%(observations)s::jsonb) AS one(
    request_id text, split_id bigint, candidate boolean, key bigint, weight smallint,
    failed boolean, cut boolean, conforms boolean, ttft_s float8, ended_at float8)
JOIN tenants_split split ON split.id = one.split_id AND split.ended_at IS NULL
ON CONFLICT (split_id, request_id) DO NOTHING
"""


def batches(
    sums: Mapping[OutcomeGroup, OutcomeSums],
) -> Iterator[Sequence[tuple[OutcomeGroup, OutcomeSums]]]:
    """Split the groups into batches of at most BATCH, each of one minute."""
    in_order = sorted(sums.items(), key=itemgetter(0))
    for _, of_minute in groupby(in_order, key=lambda one: one[0].minute):
        groups = list(of_minute)
        yield from (groups[at : at + BATCH] for at in range(0, len(groups), BATCH))


def encoded_sums(sums: Sequence[tuple[OutcomeGroup, OutcomeSums]]) -> str:
    """The sums as JSON for `SENT`."""
    return msgspec.json.encode(
        [
            {**group._asdict(), "version_id": group.version_id or None}
            | msgspec.structs.asdict(figures)
            for group, figures in sums
        ]
    ).decode()


def encoded_refusals(refusals: Sequence[Refusal]) -> str:
    """The refusals as JSON for `REFUSALS`, without null characters, which clients may have written
    and PostgreSQL's text can't hold."""

    def text(value: str) -> str:
        return value.replace("\0", "\ufffd")

    found = [
        msgspec.structs.replace(one, model=text(one.model), message=text(one.message))
        for one in refusals
    ]
    return msgspec.json.encode(found).decode()
