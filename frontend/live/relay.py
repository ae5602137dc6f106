"""Passes notices of requests that began and ended between gateways, over a Channels layer.

A gateway joins the group only while somebody watches there, so a batch costs next to nothing while
nobody does. Batches are never waited for: if the layer is away or slow, a batch is lost to the
other gateways, which notice the gap in the numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import structlog

from frontend.live.tail import TailEnded

log = structlog.get_logger(__name__)

GROUP = "live"
"""Channels group of the gateways on which somebody watches."""
LAYER_S = 1.0
"""Timeout of one call to the layer."""
REJOIN_S = 60.0
"""How often group membership is renewed, in case Redis has lost it."""
RETRY_S = 5.0
CANCEL_S = 0.1


class Layer(Protocol):
    """The part of Channels' layer interface that is used here."""

    async def new_channel(self) -> str: ...
    async def group_add(self, group: str, channel: str) -> None: ...
    async def group_discard(self, group: str, channel: str) -> None: ...
    async def group_send(self, group: str, message: dict[str, Any]) -> None: ...
    async def receive(self, channel: str) -> dict[str, Any]: ...


class RelayBatch(msgspec.Struct):
    """Requests that ended, and the tenants of requests that began. Each sender numbers its batches;
    `missed` is set if some requests are in no batch."""

    number: int = 0
    ended: list[TailEnded] = []
    began: list[int] = []
    missed: bool = False


class Relay:
    """One gateway's connection to the others; `sender` is its name in messages."""

    def __init__(self, sender: str, layer: Layer) -> None:
        self._sender, self._layer = sender, layer
        self.sending: asyncio.Task[None] | None = None
        """The send in progress, if any."""
        self._away = False

    def post(self, batch: RelayBatch) -> None:
        """Send a batch without waiting; it is dropped if the previous one is still being sent."""
        if self.sending is None:
            self.sending = asyncio.create_task(self._send(batch))

    async def listen(self, deliver: Callable[[RelayBatch], None]) -> None:
        """Pass batches of other gateways to `deliver`, until cancelled."""
        while True:
            try:
                await self._hear(deliver)
            except Exception as error:  # layers raise all kinds
                self._failed(error)
                await asyncio.sleep(RETRY_S)

    async def _send(self, batch: RelayBatch) -> None:
        message = {"type": "live", "from": self._sender, "batch": msgspec.json.encode(batch)}
        try:
            async with asyncio.timeout(LAYER_S):
                await self._layer.group_send(GROUP, message)
            self._away = False
        except Exception as error:  # layers raise all kinds
            self._failed(error)
        finally:
            self.sending = None

    async def _hear(self, deliver: Callable[[RelayBatch], None]) -> None:
        channel = await self._layer.new_channel()
        async with asyncio.timeout(LAYER_S):
            await self._layer.group_add(GROUP, channel)
        deliver(RelayBatch(missed=True))  # anything sent before joining was missed
        staying = asyncio.create_task(self._stay(channel))
        last: dict[str, int] = {}
        try:
            while True:
                message = await self._layer.receive(channel)
                if (sender := message["from"]) != self._sender:
                    batch = msgspec.json.decode(message["batch"], type=RelayBatch)
                    batch.missed |= batch.number != last.get(sender, batch.number - 1) + 1
                    last[sender] = batch.number
                    deliver(batch)
        finally:
            staying.cancel()
            with suppress(Exception):
                async with asyncio.timeout(LAYER_S):
                    await self._layer.group_discard(GROUP, channel)

    async def _stay(self, channel: str) -> None:
        while True:
            await asyncio.sleep(REJOIN_S)
            try:
                await self._layer.group_add(GROUP, channel)
            except Exception as error:  # layers raise all kinds
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Log the failure, once until the layer works again."""
        if not self._away:
            log.warning("live_layer_away", error=str(error) or type(error).__name__)
        self._away = True


async def stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait for them; repeated every CANCEL_S, because Channels' Redis layer
    occasionally swallows a cancellation."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_S)
