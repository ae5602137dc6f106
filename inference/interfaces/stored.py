"""Responses and conversations stored for tenants that keep content."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Queued:
    """A response to run in the background. `id` is its request's; `seal` is that of its line's
    batch (`lines.seals`); `once` is the digest of idempotency key and body, empty without a key."""

    tenant_id: int
    key_id: int
    id: str
    batch: str
    created_at: datetime
    seal: str
    record: bytes
    once: str = ""


@dataclass(frozen=True, slots=True)
class ResponseStatus:
    """The status of a background response, and the code of the error that ended it, if its record
    does not have that."""

    status: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class EndedResponse:
    """The final status of a background response, and its final record."""

    status: str
    record: bytes


class StoredResponses(Protocol):
    """Responses of tenants that keep content, by the ids of their requests; only visible to their
    tenant. Every method raises `Unavailable` if the database cannot be reached.

    A background response is queued, begun in a turn, and ended once: by the highest turn that
    began, or by being cancelled or deleted.
    """

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """Store it; False if the tenant no longer keeps content."""
        ...

    async def read(self, tenant_id: int, id: str) -> bytes | None:
        """The stored record; None if there is none, or none any longer."""
        ...

    async def delete(self, tenant_id: int, id: str) -> bool:
        """Delete it; returns whether it existed."""
        ...

    async def queue(self, queued: Queued) -> str | None:
        """Store its record and queue it; returns its id, or that of the response that was queued
        with the same `once` within a day. None if the tenant no longer keeps content.

        Raises:
            RateLimitExceeded: too many of the tenant's have not ended.
        """
        ...

    async def status(self, tenant_id: int, id: str) -> ResponseStatus | None:
        """Its status; None if it is not a background response."""
        ...

    async def begin(self, tenant_id: int, id: str, turn: int) -> bytes | None:
        """Begin it in this turn; returns its record. None if it has ended, is no longer stored, or
        runs in a higher turn."""
        ...

    async def end(self, tenant_id: int, id: str, turn: int, ended: EndedResponse) -> bool:
        """Store how it ended; False if it has ended before, or runs in a higher turn."""
        ...

    async def cancel(self, tenant_id: int, id: str) -> None:
        """End it, unless it has ended."""
        ...


class StoredConversations(Protocol):
    """Conversations of tenants that keep content; only visible to their tenant. Every method raises
    `Unavailable` if the database cannot be reached."""

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """Store a new one; False if the tenant keeps no content."""
        ...

    async def read(self, tenant_id: int, id: str) -> tuple[bytes, bytes] | None:
        """The stored record and its version; None if there is none, or none any longer."""
        ...

    async def replace(self, tenant_id: int, id: str, version: bytes, record: bytes) -> bool:
        """Replace that version by this record; False if the version has changed, or it is gone."""
        ...

    async def delete(self, tenant_id: int, id: str) -> bool:
        """Delete it; returns whether it existed."""
        ...
