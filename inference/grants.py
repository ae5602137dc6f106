"""What the token path asks of the platform: who is calling, what the name means, note the usage.

`tenants` implements the two protocols; `gateway.asgi` wires them in. A Grant is made by the server
from the key alone; nothing that a client sends changes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from inference.errors import InferenceError
from inference.wire import AdapterRef, Usage


@dataclass(frozen=True, slots=True)
class Grant:
    """What one API key may do, as of the last check. Compare by value.

    `models` is the allow-list of names without a version (None: all of the tenant's); `salt` the
    tenant's prefix-cache salt; `expires_at` a unix time in seconds.
    """

    key_id: int
    tenant_id: int
    tenant: str
    scopes: frozenset[str]
    models: frozenset[str] | None
    weight: float
    salt: str
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a model name means for a grant: a base model, or one adapter version on it."""

    model: str
    """The name as the client wrote it, shown in the answer."""
    base_model: str
    adapter: AdapterRef | None = None
    version_id: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of `GET /v1/models`; `created` is a unix time in seconds."""

    id: str
    created: int
    owned_by: str
    root: str
    """The base model that it runs on."""


class Directory(Protocol):
    """Keys and model names, answered from memory once seen."""

    async def authenticate(self, secret: str) -> Grant:
        """The grant of this key.

        Raises:
            InvalidApiKey: unknown, revoked, expired, or its tenant is suspended.
            Unavailable: it is not in memory and the database cannot be reached.
        """
        ...

    async def resolve(self, grant: Grant, name: str) -> Target:
        """What the model name means.

        Raises:
            UnknownModel: there is no such model, or this key may not use it (the two look alike).
            Unavailable: as `authenticate`.
        """
        ...

    async def models(self, grant: Grant) -> list[ModelCard]:
        """Every model this key may use, by name."""
        ...

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        """Call `callback(key_id, error)` when a key in use can no longer infer."""
        ...


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One request attempt, ready for the ledger. `id` is made by the server and never reused."""

    id: str
    started_at: datetime
    tenant_id: int
    key_id: int
    model: str
    base_model: str
    version_id: int | None
    engine_id: str
    usage: Usage
    finish_reason: str
    """As answered (`stop`, `length`, `tool_calls`), else `cancelled` or the error's code."""


class Recorder(Protocol):
    """Takes usage off the token path."""

    def record(self, record: UsageRecord) -> None:
        """Note the usage; returns at once, never blocks, never raises."""
        ...
