"""One Redis per session, and both stores on a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tenants.limits.commands import LimitStore
from tenants.limits.memory import MemoryStore
from tenants.limits.redis_store import RedisStore
from tests.limits.asking import TIMEOUT_S, Both, Clock
from tests.limits.redis_server import RedisServer


@pytest.fixture(scope="session")
def _one_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def redis_server(_one_redis: RedisServer) -> RedisServer:
    """An empty Redis."""
    with _one_redis.client() as client:
        client.flushall()
        client.script_flush()
    return _one_redis


@pytest.fixture
def mortal_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of this test's own, which it may kill and freeze."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(redis_server: RedisServer, clock: Clock) -> AsyncIterator[LimitStore]:
    both = Both(MemoryStore(clock), RedisStore(redis_server.url, clock=clock, timeout_s=TIMEOUT_S))
    yield both
    await both.close()
