"""Copies requests to the candidates of shadows (`interfaces.directory.TrafficSplit`).

Nobody waits for a copy. It takes the batch lane and batch prices, and the key of the shadow with
its limits and budgets; it is stored only where requests of that key and its original are. What
became of it is noted beside its original.

A copy never takes the place of what clients ask for. It is sent after its original was answered, if
that left at least half of each limit, and as far as there is room; otherwise there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial

from inference.errors import InferenceError, InvalidApiKey
from inference.gateway.records.log_line import SHADOW, Asked
from inference.gateway.records.outcome import OF_VERSION
from inference.gateway.records.records import Records
from inference.gateway.requests.stream import Stream
from inference.ids import new_id
from inference.interfaces.directory import Directory, Grant, SplitArm
from inference.link.wire import Done
from inference.operations.operation import Call
from inference.process.supervision import in_background
from inference.shared_capacity import SharedCapacity

ROOM_BYTES = 64 << 20
"""Bodies of copies that wait or run."""
MOST = 256
"""Copies that wait or run."""

Generate = Callable[[str, Grant, Call, int], AbstractAsyncContextManager[Stream]]
"""The stream of the copy with this id, for this key, of the shadow with this id."""


class Shadows:
    """The copies of one gateway process."""

    def __init__(self, generate: Generate, directory: Directory, records: Records) -> None:
        self._generate, self._directory, self._records = generate, directory, records
        self._room = SharedCapacity[int](ROOM_BYTES)
        self._slots = SharedCapacity[int](MOST)
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, stream: Stream, call: Call, arm: SplitArm) -> None:
        """Send a copy of the stream's request, which this call is, once that was answered."""
        tenant_id, size = stream.request.grant.tenant_id, len(call.body)
        if not self._slots.has_room(tenant_id, 1) or not self._room.take(tenant_id, size):
            return
        self._slots.add(tenant_id, 1)
        free = partial(self._free, tenant_id, size)
        stream.on_settled(partial(self._settled, stream, call, arm, free))

    def _free(self, tenant_id: int, size: int) -> None:
        self._slots.give_back(tenant_id, 1)
        self._room.give_back(tenant_id, size)

    def _settled(self, stream: Stream, call: Call, arm: SplitArm, free: Callable[[], None]) -> None:
        request = stream.request
        if not was_answered(stream) or not leaves_room(stream):
            return free()
        assert arm.copies_to is not None
        sent = self._send(request.grant, arm.copies_to, call, arm.split_id, free)
        in_background(self._tasks, sent, "shadow")

    async def _send(
        self, original: Grant, key_id: int, call: Call, split_id: int, free: Callable[[], None]
    ) -> None:
        id, began = new_id(), time.monotonic()
        grant: Grant | None = None
        stream: Stream | None = None
        error: InferenceError | None = None
        try:
            grant = await self._directory.grant_of(key_id)
            if grant.tenant_id != original.tenant_id:
                raise InvalidApiKey
            keeps = grant.keeps_content and original.keeps_content
            grant = replace(grant, keeps_content=keeps)
            async with self._generate(id, grant, call, split_id) as stream:
                while not isinstance(await stream.read(), Done):
                    pass
        except InferenceError as caught:
            error = caught
        finally:
            free()
        asked = Asked(
            id=id,
            surface=SHADOW,
            began=began,
            operation=call.operation,
            grant=grant,
            call=call,
            stream=stream,
        )
        self._records.ended(asked, error)


def was_answered(stream: Stream) -> bool:
    """Whether the request says something of the version that it had: it was neither cancelled nor
    refused, handed over or lost."""
    done = stream.done
    assert done is not None
    if done.fault is not None:
        return not stream.request.handed_over and done.fault.error().code in OF_VERSION
    return stream.is_whole


def leaves_room(stream: Stream) -> bool:
    """Whether the request left at least half of each limit that is known."""
    rooms = stream.request.reservation.rooms.values()
    return all(2 * room.remaining >= room.limit for room in rooms)
