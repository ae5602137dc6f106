"""Reads request bodies; bounds each, and all that are arriving at the same time.

A body's limits are reserved only once it has arrived, so a client that sends many bodies slowly
would hold their memory without using any of its limits.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from inference.errors import Overloaded
from inference.gateway.exchanges.exchange import BODY_TIMEOUT_S
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.loop_iteration import LARGE_BYTES, count
from inference.operations.bodies.shape import BodyShape
from inference.shared_capacity import TENANT_SHARE, SharedCapacity

ARRIVING_BYTES = 256 << 20
"""Most bytes of bodies that have arrived in part, in one gateway process. A tenant may have a
quarter of that: eight of the largest bodies, or 16,000 of 4 KiB."""

LARGE_BYTES_PER_S = 16 << 20
"""As much of large bodies is read of each tenant. A body of 8 MiB takes up to 40 ms of the event
loop, and as much of an engine's: more than any prompt needs, but a flood of them would slow
everybody."""


class Bodies:
    """The bodies of one gateway process."""

    def __init__(self, max_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> None:
        """A body has at most `max_bytes` and arrives within `timeout_s`."""
        self.max_bytes, self._timeout_s = max_bytes, timeout_s
        self._arriving = SharedCapacity[str](max(ARRIVING_BYTES, TENANT_SHARE * max_bytes))
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant."""
        self._large = asyncio.Lock()

    async def read(self, exchange: InferenceExchange, shape: BodyShape) -> bytes:
        """The body of an authenticated request; `shape` counts its contents as they arrive.

        Raises:
            Overloaded: too many bodies of its tenant are arriving.
            InvalidRequest: `shape` refuses it.
            InferenceError: as `Exchange.body`.
        """
        assert exchange.grant is not None
        tenant, held = exchange.grant.tenant, 0

        async def admit(part: bytes) -> None:
            nonlocal held
            self.hold(tenant, len(part))
            held += len(part)
            await count(part, shape)

        try:
            body = await exchange.body(self.max_bytes, self._timeout_s, admit)
            await self.turn(tenant, len(body))
            return body
        finally:
            self.release(tenant, held)

    async def turn(self, tenant: str, size: int) -> None:
        """Wait until a body of this size may be parsed."""
        if size < LARGE_BYTES:
            return
        async with self._turns.setdefault(tenant, asyncio.Lock()):
            await asyncio.sleep(size / LARGE_BYTES_PER_S)
        async with self._large:  # no two are parsed in one iteration of the loop
            await asyncio.sleep(0)

    async def count(self, tenant: str, message: bytes, shape: BodyShape) -> None:
        """Count a message that has arrived whole, with pauses, and wait for its turn.

        Raises:
            InvalidRequest: `shape` refuses it.
        """
        await count(message, shape)
        await self.turn(tenant, len(message))

    def hold(self, tenant: str, size: int) -> None:
        """Count `size` more bytes that wait in memory, until `release`.

        Raises:
            Overloaded: the tenant has too many, and none are counted.
        """
        if not self._arriving.take(tenant, size):
            raise Overloaded(
                "Too many request bodies are being received at the same time.", retry_after_s=1.0
            )

    def release(self, tenant: str, size: int) -> None:
        """These bytes no longer wait."""
        self._arriving.give_back(tenant, size)
