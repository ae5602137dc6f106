"""Which adapters engines should keep loaded, and where each may be loaded. No IO, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.gateway.routing.engine_state import EngineState
from inference.link.engine_info import AdapterRef
from inference.pools import Revisions

Pinned = Mapping[str, Sequence[AdapterRef]]
"""By base model."""


class Pins:
    """The operator's pins; unknown before the first `set`."""

    def __init__(self) -> None:
        self._pins: Pinned | None = None
        self._tried: Mapping[str, Revisions] = {}

    def set(self, pins: Pinned, tried: Mapping[str, Revisions]) -> Pins:
        """Replace the pins; returns the previous ones. `tried` has the revisions on which an
        adapter may be loaded, by its digest; one not in there may be loaded on any."""
        before = Pins()
        before._pins, before._tried = self._pins, self._tried
        self._pins, self._tried = pins, tried
        return before

    def of(self, engine: EngineState) -> list[AdapterRef] | None:
        """The pinned adapters that this engine can load; None if pins are not known yet."""
        if self._pins is None:
            return None
        return [
            ref
            for ref in self._pins.get(engine.info.name, [])
            if engine.pool in self._tried.get(ref.digest, (engine.pool,))
            and not any(engine.cannot_load(ref))
        ]
