"""The mailbox of one request: the merged output that its reader has not taken yet.

A slow reader gets one bigger delta instead of many, so nothing waits for it and nothing piles up
beyond the answer itself. What happens to the request besides is decided by its life (`request`),
which goes on after the reader has left: until the last engine says `done` or is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from inference.errors import InferenceError
from inference.gateway.measuring.content import Capture
from inference.gateway.measuring.measures import CANCELLED, REASONS
from inference.gateway.requests.admitted import Watch
from inference.gateway.requests.attempt import Attempt
from inference.gateway.requests.request import Commands, Request, RequestState
from inference.gateway.structures.recording import StructureRecording
from inference.link.wire import GONE, Delta, Done

Event = Callable[..., Commands]
"""A method of `Request` that is one of its events."""


FINISHED = {None, *REASONS} - {CANCELLED}
"""Finish reasons of answers that were not ended from outside."""


class AnswerMissing(Exception):
    """The answer that was to be adopted no longer exists; nothing of it was read."""


class Stream:
    """What one reader has of a request."""

    def __init__(
        self,
        request: Request,
        happened: Callable[..., None],
        watch: Watch | None = None,
    ) -> None:
        """`happened(stream, event, *args)` passes an event on to the request. `watch` is called
        with what the request waits for."""
        self.request, self.watch = request, watch
        self.capture: Capture | None = None
        """Records its answer, if its tenant keeps content."""
        self.structure: StructureRecording | None = None
        """Records its answer, if that is to be checked."""
        self.attempt: Attempt | None = None
        """The last attempt."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends its wait for an engine."""
        self.overflow_timer: asyncio.TimerHandle | None = None
        """Lets an overflow engine have it, if it still waits then."""
        self.extending: asyncio.Task[None] | None = None
        """Reserves more tokens for it."""
        self.when_settled: list[Callable[[], None]] = []
        self._happened = happened
        self._pending: Delta | None = None
        self._error: InferenceError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def done(self) -> Done | None:
        """The request's end; None before it."""
        return self.request.done

    @property
    def is_whole(self) -> bool:
        """Whether its answer has ended, here and not from outside."""
        done = self.done
        if done is None or done.fault is not None or self.request.handed_over:
            return False
        return done.finish_reason in FINISHED

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the usage is final; at once, if it is already."""
        if self.done is None:
            self.when_settled.append(callback)
        else:
            callback()

    def attach_capture(self, capture: Capture | None) -> None:
        """Pass the answer to the capture as well, if there is one. Call it before any delta."""
        if capture is not None:
            self.capture = capture
            self.on_settled(partial(self._end_capture, capture))

    def _end_capture(self, capture: Capture) -> None:
        request = self.request
        assert request.done is not None and request.total_s is not None
        if request.handed_over or request.done.finish_reason == GONE:
            capture.drop()
        else:
            capture.end(request.done, request.target.model, time.time() - request.total_s)

    def attach_structure(self, recording: StructureRecording | None) -> None:
        """As `attach_capture`, for a recording that is checked at the end."""
        if recording is not None:
            self.structure = recording
            self.on_settled(partial(self._end_structure, recording))

    def _end_structure(self, recording: StructureRecording) -> None:
        if self.is_whole:
            assert self.done is not None
            recording.end(self.done)
        else:
            recording.drop()

    # --- the reader ------------------------------------------------------------------------------

    async def read(self) -> Delta | Done:
        """The deltas since the last read, merged into one; after the last delta, the `Done`.

        Raises:
            InferenceError: the request failed, or was ended from outside.
            AnswerMissing: the answer was to be adopted, and no longer exists.
        """
        while self._pending is None and self.done is None and self._error is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._next()

    def _next(self) -> Delta | Done:
        if self._error is not None:
            raise self._error
        if self._pending is not None:
            delta, self._pending = self._pending, None
            return delta
        done = self.done
        assert done is not None
        if done.fault is not None:
            raise done.fault.error()
        if done.finish_reason == GONE:
            raise AnswerMissing
        return done

    # --- from outside ----------------------------------------------------------------------------

    def cancel(self, reason: str) -> None:
        """Abort the request wherever it runs or waits; `reason` becomes its finish reason."""
        if self.request.is_wanted:
            self._pending = None
            self._happened(self, self.request.cancel, reason)

    def end(self, error: InferenceError, *, handed_over: bool = False) -> None:
        """End the request from outside: the reader gets `error` at once, and the engine aborts.
        With `handed_over` another gateway has it now."""
        if self.done is None and self._error is None:
            self._error, self.request.handed_over = error, handed_over
            self.cancel(error.code)
            self.wake()

    def leave(self, error: InferenceError) -> None:
        """Leave the request to its engine, if that keeps the answer, for another gateway to adopt:
        the reader gets `error`. Otherwise nothing changes."""
        if self.request.state is RequestState.RUNNING:
            self._happened(self, self.request.leave)
            if self.request.handed_over:
                self._error, self._pending = error, None
                self.wake()

    # --- for `requests` --------------------------------------------------------------------------

    def push(self, delta: Delta) -> None:
        """Give the reader this output."""
        self._pending = delta if self._pending is None else self._pending.merged(delta)
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def stop_timer(self) -> None:
        """It waits no longer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
