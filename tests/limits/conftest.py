"""One Redis per session, and both stores on a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tenants.limits.commands import AnyAnswer, AnyCommand, Ids, Store
from tenants.limits.memory import MemoryStore
from tenants.limits.redis_store import RedisStore
from tests.limits.asking import TIMEOUT_S, Clock
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


class Both:
    """A store in memory and one on Redis, which must answer each command alike."""

    def __init__(self, *stores: Store) -> None:
        self._stores = stores

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        answers, others = [await store.run(*commands) for store in self._stores]
        assert list(map(_in_order, answers)) == list(map(_in_order, others))
        return answers

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def _in_order(answer: AnyAnswer) -> AnyAnswer:
    return Ids(sorted(answer.ids)) if isinstance(answer, Ids) else answer


@pytest.fixture
async def store(redis_server: RedisServer, clock: Clock) -> AsyncIterator[Store]:
    both = Both(MemoryStore(clock), RedisStore(redis_server.url, clock=clock, timeout_s=TIMEOUT_S))
    yield both
    await both.close()
