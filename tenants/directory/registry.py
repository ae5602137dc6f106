"""What a gateway process records: that it is alive, and what its engines serve."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg.types.json import Jsonb

from inference.gateway.fleet.demand import Demand
from inference.gateway.measuring.outcomes import (
    OutcomeGroup,
    OutcomeSums,
    Refusal,
    SplitObservation,
)
from inference.gateway.measuring.traffic import RevisionTraffic
from inference.link.engine_info import ModelInfo
from tenants.database import ANSWER_S, Database
from tenants.directory import outcomes, pools
from tenants.naming import ALIVE_S, TOUCH_INTERVAL

FORGOTTEN_DAYS = 1

BEAT = """
WITH forgotten AS (
    DELETE FROM tenants_gatewayprocess
    WHERE heartbeat_at < now() - make_interval(days => %(forgotten_days)s)
)
INSERT INTO tenants_gatewayprocess (url, heartbeat_at) VALUES (%(url)s, now())
ON CONFLICT (url) DO UPDATE SET heartbeat_at = excluded.heartbeat_at
"""
ALIVE = """
SELECT url FROM tenants_gatewayprocess
WHERE heartbeat_at > now() - make_interval(secs => %s) ORDER BY url
"""
FORGET = "DELETE FROM tenants_gatewayprocess WHERE url = %s"
SHARE_DEMAND = "UPDATE tenants_gatewayprocess SET demand = %s WHERE url = %s"
DEMAND_OF_OTHERS = """
SELECT demand FROM tenants_gatewayprocess
WHERE heartbeat_at > now() - make_interval(secs => %s) AND url <> %s
"""
SHARE_ENGINES = "UPDATE tenants_gatewayprocess SET engines = %(engines)s WHERE url = %(url)s"
ADD_TRAFFIC = """
INSERT INTO tenants_revisionminute AS known (revision_id, minute, requests, errors, first_tokens)
SELECT r.id, date_trunc('minute', clock_timestamp()), t.requests, t.errors, t.first_tokens
FROM jsonb_to_recordset(%(traffic)s)
    AS t(digest text, requests bigint, errors bigint, first_tokens bigint[])
JOIN tenants_poolrevision r ON r.digest = t.digest
ORDER BY r.id
ON CONFLICT (revision_id, minute) DO UPDATE SET
    requests = known.requests + excluded.requests,
    errors = known.errors + excluded.errors,
    first_tokens = (
        SELECT array_agg(coalesce(one, 0) + coalesce(more, 0) ORDER BY at)
        FROM unnest(known.first_tokens, excluded.first_tokens) WITH ORDINALITY AS u(one, more, at))
"""

NOTE_ENGINES = """
INSERT INTO tenants_enginehour AS known (hour, engine_id, base_model, slots)
SELECT date_trunc('hour', now(), 'UTC'), e.key, e.value,
       1 << (extract(minute FROM now() AT TIME ZONE 'UTC')::integer / 5)
FROM jsonb_each_text(%s) AS e
ORDER BY e.key
ON CONFLICT (hour, engine_id, base_model) DO UPDATE SET slots = known.slots | excluded.slots
WHERE known.slots | excluded.slots <> known.slots
"""
OVERFLOWED_TODAY = """
SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint AS tokens
FROM tenants_usageevent WHERE overflow AND started_at >= date_trunc('day', now(), 'UTC')
"""
SAW_ENGINES = """
UPDATE tenants_enginecredential SET last_seen_at = now(), stopped_at = NULL
WHERE id = ANY(%s)
    AND (last_seen_at IS NULL OR last_seen_at <= now() - %s OR stopped_at IS NOT NULL)
"""
ENGINES_STOPPED = """
UPDATE tenants_enginecredential SET last_seen_at = now(), stopped_at = now() WHERE id = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class _Gateway:
    url: str


@dataclass(frozen=True, slots=True)
class _DemandRow:
    demand: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Overflowed:
    tokens: int


class DirectoryRegistry(Database):
    """Each query raises `Unavailable` if the database does not answer in time."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        super().__init__("registry", answer_s)

    async def beat(self, url: str) -> list[str]:
        """Record a heartbeat of the gateway at this URL; returns the URLs of all live gateways."""
        await self.execute(BEAT, {"url": url, "forgotten_days": FORGOTTEN_DAYS})
        return [row.url for row in await self.rows(_Gateway, ALIVE, [ALIVE_S])]

    async def share_demand(self, url: str, demand: Mapping[str, Demand]) -> list[dict[str, Demand]]:
        """Record the demand that the gateway at this URL sees, by base model; returns that of each
        other live gateway."""
        await self.execute(SHARE_DEMAND, [Jsonb(msgspec.to_builtins(demand)), url])
        rows = await self.rows(_DemandRow, DEMAND_OF_OTHERS, [ALIVE_S, url])
        return [msgspec.convert(row.demand, dict[str, Demand]) for row in rows]

    async def share_traffic(
        self, url: str, engines: Mapping[str, int], traffic: Mapping[str, RevisionTraffic]
    ) -> None:
        """Record how many engines of each revision the gateway at this URL has, and add the traffic
        to that of each revision in this minute."""
        rows = [{"digest": digest, **msgspec.to_builtins(one)} for digest, one in traffic.items()]
        values = {"url": url, "engines": Jsonb(engines), "traffic": Jsonb(rows)}
        await self.execute_all((SHARE_ENGINES, ADD_TRAFFIC), values)

    async def add_outcomes(self, sums: Sequence[tuple[OutcomeGroup, OutcomeSums]]) -> None:
        """Add to the outcomes of requests; all groups are of one minute."""
        values = {"sums": outcomes.encoded_sums(sums)}
        await self.execute_all(outcomes.ADD, values)

    async def keep_refusals(self, refusals: Sequence[Refusal]) -> None:
        """Store requests that ended in an error; those stored already are unchanged."""
        await self.execute(outcomes.REFUSALS, {"refusals": outcomes.encoded_refusals(refusals)})

    async def keep_observations(self, observations: Sequence[SplitObservation]) -> None:
        """Store what became of requests of splits that still run; those stored already are
        unchanged."""
        await self.execute(
            outcomes.OBSERVATIONS, {"observations": msgspec.json.encode(observations).decode()}
        )

    async def forget(self, url: str) -> None:
        """Record that the gateway at this base URL has stopped."""
        await self.execute(FORGET, [url])

    async def saw_engines(self, credentials: Collection[int]) -> None:
        """Record that engines with these credentials are connected, at most once a minute."""
        if credentials:
            await self.execute(SAW_ENGINES, [list(credentials), TOUCH_INTERVAL])

    async def note_engines(self, base_models: Mapping[str, str]) -> None:
        """Record that these engines, with their base models, are connected in this five-minute
        slot."""
        if base_models:
            await self.execute(NOTE_ENGINES, [Jsonb(dict(base_models))])

    async def overflowed_today(self) -> int:
        """The tokens of requests that began since midnight UTC and ran on overflow engines."""
        (row,) = await self.rows(_Overflowed, OVERFLOWED_TODAY)
        return row.tokens

    async def engines_stopped(self, credentials: Collection[int]) -> None:
        """Record that engines with these credentials have stopped on purpose."""
        if credentials:
            await self.execute(ENGINES_STOPPED, [list(credentials)])

    async def note_model(self, info: ModelInfo) -> None:
        """Record the kind of a connected engine, if it is new, and that it was seen now."""
        await self.execute_all(pools.NOTE, pools.parameters(info))
