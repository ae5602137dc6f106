"""Which engine dials: `inference.grants.Engines`, from memory.

All credentials are there, read again whenever one changes, so a gateway knows an engine while
PostgreSQL is away: what was true when it was heard from last, for as long as that lasts. Nothing
can be revoked meanwhile that a gateway would not hear of first when it is back.

Engines of a release that had one token for all of them are taken as well while the operator says
so (`ENGINE_TOKEN` and `ENGINE_TOKEN_UNTIL`): by a credential that has no row, without a name.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping, Sequence

from inference.errors import InvalidApiKey, Unavailable
from inference.grants import EngineCredential
from tenants.directory.reader import EngineRow
from tenants.naming import engine_prefix_of, hmac_of

SHARED = EngineCredential(0, "ENGINE_TOKEN")
"""Of engines that show the token which they share."""


class KnownEngines:
    """`learn` is to be told of all rows that hold, at first and after each change."""

    def __init__(self, shared_token: str = "", shared_until: float = 0.0) -> None:
        """Until that unix time in seconds the shared token is taken."""
        self._shared, self._shared_until = shared_token.encode(), shared_until
        self._rows: Mapping[str, EngineRow] | None = None
        self._known: Mapping[int, EngineCredential] = {}
        self._on_change: list[Callable[[], None]] = []

    def learn(self, rows: Sequence[EngineRow]) -> None:
        """These hold, and no others."""
        self._rows = {row.prefix: row for row in rows}
        self._known = {row.id: _credential(row) for row in rows}
        for told in self._on_change:
            told()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when `holds` may say something else."""
        self._on_change.append(callback)

    def takes_shared(self) -> bool:
        """Whether engines of a release that shared a token are taken now."""
        return bool(self._shared) and time.time() < self._shared_until

    def identify(self, secret: str) -> EngineCredential:
        """Whose secret this is; see `inference.grants.Engines`."""
        if self.takes_shared() and hmac.compare_digest(secret.encode(), self._shared):
            return SHARED
        prefix = engine_prefix_of(secret)
        if prefix is None:
            raise InvalidApiKey("This is no credential of an engine.")
        if self._rows is None:
            raise Unavailable("The credentials of engines are not known yet.", retry_after_s=1)
        row = self._rows.get(prefix)
        if row is None or not hmac.compare_digest(row.secret_hmac, hmac_of(secret)):
            raise InvalidApiKey("No engine has this credential, or it was revoked.")
        return self._known[row.id]

    def holds(self, credential: EngineCredential) -> bool:
        """Whether it is still as it was; see `inference.grants.Engines`."""
        if credential.id == SHARED.id:
            return self.takes_shared()
        return self._known.get(credential.id) == credential


def _credential(row: EngineRow) -> EngineCredential:
    pools = None if row.pools is None else frozenset(row.pools)
    return EngineCredential(row.id, row.name, pools, row.prefix)
