"""Settles a request's limits and records its measures when it ends.

A reservation is kept through all attempts of its request and settled once, by the last attempt.
Journal reports of lower attempts never settle it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from inference.gateway.measuring.measures import EndedRequest, Measures, OnEngine
from inference.gateway.requests.request import Request
from inference.gateway.requests.stream import Stream
from inference.interfaces.directory import TokenPrice
from inference.interfaces.limiter import Limiter
from inference.link.accounts import LedgerEntry, reservation_id, turn_of
from inference.link.wire import GONE, Done

MAX_UNREPORTED = 100_000
"""Bounds `_unreported`. A request dropped from it may be settled twice, which changes nothing."""


class Settling:
    """Settles the requests of one gateway."""

    def __init__(self, limiter: Limiter, measures: Measures) -> None:
        self._limiter, self._measures = limiter, measures
        self._unreported: OrderedDict[str, int] = OrderedDict()
        """The last attempt of each request settled here, by the id of its reservation, until the
        engine's journal reports that attempt or a higher one."""

    def settled(
        self, request: Request, done: Done, measured: OnEngine | None, *, refused: bool
    ) -> None:
        """The request's usage is final; `refused`: no engine took it. `measured` has the histograms
        of the engine that had it last."""
        self._settle_limits(request, done, refused=refused)
        if measured is not None:
            if not request.handed_over and done.finish_reason != GONE:
                self._measure(request, done, measured)
            self._unreported[request.reservation.id] = request.attempts
        if len(self._unreported) > MAX_UNREPORTED:
            self._unreported.popitem(last=False)

    def reported(self, entry: LedgerEntry, here: Mapping[str, Stream]) -> None:
        """An engine's journal reports how this attempt ended.

        The limits of another gateway's requests are settled here, because that gateway may have
        died. This gateway's requests are settled when they end, whatever lower attempts report;
        `here` has those that have not, by id.
        """
        id = reservation_id(entry.id, turn_of(entry.attempt))
        if (last := self._unreported.get(id)) is not None:
            if entry.attempt >= last:
                del self._unreported[id]
        elif (stream := here.get(entry.id)) is None or stream.request.reservation.id != id:
            self._limiter.settle(id, entry.usage, TokenPrice(*entry.account.price))

    def _settle_limits(self, request: Request, done: Done, *, refused: bool) -> None:
        reserved = request.reservation.id
        if request.handed_over:
            self._limiter.hand_over(reserved)
        elif done.finish_reason == GONE:
            self._limiter.settle(reserved, None)
        elif done.usage.prompt_tokens or not (request.is_estimated or refused):
            self._limiter.settle(reserved, done.usage, request.price)
        elif request.may_have_cost:
            self._limiter.settle(reserved, None)
        else:  # no engine ever took it
            self._limiter.release(reserved)

    def _measure(self, request: Request, done: Done, measured: OnEngine) -> None:
        error = done.fault is not None
        assert request.total_s is not None
        ended = EndedRequest(
            usage=done.usage,
            reported=not request.is_estimated,
            has_adapter=request.target.adapter is not None,
            completed=not error and done.finish_reason != "cancelled",
            ttft_s=request.ttft_s,
            total_s=request.total_s,
            trace_id="" if request.trace is None else request.trace.trace_id,
        )
        self._measures.ended(measured, ended)
