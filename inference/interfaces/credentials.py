"""The credentials of engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """The credential of an engine. Compare by value.

    `id` is its row's; `pools` the base models that it may serve, None for all; `prefix` is its
    secret's, so it changes when the secret is rotated.
    """

    id: int
    name: str
    pools: frozenset[str] | None = None
    prefix: str = ""

    def may_serve(self, base_model: str) -> bool:
        return self.pools is None or base_model in self.pools


class KnownCredentials(Protocol):
    """The credentials of engines, answered from memory."""

    def identify(self, secret: str) -> EngineIdentity:
        """The credential with this secret; compared in constant time.

        Raises:
            InvalidApiKey: there is none, or it was revoked.
            Unavailable: the credentials have not been loaded yet.
        """
        ...

    def holds(self, credential: EngineIdentity) -> bool:
        """Whether it is still valid and unchanged since it was identified."""
        ...
