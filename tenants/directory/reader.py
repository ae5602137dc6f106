"""The queries of the token path, through psycopg's asynchronous pool: no ORM, no thread."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from inference.errors import InvalidApiKey
from inference.interfaces.directory import Grant, Limits
from inference.routes import RouteFit
from tenants.database import ANSWER_S, Database
from tenants.directory.catalogue import (
    BaseRow,
    PinRow,
    PoolRow,
    Prices,
    RouteRow,
    VersionRow,
    defaults_of,
)
from tenants.limits import ceilings
from tenants.limits.ceilings import Sets
from tenants.naming import ACTIVE, PLAYGROUND, TOUCH_INTERVAL, cache_salt

KEY = """
SELECT k.id, k.tenant_id, t.slug AS tenant, t.status, t.weight, t.cache_secret, k.name, k.prefix,
       t.content_days > 0 AND NOT k.keeps_nothing AS keeps_content,
       t.repair = 'once' AS repairs, t.overflow AS overflows,
       k.scopes, k.allowed_models, k.lane, k.expires_at, k.revoked_at, k.secret_hmac, k.origin_id
"""
LIMITS = """,
       (SELECT jsonb_object_agg(CASE WHEN l.tenant_id IS NULL THEN 'default' ELSE l.author END,
                                to_jsonb(l))
        FROM tenants_limitset l
        WHERE (l.tenant_id = k.tenant_id OR l.tenant_id IS NULL)
          AND l.key_id IS NULL AND l.adapter_id IS NULL) AS tenant_limits,
       (SELECT jsonb_object_agg(l.author, to_jsonb(l))
        FROM tenants_limitset l WHERE l.key_id = {limited}) AS key_limits
"""
OF_TENANTS = "FROM tenants_apikey k JOIN tenants_tenant t ON t.id = k.tenant_id\n"
KEY_BY_PREFIX = KEY + LIMITS.format(limited="k.id") + OF_TENANTS + "WHERE k.prefix = %s"
# The latest key that it was rotated into, or itself if it was not rotated. Playground keys are not
# rotated: their common origin is that of the members of a tenant, and has their limits.
_OF_PLAYGROUND = f"LIKE '{PLAYGROUND}%%'"
_LIMITED = f"CASE WHEN k.prefix {_OF_PLAYGROUND} THEN coalesce(k.origin_id, k.id) ELSE k.id END"
SUCCESSOR = (
    KEY
    + LIMITS.format(limited=_LIMITED)
    + OF_TENANTS
    + f"""WHERE k.id = (
    SELECT max(later.id) FROM tenants_apikey later, tenants_apikey this WHERE this.id = %s
    AND later.tenant_id = this.tenant_id AND later.id >= this.id
    AND coalesce(later.origin_id, later.id) = coalesce(this.origin_id, this.id)
    AND (later.id = this.id OR this.prefix NOT {_OF_PLAYGROUND}))"""
)
# Members' playground keys share the limits of the tenant's playground key.
PLAYGROUND_KEY = (
    KEY
    + LIMITS.format(limited="k.origin_id")
    + OF_TENANTS
    + f"WHERE k.tenant_id = %s AND k.created_by_id = %s AND k.prefix {_OF_PLAYGROUND}"
)
# Without limits, as a tenant may have thousands of keys; they do not affect validity.
KEYS_BY_ID = KEY + OF_TENANTS + "WHERE k.id = ANY(%s) OR k.tenant_id = ANY(%s)"
_PRICES = """
       (SELECT coalesce(jsonb_agg(jsonb_build_array(
                   extract(epoch FROM starts_at), prompt, cached_prompt, output)
               ORDER BY starts_at), '[]') FROM tenants_price
        WHERE tier = '{tier}' AND {{owner}}) AS {name}
"""
PRICES = ",".join(
    _PRICES.format(tier=tier, name=name)
    for tier, name in (("standard", "prices"), ("batch", "batch_prices"))
)
OVERFLOW_PRICES = _PRICES.format(tier="overflow", name="overflow_prices")
TRIED = """
       CASE WHEN v.expires_at IS NULL THEN ARRAY(
             SELECT r.digest FROM tenants_trial t
             JOIN tenants_poolrevision r ON r.id = t.revision_id
             WHERE t.version_id = v.id AND t.passed) END AS tried"""
# Short-lived versions are not probed: they may run on any revision.
POOLS = """
SELECT b.name AS base_model,
       ARRAY(SELECT digest FROM tenants_poolrevision
             WHERE base_model_id = b.id AND standing = 'serving') AS serving,
       ARRAY(SELECT digest FROM tenants_poolrevision
             WHERE base_model_id = b.id AND standing = 'waiting') AS waiting,
       o.id AS rollout_id, coalesce(r.digest, '') AS target, coalesce(o.weight, 0) AS weight,
       ARRAY(SELECT t.slug FROM tenants_rollouttenant e JOIN tenants_tenant t ON t.id = e.tenant_id
             WHERE e.rollout_id = o.id AND e.turn = 'first') AS first,
       ARRAY(SELECT t.slug FROM tenants_rollouttenant e JOIN tenants_tenant t ON t.id = e.tenant_id
             WHERE e.rollout_id = o.id AND e.turn = 'last') AS last
FROM tenants_basemodel b
LEFT JOIN tenants_rollout o ON o.base_model_id = b.id AND o.state IN ('running', 'paused')
LEFT JOIN tenants_poolrevision r ON r.id = o.revision_id
"""
BASE_MODELS = f"""
SELECT b.name, extract(epoch FROM b.created_at)::bigint AS created, b.max_model_len, b.defaults,
       {PRICES.format(owner="base_model_id = b.id")},
       {OVERFLOW_PRICES.format(owner="base_model_id = b.id")}
FROM tenants_basemodel b
"""
READY_VERSIONS = f"""
SELECT a.id AS adapter_id, a.name AS adapter, b.name AS base_model,
       extract(epoch FROM a.created_at)::bigint AS created, v.id, v.number, v.digest,
       v.config -> 'r' AS rank, v.config -> 'target_modules' AS modules,{TRIED},
       ARRAY(SELECT name::text FROM tenants_alias WHERE version_id = v.id) AS aliases,
       (SELECT jsonb_agg(jsonb_build_object('id', s.id, 'alias', s.alias, 'weight', s.weight,
                                            'sticky', s.sticky, 'header', s.header,
                                            'copies_to', s.shadow_key_id))
        FROM tenants_split s WHERE s.candidate_id = v.id AND s.ended_at IS NULL) AS splits,
       (SELECT jsonb_object_agg(l.author, to_jsonb(l))
        FROM tenants_limitset l WHERE l.adapter_id = a.id) AS limits,
       {PRICES.format(owner="adapter_id = a.id")}
FROM tenants_adapter a
JOIN tenants_basemodel b ON b.id = a.base_model_id
JOIN tenants_adapterversion v ON v.adapter_id = a.id
WHERE a.tenant_id = %s AND v.state = 'ready'
"""
ROUTES = """
SELECT id, name, options, best, extract(epoch FROM created_at)::bigint AS created,
       CASE WHEN is_on AND method = 'classifier' THEN fit END AS fit,
       CASE WHEN is_on AND method = 'cascade' THEN threshold END AS sure_from
FROM tenants_route WHERE tenant_id = %s
"""
ROUTE_FIT = """
SELECT packed, threshold FROM tenants_route WHERE id = %s AND fit = %s AND is_on
"""
PINNED = f"""
SELECT t.slug AS tenant, a.name AS adapter, b.name AS base_model, v.digest,
       v.config -> 'r' AS rank, v.config -> 'target_modules' AS modules,{TRIED}
FROM tenants_adapter a
JOIN tenants_tenant t ON t.id = a.tenant_id
JOIN tenants_basemodel b ON b.id = a.base_model_id
JOIN tenants_alias l ON l.adapter_id = a.id AND l.name = 'live'
JOIN tenants_adapterversion v ON v.id = l.version_id
WHERE a.pinned AND t.status = 'active'
ORDER BY a.id
"""
ENGINE_CREDENTIALS = """
SELECT id, name, prefix, secret_hmac, pools FROM tenants_enginecredential WHERE revoked_at IS NULL
"""
TOUCH = """
UPDATE tenants_apikey SET last_used_at = now()
WHERE id = ANY(%s) AND (last_used_at IS NULL OR last_used_at <= now() - %s)
"""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key with its tenant, as stored. Only `Reader.key` fills in limits."""

    id: int
    tenant_id: int
    tenant: str
    status: str
    weight: float
    cache_secret: bytes
    name: str
    prefix: str
    scopes: list[str]
    allowed_models: list[str] | None
    lane: str
    expires_at: datetime | None
    revoked_at: datetime | None
    secret_hmac: bytes
    origin_id: int | None = None
    keeps_content: bool = False
    repairs: bool = False
    overflows: bool = False
    tenant_limits: Sets | None = None
    key_limits: Sets | None = None

    def verdict(self) -> Grant | InvalidApiKey:
        """The key's grant, or why it has none. Does not check expiry, which depends on the time."""
        if self.revoked_at is not None:
            return InvalidApiKey("This API key was revoked.")
        if self.status != ACTIVE:
            return InvalidApiKey("The tenant of this API key is suspended.")
        return Grant(
            key_id=self.id,
            tenant_id=self.tenant_id,
            tenant=self.tenant,
            scopes=frozenset(self.scopes),
            models=None if self.allowed_models is None else frozenset(self.allowed_models),
            weight=self.weight,
            salt=cache_salt(self.cache_secret, self.tenant_id),
            expires_at=self.expires_at.timestamp() if self.expires_at else None,
            limits=self.limits(),
            lane=self.lane,
            key=self.prefix,
            keeps_content=self.keeps_content,
            repairs=self.repairs,
            overflows=self.overflows,
        )

    def limits(self) -> tuple[Limits, ...]:
        """The limits in force for the tenant and for the key."""
        tenant, key = f"tenant `{self.tenant}`", f"key `{self.name}` (lk_{self.prefix}…)"
        return (
            *ceilings.limits(f"t{self.tenant_id}", tenant, self.tenant_limits),
            *ceilings.limits(f"k{self.origin_id or self.id}", key, self.key_limits),
        )


@dataclass(frozen=True, slots=True)
class EngineRow:
    """An engine's credential, as stored."""

    id: int
    name: str
    prefix: str
    secret_hmac: bytes
    pools: list[str] | None


@dataclass(frozen=True, slots=True)
class _Base:
    name: str
    created: int
    max_model_len: int
    defaults: dict[str, object]
    prices: Prices
    batch_prices: Prices
    overflow_prices: Prices


@dataclass(frozen=True, slots=True)
class _FitRow:
    packed: bytes
    threshold: float


class Reader(Database):
    """Each query raises `Unavailable` if the database does not answer in time."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        super().__init__("directory", answer_s)

    async def key(self, prefix: str) -> KeyRow | None:
        """The key with this lookup prefix."""
        rows = await self.rows(KeyRow, KEY_BY_PREFIX, [prefix])
        return rows[0] if rows else None

    async def successor(self, id: int) -> KeyRow | None:
        """The key with this id, or the latest one that it was rotated into."""
        rows = await self.rows(KeyRow, SUCCESSOR, [id])
        return rows[0] if rows else None

    async def playground_key(self, tenant_id: int, user_id: int) -> KeyRow | None:
        """The key of this member for the tenant's playground."""
        rows = await self.rows(KeyRow, PLAYGROUND_KEY, [tenant_id, user_id])
        return rows[0] if rows else None

    async def keys(self, ids: Collection[int], tenants: Collection[int]) -> list[KeyRow]:
        """The keys with these ids, and all keys of these tenants."""
        return await self.rows(KeyRow, KEYS_BY_ID, [list(ids), list(tenants)])

    async def base_models(self) -> list[BaseRow]:
        rows = await self.rows(_Base, BASE_MODELS)
        return [
            BaseRow(
                row.name,
                row.created,
                row.max_model_len,
                row.prices,
                defaults_of(row.defaults),
                row.batch_prices,
                row.overflow_prices,
            )
            for row in rows
        ]

    async def pools(self) -> list[PoolRow]:
        """The revisions of every base model."""
        return await self.rows(PoolRow, POOLS)

    async def ready_versions(self, tenant_id: int) -> list[VersionRow]:
        return await self.rows(VersionRow, READY_VERSIONS, [tenant_id])

    async def routes(self, tenant_id: int) -> list[RouteRow]:
        return await self.rows(RouteRow, ROUTES, [tenant_id])

    async def route_fit(self, route_id: int, fit: int) -> RouteFit | None:
        """The fit of this number; None if the route has another one by now."""
        for row in await self.rows(_FitRow, ROUTE_FIT, [route_id, fit]):
            return RouteFit.of(row.packed, row.threshold)
        return None

    async def pinned(self) -> list[PinRow]:
        """The live versions of pinned adapters, over all active tenants."""
        return await self.rows(PinRow, PINNED)

    async def engine_credentials(self) -> list[EngineRow]:
        """All credentials that were not revoked; at most a few for each engine."""
        return await self.rows(EngineRow, ENGINE_CREDENTIALS)

    async def touch(self, ids: Collection[int]) -> None:
        """Store that these keys were used now, at most once a minute each."""
        await self.execute(TOUCH, [list(ids), TOUCH_INTERVAL])
