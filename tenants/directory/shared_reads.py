"""Reads through caches from a database that may be down or slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Hashable
from functools import partial
from typing import Any, TypeVar

from inference.errors import Unavailable
from tenants.directory.invalidating_cache import InvalidatingCache, Tag
from tenants.directory.outage import Outage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

READ_ATTEMPTS = 3


class SharedReads:
    """Concurrent callers share one read. While the database is down, callers do not wait for it if
    the cache has a last value."""

    def __init__(self, without_database_s: float) -> None:
        """While the database is down, a value may be used until `without_database_s` after it was
        last known to be current."""
        self.outage = Outage()
        self._without_database_s = without_database_s
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(
        self,
        cache: InvalidatingCache[K, V],
        key: K,
        *,
        load: Callable[[], Awaitable[V]],
        tags: Callable[[V], Collection[Tag]],
    ) -> V:
        """The cached value, else a read; concurrent callers share one read.

        While the database is down, the last value may be used for `without_database_s`.
        """
        value = cache.get(key, time.monotonic())
        if value is not None:
            return value
        last = partial(cache.last, key, within_s=self._without_database_s)
        known = last(time.monotonic())
        if known is not None and self.outage.spares(time.monotonic()):
            return known
        try:
            value = await self._read_shared(cache, key, load, tags)
        except Unavailable:
            self.outage.found(time.monotonic())
            if (known := last(time.monotonic())) is None:
                raise
            return known
        self.outage.over()
        return value

    async def _read_shared(
        self,
        cache: InvalidatingCache[K, V],
        key: K,
        load: Callable[[], Awaitable[V]],
        tags: Callable[[V], Collection[Tag]],
    ) -> V:
        flight = self._flights.get((id(cache), key))
        if flight is None:
            flight = asyncio.create_task(_read(cache, key, load, tags))
            self._flights[id(cache), key] = flight
            flight.add_done_callback(lambda done: self._landed((id(cache), key), done))
        value: V = await asyncio.shield(flight)  # one caller's cancellation must not end the read
        return value

    def _landed(self, key: Hashable, flight: asyncio.Task[Any]) -> None:
        self._flights.pop(key, None)
        if not flight.cancelled():
            flight.exception()  # retrieve the exception even if every caller has gone


async def _read(
    cache: InvalidatingCache[K, V],
    key: K,
    load: Callable[[], Awaitable[V]],
    tags: Callable[[V], Collection[Tag]],
) -> V:
    for _ in range(READ_ATTEMPTS):
        with cache.reading() as reading:
            value = await load()
            if cache.put(reading, key, value, tags(value)):
                return value
    # The value changes faster than it can be read, and one from before a change must not be used.
    raise Unavailable(retry_after_s=1.0)
