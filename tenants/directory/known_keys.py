"""What is known of a key: its grant, why it has none, or that it is not a key.

Pure: `now` is a unix time.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import ApiKeyRevoked, InvalidApiKey, RequestError
from inference.interfaces.directory import INFERENCE, Grant
from tenants.directory.invalidating_cache import Tag
from tenants.directory.reader import KeyRow


@dataclass(slots=True)
class KnownKey:
    """A cached key: its grant, or why it has none. `touched_at` is a monotonic time in seconds."""

    id: int
    tenant_id: int
    verdict: Grant | InvalidApiKey
    touched_at: float = float("-inf")
    limited_by: int | None = None
    """The key whose limits apply to it, if not its own."""

    def tags(self) -> list[Tag]:
        tags: list[Tag] = [("key", self.id), ("tenant", self.tenant_id)]
        if self.limited_by is not None:
            tags.append(("key", self.limited_by))
        if isinstance(self.verdict, Grant) and INFERENCE in self.verdict.scopes:
            tags.append(("infers", self.id))
        return tags


def admit(verdict: Grant | InvalidApiKey, now: float) -> Grant:
    """The grant, if it is valid at this unix time.

    Raises:
        InvalidApiKey: it is not.
    """
    if isinstance(verdict, InvalidApiKey):
        raise InvalidApiKey(verdict.message)
    if verdict.expires_at is not None and verdict.expires_at <= now:
        raise InvalidApiKey("This API key has expired.")
    return verdict


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A text that is not a key, with the key that has the same prefix and its tenant; 0 if none
    has."""

    tenant_id: int = 0
    key_id: int = 0

    def error(self) -> InvalidApiKey:
        return attributed(InvalidApiKey(), self.tenant_id, self.key_id)


def attributed(error: InvalidApiKey, tenant_id: int, key_id: int) -> InvalidApiKey:
    """The error, with the key that it concerns and that key's tenant."""
    error.tenant_id, error.key_id = tenant_id, key_id
    return error


def revocation(row: KeyRow | None, now: float) -> ApiKeyRevoked | None:
    """Why a key can no longer run inference; None if it still can. `row` is None if it was
    deleted."""
    if row is None:
        return ApiKeyRevoked("This API key was deleted.")
    try:
        admit(row.verdict(), now).require(INFERENCE)
    except RequestError as error:
        return ApiKeyRevoked(error.message)
    return None
