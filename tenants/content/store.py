"""Stored content in PostgreSQL, for gateways: without the ORM."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from tenants.content import sealing
from tenants.content.sealing import Location, TenantKey, Unreadable
from tenants.database import ANSWER_S, Database

log = structlog.get_logger(__name__)

KEYS = """
SELECT k.id, k.tenant_id, k.password AS wrapped
FROM tenants_contentkey k JOIN tenants_tenant t ON t.id = k.tenant_id
WHERE k.tenant_id = ANY(%s) AND k.destroyed_at IS NULL AND t.content_days > 0
"""
KEEP = """
INSERT INTO tenants_storedcontent (tenant_id, kind, name, content_key_id, at, expires_at, data)
SELECT k.tenant_id, one.kind, one.name, k.id, to_timestamp(one.at),
       to_timestamp(one.at) + make_interval(days => t.content_days), one.data
FROM unnest(%(keys)s::bigint[], %(kinds)s::text[], %(names)s::text[], %(times)s::float8[],
            %(data)b::bytea[]) AS one(key_id, kind, name, at, data)
JOIN tenants_contentkey k ON k.id = one.key_id AND k.destroyed_at IS NULL
JOIN tenants_tenant t ON t.id = k.tenant_id AND t.content_days > 0
ON CONFLICT (tenant_id, kind, name) DO UPDATE
SET content_key_id = excluded.content_key_id, at = excluded.at, expires_at = excluded.expires_at,
    data = excluded.data
"""
REPLACE = """
UPDATE tenants_storedcontent c SET data = %(data)b
FROM tenants_contentkey k
WHERE c.tenant_id = %(tenant)s AND c.kind = %(kind)s AND c.name = %(name)s AND c.expires_at > now()
  AND k.id = c.content_key_id AND k.id = %(key)s AND k.destroyed_at IS NULL
  AND substring(c.data FROM 1 FOR %(length)s) = %(version)b
"""
READ = """
SELECT k.id, k.tenant_id, k.password AS wrapped, c.data
FROM tenants_storedcontent c JOIN tenants_contentkey k ON k.id = c.content_key_id
WHERE c.tenant_id = %s AND c.kind = %s AND c.name = %s AND c.expires_at > now()
  AND k.destroyed_at IS NULL
"""
DELETE = "DELETE FROM tenants_storedcontent WHERE tenant_id = %s AND kind = %s AND name = %s"


class ContentItem(NamedTuple):
    """A text to keep; `at` is a unix time in seconds."""

    tenant_id: int
    kind: str
    name: str
    at: float
    text: bytes

    @property
    def location(self) -> Location:
        return Location(self.tenant_id, self.kind, self.name)


class Version(NamedTuple):
    """A stored text with its nonce, which differs in every version of it."""

    text: bytes
    version: bytes


class Sealed(NamedTuple):
    """An encrypted item, and the row id of the key that decrypts it."""

    key_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Key:
    id: int
    tenant_id: int
    wrapped: bytes


@dataclass(frozen=True, slots=True)
class _Kept:
    id: int
    tenant_id: int
    wrapped: bytes
    data: bytes


class PostgresContents(Database):
    """Each method raises `Unavailable` if the database does not answer in time."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        super().__init__("content", answer_s)

    async def keep(self, items: Sequence[ContentItem]) -> int:
        """Store the items, replacing what their places hold, except those of tenants that keep
        nothing. No two may have the same place. Returns how many were stored."""
        keys = await self._keys({item.tenant_id for item in items})
        rows = []
        for item in items:
            if (known := keys.get(item.tenant_id)) is not None:
                id, key = known
                rows.append((id, item.kind, item.name, item.at, key.seal(item.location, item.text)))
                await asyncio.sleep(0)  # sealing half a megabyte takes a fraction of a millisecond
        if not rows:
            return 0
        names = ("keys", "kinds", "names", "times", "data")
        columns = (list(column) for column in zip(*rows, strict=True))
        return await self.execute(KEEP, dict(zip(names, columns, strict=True)))

    async def read(self, tenant_id: int, kind: str, name: str) -> bytes | None:
        """The text stored there; None if there is none, or not any more."""
        found = await self.read_version(tenant_id, kind, name)
        return None if found is None else found.text

    async def read_version(self, tenant_id: int, kind: str, name: str) -> Version | None:
        """The text stored there with its version, for `replace`."""
        rows = await self.rows(_Kept, READ, [tenant_id, kind, name], binary=True)
        if not rows:
            return None
        (row,) = rows
        key = sealing.tenant_key(sealing.master_keys(), tenant_id, row.wrapped)
        text = key.open(Location(tenant_id, kind, name), row.data)
        return Version(text, bytes(row.data[: sealing.NONCE_BYTES]))

    async def replace(self, item: ContentItem, version: bytes) -> bool:
        """Store the item in place of that version; its expiry stays. False if there is another
        version by now, or none."""
        if (sealed := await self.sealed(item)) is None:
            return False
        values = {
            "tenant": item.tenant_id,
            "kind": item.kind,
            "name": item.name,
            "key": sealed.key_id,
            "data": sealed.data,
            "version": version,
            "length": len(version),
        }
        return await self.execute(REPLACE, values) == 1

    async def sealed(self, item: ContentItem) -> Sealed | None:
        """The item, encrypted with its tenant's key; None if the tenant keeps nothing."""
        found = (await self._keys({item.tenant_id})).get(item.tenant_id)
        return None if found is None else Sealed(found[0], found[1].seal(item.location, item.text))

    async def delete(self, tenant_id: int, kind: str, name: str) -> bool:
        """Delete the content. Returns whether there was any."""
        return await self.execute(DELETE, [tenant_id, kind, name]) == 1

    async def _keys(self, tenants: set[int]) -> Mapping[int, tuple[int, TenantKey]]:
        found = {}
        for row in await self.rows(_Key, KEYS, [list(tenants)], binary=True):
            try:
                key = sealing.tenant_key(sealing.master_keys(), row.tenant_id, row.wrapped)
            except Unreadable:
                log.error("content_key_unreadable", tenant_id=row.tenant_id)
            else:
                found[row.tenant_id] = (row.id, key)
        return found
