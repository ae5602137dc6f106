"""A worker's socket to a gateway, against a gateway that the test plays message by message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from websockets.asyncio.server import ServerConnection, serve

from inference.gateway.lines.frames import LineAnswer, LineNews, WithdrawBatch, encode
from tenants.batches.gateways import BatchGateways
from tests.inference.rig import until

TOKEN = "w" * 40
NEWS = encode(LineNews([("batch_1", 7)], [LineAnswer("batch_1", 6, 200, b"{}")]))
UNKNOWN = b"\x92\xa5hullo\x01"
"""A message of a later release: its tag, and a number."""


class Owner:
    """Records what the worker is told of its gateways."""

    def __init__(self) -> None:
        self.joins = self.losses = 0
        self.news: list[LineNews] = []
        self.fails = False

    def joined(self, gateway: str) -> None:
        self.joins += 1

    def on_news(self, gateway: str, news: LineNews) -> None:
        if self.fails:
            self.fails = False
            raise LookupError("of no use")
        self.news.append(news)

    def lost(self, gateway: str) -> None:
        self.losses += 1


class Played:
    """A gateway that says what the test wants, to the worker that dialled last."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.heard: list[Any] = []
        self._sockets: list[ServerConnection] = []

    async def handle(self, socket: ServerConnection) -> None:
        self._sockets.append(socket)
        async for message in socket:
            self.heard.append(message)

    async def say(self, message: bytes | str) -> None:
        await until(lambda: self.owner.joins == self.owner.losses + 1)
        await self._sockets[-1].send(message)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Played, BatchGateways]]:
    played = Played()
    async with serve(played.handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        gateways = BatchGateways(played.owner, TOKEN)
        gateways.set([f"http://127.0.0.1:{port}"])
        try:
            yield played, gateways
        finally:
            await gateways.close()


async def test_the_owner_receives_the_gateways_messages() -> None:
    async with connected() as (played, gateways):
        await played.say(NEWS)
        await until(lambda: played.owner.news)
        assert encode(played.owner.news[0]) == NEWS
        for url in gateways.open:
            gateways.post(url, WithdrawBatch("batch_1"))
        await until(lambda: played.heard)
    assert played.heard == [encode(WithdrawBatch("batch_1"))]
    assert played.owner.joins == played.owner.losses == 1


@pytest.mark.parametrize("message", [b"\xc1", b"", b"\x93\xa4news\x01\x02", "text"])
async def test_a_gateway_that_sends_invalid_messages_is_dialled_again(message: bytes | str) -> None:
    async with connected() as (played, _):
        with structlog.testing.capture_logs() as logs:
            await played.say(message)
            await until(lambda: played.owner.losses)
            await until(lambda: logs)
        assert logs[0]["event"] == "task_ended"
        await played.say(NEWS)
        await until(lambda: played.owner.news)


async def test_a_gateway_is_dialled_again_after_the_owner_raised() -> None:
    async with connected() as (played, _):
        played.owner.fails = True
        await played.say(NEWS)
        await until(lambda: played.owner.losses)
        await played.say(NEWS)
        await until(lambda: played.owner.news)


async def test_a_message_of_a_later_release_is_ignored_and_logged() -> None:
    async with connected() as (played, _):
        with structlog.testing.capture_logs() as logs:
            await played.say(UNKNOWN)
            await played.say(NEWS)
            await until(lambda: played.owner.news)
        assert [(log["event"], log["frame"]) for log in logs] == [("unknown_frame", "hullo")]
        assert played.owner.losses == 0
