"""Which adapters engines are to keep loaded, and where each may be loaded. No IO, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.gateway.routing.engine_state import EngineState
from inference.gateway.routing.pools import Revisions
from inference.link.wire import AdapterRef

Pinned = Mapping[str, Sequence[AdapterRef]]
"""By base model."""


class Pins:
    """As the operator wishes. Nothing is known of that before the first `set`."""

    def __init__(self) -> None:
        self._pins: Pinned | None = None
        self._tried: Mapping[str, Revisions] = {}

    def set(self, pins: Pinned, tried: Mapping[str, Revisions]) -> Pins:
        """These from now on; what was before. `tried` are the revisions on which an adapter may be
        loaded, by its digest: any, where it is not there."""
        before = Pins()
        before._pins, before._tried = self._pins, self._tried
        self._pins, self._tried = pins, tried
        return before

    def of(self, engine: EngineState) -> list[AdapterRef] | None:
        """Those that this engine could load; None: nothing is known yet."""
        if self._pins is None:
            return None
        return [
            ref
            for ref in self._pins.get(engine.info.name, [])
            if engine.pool in self._tried.get(ref.digest, (engine.pool,))
            and not any(engine.cannot_load(ref))
        ]
