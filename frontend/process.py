"""What the console asks of the gateway process that it runs in; the gateway's wiring sets it.

Apart from these a page knows only what is in the database, and `tenants.api.endpoints.engines`.
"""

from __future__ import annotations

from collections.abc import Callable

from frontend.live.history import Past


def _nothing_to_drain(engine_id: str) -> None:
    pass


def _not_degraded() -> bool:
    return False


def _no_past() -> Past:
    return Past()


drain_engine: Callable[[str], object] = _nothing_to_drain
"""Asks an engine, by its id, to take no new work. From any thread; unknown ids change nothing."""

limits_degraded: Callable[[], bool] = _not_degraded
"""Whether Redis is away, so that this process counts limits by itself or refuses."""

engines_past: Callable[[], Past] = _no_past
"""What engines did in the last quarter of an hour."""
