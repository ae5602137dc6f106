"""Settles a request's limits and records its measures when it ends.

A reservation is kept through all attempts of its request and settled once, by the last attempt.
Journal reports of lower attempts never settle it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Container

from inference.gateway.measuring.measures import Ended, Measures
from inference.gateway.requests.stream import Stream
from inference.interfaces.limiter import Limiter
from inference.link.accounts import LedgerEntry
from inference.link.wire import GONE, Done

MAX_UNBILLED = 100_000
"""Bounds `_unbilled`. A request dropped from it may be settled twice, which changes nothing."""


class Settling:
    """Settles the requests of one gateway."""

    def __init__(self, limiter: Limiter, measures: Measures) -> None:
        self._limiter, self._measures = limiter, measures
        self._unbilled: OrderedDict[str, int] = OrderedDict()
        """The last attempt of each request settled here, by id, until the engine's journal reports
        that attempt or a higher one."""

    def settled(self, stream: Stream, done: Done, *, refused: bool) -> None:
        """The stream's usage is final; `refused`: no engine took it."""
        self._settle_limits(stream, done, refused=refused)
        if stream.engine:
            if not stream.elsewhere and done.finish_reason != GONE:
                self._measure(stream, done)
            self._unbilled[stream.id] = stream.attempt
        if len(self._unbilled) > MAX_UNBILLED:
            self._unbilled.popitem(last=False)

    def reported(self, entry: LedgerEntry, here: Container[str]) -> None:
        """An engine's journal reports how this attempt ended.

        The limits of another gateway's requests are settled here, because that gateway may have
        died. This gateway's requests are settled by their streams, whatever lower attempts report;
        `here` has those that are not settled yet.
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
