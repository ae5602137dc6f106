"""Stored responses, for gateways: content of its own kind."""

from __future__ import annotations

import time

import structlog

from tenants.content.sealing import Unreadable
from tenants.content.store import Item, PostgresContents
from tenants.naming import RESPONSE

log = structlog.get_logger(__name__)


class PostgresResponses:
    """As `inference.grants.StoredResponses`."""

    def __init__(self, contents: PostgresContents) -> None:
        self._contents = contents

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """As the protocol says."""
        item = Item(tenant_id, RESPONSE, id, time.time(), record)
        return await self._contents.keep([item]) == 1

    async def read(self, tenant_id: int, id: str) -> bytes | None:
        """As the protocol says. What no master key opens is not there."""
        try:
            return await self._contents.read(tenant_id, RESPONSE, id)
        except Unreadable:
            log.error("response_unreadable", tenant_id=tenant_id)
            return None

    async def delete(self, tenant_id: int, id: str) -> bool:
        """As the protocol says."""
        return await self._contents.delete(tenant_id, RESPONSE, id)
