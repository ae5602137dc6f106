"""The checks of one gateway: which recordings there are, and in which order they are checked.

Rules
    1. One check runs at a time, first come, first served. Recordings share ROOM_BYTES, and at most
       MAX_WAITING wait; a tenant may have a quarter of each (`SharedCapacity`). What finds no room
       is not checked.
    2. A check that takes more than SLOW_S of processor time pauses its tenant for PAUSE times as
       long: meanwhile nothing of this tenant is checked. So no tenant uses more than a few percent
       of the checks' time with schemas that take long, whatever it sends.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog

from inference.gateway.structures.child import StructureTask
from inference.gateway.structures.process import PROCESS, CheckingProcess
from inference.gateway.structures.recording import StructureRecording
from inference.operations.operation import Call
from inference.operations.structure import StructureOutcome
from inference.shared_capacity import SharedCapacity

log = structlog.get_logger(__name__)

ROOM_BYTES = 32 << 20
MAX_WAITING = 400
SLOW_S = 0.1
PAUSE = 20


class StructureChecks:
    """Checks the answers of one gateway process."""

    def __init__(
        self,
        *,
        room_bytes: int = ROOM_BYTES,
        most: int = MAX_WAITING,
        process: CheckingProcess = PROCESS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` tells seconds."""
        self.room = SharedCapacity[int](room_bytes)
        """By tenant id."""
        self._process, self._clock = process, clock
        self._slots = SharedCapacity[int](most)
        self._waiting: deque[StructureRecording] = deque()
        self._paused: dict[int, float] = {}
        """Until when, by tenant id."""
        self._running: asyncio.Task[None] | None = None

    def begin(self, tenant_id: int, call: Call) -> StructureRecording | None:
        """Record the answer to this call; None if it asks for no structure."""
        asked = call.structure
        return None if asked is None else StructureRecording(self, tenant_id, asked)

    def take(self, tenant_id: int, amount: int) -> bool:
        """See `RecordingChecks`."""
        return self.room.take(tenant_id, amount)

    def give_back(self, tenant_id: int, amount: int) -> None:
        """See `RecordingChecks`."""
        self.room.give_back(tenant_id, amount)

    def check(self, recording: StructureRecording) -> None:
        """See `RecordingChecks`."""
        if self._is_paused(recording.tenant_id) or not self._slots.take(recording.tenant_id, 1):
            return recording.tell(StructureOutcome.UNCHECKED)
        self._waiting.append(recording)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="structures")

    async def finish(self, within_s: float) -> None:
        """Check what waits, as far as there is time, and give up the rest."""
        if self._running is not None:
            await asyncio.wait([self._running], timeout=within_s)
            self._running.cancel()
        while self._waiting:
            self._next().tell(StructureOutcome.UNCHECKED)

    async def _run(self) -> None:
        while self._waiting:
            recording = self._next()
            outcome: StructureOutcome | None = StructureOutcome.UNCHECKED
            try:
                if not self._is_paused(recording.tenant_id):
                    outcome = await self._checked(recording)
            except Exception:
                log.exception("structure_not_checked", tenant_id=recording.tenant_id)
            finally:
                recording.tell(outcome)

    async def _checked(self, recording: StructureRecording) -> StructureOutcome | None:
        result = await self._process.check(StructureTask(recording.asked, recording.answer))
        if result.cpu_s > SLOW_S:
            self._paused[recording.tenant_id] = self._clock() + PAUSE * result.cpu_s
        return result.outcome

    def _next(self) -> StructureRecording:
        recording = self._waiting.popleft()
        self._slots.give_back(recording.tenant_id, 1)
        return recording

    def _is_paused(self, tenant_id: int) -> bool:
        until = self._paused.get(tenant_id)
        if until is not None and until <= self._clock():
            del self._paused[tenant_id]
            return False
        return until is not None
