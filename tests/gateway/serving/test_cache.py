"""The cache that counts failed sign-ins, with a Redis that goes down and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.cache import FailoverCache
from tests.limits.redis_server import RedisServer


class Patient(FailoverCache):
    """Retries Redis immediately, and waits for it even on a busy machine."""

    retry_s = 0.0
    timeout_s = 60.0


class Impatient(Patient):
    """Does not wait for an unresponsive Redis."""

    timeout_s = 0.1


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


def test_gateways_count_together_on_redis(redis: RedisServer) -> None:
    one, two = Patient(redis.url, {}), Patient(redis.url, {})
    assert one.add("failed", [1], 60) and not two.add("failed", [2], 60)
    two.set("failed", [1, 2], 60)
    assert one.get("failed") == [1, 2]
    assert one.delete("failed") and two.get("failed", []) == []


def test_failures_are_counted_locally_while_redis_is_down(
    redis: RedisServer,
) -> None:
    cache = Patient(redis.url, {})
    redis.freeze()
    Impatient(redis.url, {}).set("failed", [1], 60)
    redis.thaw()
    redis.kill()
    assert cache.get("failed") == [1]
    assert not cache.add("failed", [2], 60)
    redis.start()
    assert cache.get("failed") is None
