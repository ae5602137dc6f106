"""Counts of failed sign-ins: on Redis for all gateways, in this process while Redis is away.

A Redis outage must not lock anybody out of the console, least of all an operator who investigates
it, and must not allow unbounded guessing of passwords.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError


class FailoverCache(BaseCache):
    """The cache methods that allauth uses. Each thread has an instance; whether Redis is away is
    known to all of them."""

    retry_s: ClassVar[float] = 5.0
    """How long Redis is not used after a failure: a sign-in makes two dozen calls."""
    timeout_s: ClassVar[float] = 0.5
    """Of one exchange with Redis."""
    _away_until: ClassVar[float] = 0.0
    """Monotonic time in seconds."""

    def __init__(self, url: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), self.timeout_s)
        self._redis = RedisCache(url, params | {"OPTIONS": timeouts})
        self._local = LocMemCache("sign-ins", params)

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        return bool(self._ask("add", key, value, timeout, version))

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return self._ask("get", key, default, version)

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        self._ask("set", key, value, timeout, version)

    def delete(self, key: Any, version: int | None = None) -> bool:
        return bool(self._ask("delete", key, version))

    def _ask(self, method: str, *arguments: Any) -> Any:
        if time.monotonic() >= FailoverCache._away_until:
            try:
                return getattr(self._redis, method)(*arguments)
            except RedisError:
                FailoverCache._away_until = time.monotonic() + self.retry_s
        return getattr(self._local, method)(*arguments)
