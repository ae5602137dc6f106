"""Requests that began and ended on their way between gateways, over a Channels layer.

A gateway is in the group only while somebody watches there, so that a batch costs next to nothing
while nobody does. A batch isn't worth waiting for: where the layer is away or slow
it is lost to the others, and they find its number missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import structlog

from frontend.live.tail import Ended

log = structlog.get_logger(__name__)

GROUP = "live"
"""The layer's group of the gateways where somebody watches."""
LAYER_S = 1.0
"""How long the layer may take."""
REJOIN_S = 60.0
"""Membership in a group is renewed this often: Redis may have lost it."""
RETRY_S = 5.0
CANCEL_S = 0.1


class Layer(Protocol):
    """The part of a Channels layer that is used."""

    async def new_channel(self) -> str: ...
    async def group_add(self, group: str, channel: str) -> None: ...
    async def group_discard(self, group: str, channel: str) -> None: ...
    async def group_send(self, group: str, message: dict[str, Any]) -> None: ...
    async def receive(self, channel: str) -> dict[str, Any]: ...


class Batch(msgspec.Struct):
    """Requests that ended, and the tenants of those that began. A sender numbers its batches;
    `missed` says that some requests are in none."""

    number: int = 0
    ended: list[Ended] = []
    began: list[int] = []
    missed: bool = False


class Relay:
    """One gateway's way to the others; `sender` is its name there."""

    def __init__(self, sender: str, layer: Layer) -> None:
        self._sender, self._layer = sender, layer
        self.sending: asyncio.Task[None] | None = None
        """What is under way."""
        self._away = False

    def post(self, batch: Batch) -> None:
        """Send it without waiting; it is lost if the one before is still under way."""
        if self.sending is None:
            self.sending = asyncio.create_task(self._send(batch))

    async def listen(self, deliver: Callable[[Batch], None]) -> None:
        """Give what the others send to `deliver`, until cancelled."""
        while True:
            try:
                await self._hear(deliver)
            except Exception as error:  # whatever the layer is made of
                self._failed(error)
                await asyncio.sleep(RETRY_S)

    async def _send(self, batch: Batch) -> None:
        message = {"type": "live", "from": self._sender, "batch": msgspec.json.encode(batch)}
        try:
            async with asyncio.timeout(LAYER_S):
                await self._layer.group_send(GROUP, message)
            self._away = False
        except Exception as error:  # whatever the layer is made of
            self._failed(error)
        finally:
            self.sending = None

    async def _hear(self, deliver: Callable[[Batch], None]) -> None:
        channel = await self._layer.new_channel()
        async with asyncio.timeout(LAYER_S):
            await self._layer.group_add(GROUP, channel)
        deliver(Batch(missed=True))  # whatever was sent before
        staying = asyncio.create_task(self._stay(channel))
        last: dict[str, int] = {}
        try:
            while True:
                message = await self._layer.receive(channel)
                if (sender := message["from"]) != self._sender:
                    batch = msgspec.json.decode(message["batch"], type=Batch)
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
            except Exception as error:  # whatever the layer is made of
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Logged once until it works again."""
        if not self._away:
            log.warning("live_layer_away", error=str(error) or type(error).__name__)
        self._away = True


async def stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel them and wait. Redis' channel layer loses a cancellation now and then: it is asked
    again then."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_S)
