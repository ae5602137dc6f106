"""Stored conversations, for gateways: a kind of stored content that changes."""

from __future__ import annotations

import time

import structlog

from tenants.content.sealing import Unreadable
from tenants.content.store import ContentItem, PostgresContents
from tenants.naming import CONVERSATION

log = structlog.get_logger(__name__)


class PostgresConversations:
    """Implements `interfaces.stored.StoredConversations`. The days for which a conversation is kept
    begin when it is created."""

    def __init__(self, contents: PostgresContents) -> None:
        self._contents = contents

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """See `StoredConversations.keep`."""
        item = ContentItem(tenant_id, CONVERSATION, id, time.time(), record)
        return await self._contents.keep([item]) == 1

    async def read(self, tenant_id: int, id: str) -> tuple[bytes, bytes] | None:
        """See `StoredConversations.read`. Also None if no master key decrypts it."""
        try:
            return await self._contents.read_version(tenant_id, CONVERSATION, id)
        except Unreadable:
            log.error("conversation_unreadable", tenant_id=tenant_id)
            return None

    async def replace(self, tenant_id: int, id: str, version: bytes, record: bytes) -> bool:
        """See `StoredConversations.replace`."""
        item = ContentItem(tenant_id, CONVERSATION, id, 0.0, record)
        return await self._contents.replace(item, version)

    async def delete(self, tenant_id: int, id: str) -> bool:
        """See `StoredConversations.delete`."""
        return await self._contents.delete(tenant_id, CONVERSATION, id)
