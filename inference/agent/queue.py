"""The queue in front of the engine: who starts next. No engine, no loop; time is handed in.

Rules
    1. At most `max_running` requests run, so that the engine's own waiting queue stays empty.
    2. Requests start in the order in which they came, except that one whose adapter has no free
       slot is overtaken by those behind it that can start.
    3. The overtaking is bounded: once a request has waited `patience_s` for a slot, one adapter in
       use (the one with the fewest running requests) is closed to requests behind it. Its slot is
       free when what it runs has ended, at the latest then the waiting request starts.
    4. At most `max_queued` requests wait; one more is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.agent.slots import Slots
from inference.errors import Overloaded

RETRY_AFTER_S = 2.0
"""Said to those who are refused: the order of the time in which a full queue moves on."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request that has not started. `since` is of the caller's monotonic clock, in seconds."""

    id: str
    adapter: str | None
    since: float


class Queue:
    """Requests waiting for the engine, and those running on it."""

    def __init__(
        self, slots: Slots, *, max_running: int, max_queued: int, patience_s: float = 1.0
    ) -> None:
        self._slots = slots
        self._max_running, self._max_queued = max_running, max_queued
        self._patience_s = patience_s
        self._waiting: dict[str, Waiting] = {}
        self._running: dict[str, str | None] = {}
        self._closed_for: dict[str, str] = {}
        """For each adapter that lost patience, the adapter in use that is closed for it."""

    def __len__(self) -> int:
        """Requests waiting."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests running."""
        return len(self._running)

    def push(self, id: str, adapter: str | None, now: float) -> None:
        """A request arrives; `admit` starts it.

        Raises:
            Overloaded: the queue is full; nothing changed.
        """
        if len(self._waiting) >= self._max_queued:
            raise Overloaded(
                f"The engine's queue is full ({self._max_queued} requests).",
                retry_after_s=RETRY_AFTER_S,
            )
        self._waiting[id] = Waiting(id, adapter, now)

    def admit(self, now: float) -> list[str]:
        """Start every request that may start now; returns their ids in order."""
        self._forget_settled_closures()
        started: list[str] = []
        closed: set[str] = set()
        for request in list(self._waiting.values()):
            if len(self._running) >= self._max_running:
                break
            if request.adapter not in closed and self._slots.fits(request.adapter):
                self._start(request)
                started.append(request.id)
            elif request.adapter is not None and now - request.since >= self._patience_s:
                closed |= self._close_one_for(request.adapter)
        return started

    def finish(self, id: str) -> None:
        """A request has ended, whether it was running or still waiting; unknown ids are ignored."""
        self._waiting.pop(id, None)
        if id in self._running:
            self._slots.finish(self._running.pop(id))

    def _start(self, request: Waiting) -> None:
        del self._waiting[request.id]
        self._slots.start(request.adapter)
        self._running[request.id] = request.adapter

    def _close_one_for(self, adapter: str) -> set[str]:
        """The adapter that is closed to those behind a request of `adapter`; the choice sticks."""
        if adapter not in self._closed_for:
            taken = set(self._closed_for.values()) | {adapter}
            open_ones = {a: n for a, n in self._slots.in_use.items() if a not in taken}
            if not open_ones:
                return set()
            self._closed_for[adapter] = min(open_ones, key=lambda one: (open_ones[one], one))
        return {self._closed_for[adapter]}

    def _forget_settled_closures(self) -> None:
        waiting = {request.adapter for request in self._waiting.values()}
        in_use = self._slots.in_use
        self._closed_for = {
            adapter: closed
            for adapter, closed in self._closed_for.items()
            if adapter in waiting and closed in in_use
        }
