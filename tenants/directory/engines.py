"""Authenticates engines: `interfaces.credentials.Engines`, from memory.

All credentials are in memory, and are read again whenever one changes. So a gateway recognises
engines while it cannot reach PostgreSQL, by the state that it last read. It learns of a credential
that was revoked meanwhile before anything else once PostgreSQL is back.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence

from inference.errors import InvalidApiKey, Unavailable
from inference.interfaces.credentials import EngineIdentity
from tenants.directory.reader import EngineRow
from tenants.naming import engine_prefix_of, hmac_of


class KnownEngines:
    """Call `learn` with all valid rows, at first and after each change."""

    def __init__(self) -> None:
        self._rows: Mapping[str, EngineRow] | None = None
        self._known: Mapping[int, EngineIdentity] = {}
        self._on_change: list[Callable[[], None]] = []

    def learn(self, rows: Sequence[EngineRow]) -> None:
        """Replace the valid credentials by these."""
        self._rows = {row.prefix: row for row in rows}
        self._known = {row.id: _credential(row) for row in rows}
        for listener in self._on_change:
            listener()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the result of `holds` may have changed."""
        self._on_change.append(callback)

    def identify(self, secret: str) -> EngineIdentity:
        """The credential with this secret; see `interfaces.credentials.Engines`."""
        prefix = engine_prefix_of(secret)
        if prefix is None:
            raise InvalidApiKey("The bearer token is not an engine credential.")
        if self._rows is None:
            raise Unavailable("The engine credentials have not been loaded yet.", retry_after_s=1)
        row = self._rows.get(prefix)
        if row is None or not hmac.compare_digest(row.secret_hmac, hmac_of(secret)):
            raise InvalidApiKey("The engine credential does not exist or was revoked.")
        return self._known[row.id]

    def holds(self, credential: EngineIdentity) -> bool:
        """Whether the credential is valid and unchanged; see `interfaces.credentials.Engines`."""
        return self._known.get(credential.id) == credential


def _credential(row: EngineRow) -> EngineIdentity:
    pools = None if row.pools is None else frozenset(row.pools)
    return EngineIdentity(row.id, row.name, pools, row.prefix)
