"""The few queries of the token path, through psycopg's asynchronous pool: no ORM, no thread."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import psycopg
import structlog
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from inference.errors import InvalidApiKey, Unavailable
from inference.grants import Grant
from tenants.catalogue import BaseRow, VersionRow
from tenants.models.accounts import Tenant, cache_salt
from tenants.models.keys import TOUCH_INTERVAL
from tenants.notices import conninfo

log = structlog.get_logger(__name__)
R = TypeVar("R")

ANSWER_S = 3.0
"""Longer than that and the caller is told to come back."""
START_S = 10.0
MAX_CONNECTIONS = 4
MAX_WAITING = 200
"""Queries waiting for a connection; beyond it the answer is 503 at once."""

KEYS = """
SELECT k.id, k.tenant_id, t.slug AS tenant, t.status, t.weight, t.cache_secret,
       k.scopes, k.allowed_models, k.expires_at, k.revoked_at, k.secret_hmac
FROM tenants_apikey k JOIN tenants_tenant t ON t.id = k.tenant_id
"""
KEY_BY_PREFIX = KEYS + "WHERE k.prefix = %s"
KEYS_BY_ID = KEYS + "WHERE k.id = ANY(%s) OR k.tenant_id = ANY(%s)"
BASE_MODELS = """
SELECT name, extract(epoch FROM created_at)::bigint AS created FROM tenants_basemodel
"""
READY_VERSIONS = """
SELECT a.name AS adapter, b.name AS base_model,
       extract(epoch FROM a.created_at)::bigint AS created, v.id, v.number, v.digest,
       ARRAY(SELECT name::text FROM tenants_alias WHERE version_id = v.id) AS aliases
FROM tenants_adapter a
JOIN tenants_basemodel b ON b.id = a.base_model_id
JOIN tenants_adapterversion v ON v.adapter_id = a.id
WHERE a.tenant_id = %s AND v.state = 'ready'
"""
TOUCH = """
UPDATE tenants_apikey SET last_used_at = now()
WHERE id = ANY(%s) AND (last_used_at IS NULL OR last_used_at <= now() - %s)
"""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key with its tenant, as stored."""

    id: int
    tenant_id: int
    tenant: str
    status: str
    weight: float
    cache_secret: bytes
    scopes: list[str]
    allowed_models: list[str] | None
    expires_at: datetime | None
    revoked_at: datetime | None
    secret_hmac: bytes

    def verdict(self) -> Grant | InvalidApiKey:
        """What the key may do, or why it may do nothing. Expiry is a matter of the clock."""
        if self.revoked_at is not None:
            return InvalidApiKey("This API key was revoked.")
        if self.status != Tenant.Status.ACTIVE:
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
        )


class Reader:
    """Each query raises `Unavailable` after `answer_s` where the database does not answer."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s

    async def open(self, timeout_s: float = START_S) -> None:
        """Connect.

        Raises:
            psycopg.OperationalError: the database cannot be reached in that time.
        """
        self._pool = AsyncConnectionPool(
            conninfo("lorikeet"),
            kwargs={"autocommit": True},
            min_size=1,
            max_size=MAX_CONNECTIONS,
            max_waiting=MAX_WAITING,
            timeout=self._answer_s,
            # A restarted database leaves dead connections in the pool: not the caller's problem.
            check=AsyncConnectionPool.check_connection,
            name="directory",
            open=False,
        )
        try:
            await self._pool.open(wait=True, timeout=timeout_s)
        except psycopg.OperationalError:
            await self._pool.close()
            raise

    async def close(self) -> None:
        await self._pool.close()

    async def key(self, prefix: str) -> KeyRow | None:
        """The key with this lookup prefix."""
        rows = await self._rows(KeyRow, KEY_BY_PREFIX, [prefix])
        return rows[0] if rows else None

    async def keys(self, ids: Collection[int], tenants: Collection[int]) -> list[KeyRow]:
        """These keys, and all keys of these tenants."""
        return await self._rows(KeyRow, KEYS_BY_ID, [list(ids), list(tenants)])

    async def base_models(self) -> list[BaseRow]:
        return await self._rows(BaseRow, BASE_MODELS)

    async def ready_versions(self, tenant_id: int) -> list[VersionRow]:
        return await self._rows(VersionRow, READY_VERSIONS, [tenant_id])

    async def touch(self, ids: Collection[int]) -> None:
        """Note that these keys were used, at most once a minute each."""
        await self._rows(None, TOUCH, [list(ids), TOUCH_INTERVAL])

    async def _rows(self, kind: type[R] | None, query: str, values: Sequence[Any] = ()) -> list[R]:
        try:
            async with asyncio.timeout(self._answer_s), self._pool.connection() as connection:
                if kind is None:
                    await connection.execute(query, values)
                    return []
                async with connection.cursor(row_factory=class_row(kind)) as cursor:
                    return await (await cursor.execute(query, values)).fetchall()
        except (psycopg.Error, TimeoutError) as error:
            log.warning("database_unavailable", error=str(error) or type(error).__name__)
            raise Unavailable(retry_after_s=1.0) from error
