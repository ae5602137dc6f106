"""Engines that could not start: what they last said about it, for display."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from inference.interfaces.credentials import EngineIdentity

KEPT_S = 3600.0
MAX_KEPT = 64
MAX_ID, MAX_CAUSE = 255, 1200
"""Characters."""


class StartFailure(msgspec.Struct, frozen=True):
    """An engine's last failure to start. `at` is in seconds since 1970."""

    engine: str
    credential: str
    cause: str
    at: float


class StartFailures:
    """The failures of the last hour, by engine; an engine that connects has none any more."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._kept: dict[str, StartFailure] = {}

    def note(self, engine: str, credential: EngineIdentity, cause: str) -> None:
        """An engine with this credential could not start. The oldest of too many is forgotten."""
        engine = engine[:MAX_ID]
        self._kept.pop(engine, None)
        self._kept[engine] = StartFailure(engine, credential.name, cause[:MAX_CAUSE], self._now())
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def started(self, engine: str) -> None:
        """The engine is connected."""
        self._kept.pop(engine, None)

    def recent(self) -> list[StartFailure]:
        """May be called from any thread."""
        since = self._now() - KEPT_S
        return [one for one in list(self._kept.values()) if one.at > since]
