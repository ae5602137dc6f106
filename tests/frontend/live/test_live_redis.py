"""Requests between two gateways over the real channel layer and a real Redis, which may fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from channels_redis.core import RedisChannelLayer

from frontend.live.board import Board
from tests.frontend.live.test_live_board import WHOLE, Reader, board_of, numbers, publish, whose
from tests.inference.rig import until
from tests.limits.redis_server import RedisServer


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server of this test's own, to kill and to freeze."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
async def boards(redis_server: RedisServer) -> AsyncIterator[tuple[Board, Board]]:
    """The boards of two gateways, each with a layer of its own, as in two processes."""
    layers = [RedisChannelLayer(hosts=[redis_server.url]) for _ in range(2)]
    async with board_of(layer=layers[0]) as here, board_of(layer=layers[1]) as there:
        yield here, there
    for layer in layers:
        await layer.close_pools()


async def both_joined(*readers: Reader) -> None:
    """Wait until both gateways have joined, on which each tells its watchers to reload."""
    told = [reader.told for reader in readers]
    await until(lambda: all(one.told > was for one, was in zip(readers, told, strict=True)))
    for reader in readers:
        reader.read()


async def told(board: Board, number: int) -> None:
    publish(board, number)
    await until(lambda: board.idle)


async def test_requests_travel_over_redis(boards: tuple[Board, Board]) -> None:
    here, there = boards
    own, reader = Reader(here, whose(1)), Reader(there, WHOLE)
    await both_joined(own, reader)
    for number in range(3):
        await told(here, number)
    await until(lambda: reader.told == 4)
    assert numbers(reader.read()) == numbers(own.read()) == [0, 1, 2]
    await told(there, 9)
    await until(lambda: own.told == 5)
    assert numbers(own.read()) == [9]


async def test_without_redis_each_gateway_tells_its_own_and_both_find_back(
    boards: tuple[Board, Board], redis_server: RedisServer
) -> None:
    here, there = boards
    own, reader = Reader(here, whose(1)), Reader(there, whose(1))
    await both_joined(own, reader)
    redis_server.kill()
    await told(here, 1)
    assert numbers(own.read()) == [1]
    redis_server.start()
    await both_joined(own, reader)
    so_far = reader.told
    await told(here, 2)
    await until(lambda: reader.told > so_far)
    read = reader.read()
    assert read["missed"] or numbers(read) == [2]  # "missed" if a batch was lost meanwhile
    await told(here, 3)
    await until(lambda: reader.told > so_far + 1)
    assert numbers(reader.read()) == [3]


async def test_a_redis_that_hangs_holds_nothing_up(
    boards: tuple[Board, Board], redis_server: RedisServer
) -> None:
    here, there = boards
    own, reader = Reader(here, whose(1)), Reader(there, whose(1))
    await both_joined(own, reader)
    redis_server.freeze()
    for number in range(3):
        publish(here, number)
        assert numbers(own.read()) == [number]
    await until(lambda: here.idle)  # the message that hung was given up
    redis_server.thaw()
