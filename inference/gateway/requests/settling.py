"""What follows from how a request ended: for its limits, and for what is measured.

Its reservation stays through all of its attempts, and is settled once, by the last one. What
engines' journals report of lower ones never ends it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Container

from inference.gateway.measuring.measures import Ended, Measures
from inference.gateway.requests.stream import Stream
from inference.grants import Limiter
from inference.link.wire import GONE, Done, LedgerEntry

MAX_UNBILLED = 100_000
"""Beyond it the oldest is settled twice, which changes nothing."""


class Settling:
    """Of one gateway's requests."""

    def __init__(self, limiter: Limiter, measures: Measures) -> None:
        self._limiter, self._measures = limiter, measures
        self._unbilled: OrderedDict[str, int] = OrderedDict()
        """Requests whose limits are settled here, until the engine's journal reports the attempt
        that they ended with, or a higher one."""

    def settled(self, stream: Stream, done: Done, *, refused: bool) -> None:
        """Its figures are final; `refused`: no engine took it."""
        self._settle_limits(stream, done, refused=refused)
        if stream.engine:
            if not stream.elsewhere and done.finish_reason != GONE:
                self._measure(stream, done)
            self._unbilled[stream.id] = stream.attempt
        if len(self._unbilled) > MAX_UNBILLED:
            self._unbilled.popitem(last=False)

    def reported(self, entry: LedgerEntry, here: Container[str]) -> None:
        """An engine's journal has how this attempt ended.

        Those that another gateway had taken are settled in the limits here: it may have died. Those
        of this one are settled by their stream, whatever lower attempts report; `here` are those
        that are not settled yet.
        """
        if entry.id not in here and entry.id not in self._unbilled:
            self._limiter.settle(entry.id, entry.usage)
        elif entry.attempt >= self._unbilled.get(entry.id, sys.maxsize):
            del self._unbilled[entry.id]

    def _settle_limits(self, stream: Stream, done: Done, *, refused: bool) -> None:
        reserved = stream.reservation.id
        if stream.elsewhere:
            self._limiter.hand_over(reserved)
        elif done.finish_reason == GONE:
            self._limiter.settle(reserved, None)
        elif done.usage.prompt_tokens or not (stream.ended_as_seen or refused):
            self._limiter.settle(reserved, done.usage)
        elif stream.may_have_cost:
            self._limiter.settle(reserved, None)
        else:  # no engine ever took it
            self._limiter.release(reserved)

    def _measure(self, stream: Stream, done: Done) -> None:
        assert stream.measured is not None
        error = done.fault is not None
        ended = Ended(
            usage=done.usage,
            reported=not stream.ended_as_seen,
            has_adapter=stream.target.adapter is not None,
            completed=not error and done.finish_reason != "cancelled",
            ttft_s=stream.ttft_s,
            total_s=stream.elapsed_s,
            trace_id="" if stream.trace is None else stream.trace.trace_id,
        )
        self._measures.ended(stream.measured, ended)
