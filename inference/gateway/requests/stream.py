"""One request in flight at the gateway: what engines sent and the reader hasn't taken, merged.

A slow reader finds one bigger delta instead of many, so nothing waits for it and nothing piles up
beyond the answer itself. A stream outlives its client: it is settled when its last engine says
`done` or is lost, and only then are its figures final.

It may run on several engines, one after another, and on none in between (`requests` sees to that);
of this its reader notices the pause alone.

A stream that comes near the end of its reservation asks for more. Where there is no more, it ends
with what was reserved, as `length`; what the engine generated until it heard of that is billed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from inference.errors import InferenceError, RateLimitExceeded, Unavailable
from inference.gateway.measuring.measures import OnEngine
from inference.gateway.requests.delivered import Delivered
from inference.gateway.requests.leg import Leg
from inference.gateway.requests.order import Order
from inference.gateway.stored.content import Capture
from inference.grants import Limiter
from inference.link.wire import (
    GONE,
    LEFT,
    Cancel,
    Delta,
    Done,
    Fault,
    Usage,
    Wait,
    first_attempt,
)
from inference.operations.estimate import EXTENSION_TOKENS

if TYPE_CHECKING:
    from inference.gateway.fleet.engine_link import EngineLink
    from inference.gateway.requests.journey import Journey

LOW_TOKENS = 128
"""It asks when less than that is left: seconds of generating, against a round trip to Redis."""


class Gone(Exception):
    """The answer that was to be adopted is not there any more; nothing of it was read."""


class Carrier(Protocol):
    """Who brings streams to engines; `requests.Requests`."""

    def stopped(self, stream: Stream) -> None:
        """A stream that no engine has at the moment is to end."""
        ...

    def forgot(self, stream: Stream) -> None:
        """Its body is not kept any longer."""
        ...

    def settled(self, stream: Stream) -> None:
        """Its figures are final."""
        ...


class Stream:
    """The mailbox of one request over all its attempts: engines' links push, one reader reads."""

    def __init__(
        self, order: Order, limiter: Limiter, carrier: Carrier, *, elapsed_s: float = 0.0
    ) -> None:
        """A stream that `grows` may generate more than was reserved, if more can be reserved; any
        other one is bounded by what the limits let each choice generate. `elapsed_s` is what other
        gateways had of it."""
        self.id, self.grant, self.target = order.request_id, order.grant, order.target
        self.reservation, self.started_at = order.reservation, order.started_at
        self.order: Order | None = order
        """None once it can't go to another engine any more: the body may be large."""
        self.kept = 0
        """Bytes of the body that are kept for that while it runs."""
        self.journey: Journey | None = None
        """None as long as its first engine has it."""
        self.leg: Leg | None = None
        """Where it runs; None while it waits for an engine, and in the end."""
        self.attempt = first_attempt(order.turn) - 1
        """The highest so far."""
        self.engine = ""
        """The id of the engine that was given it last."""
        self.revision = ""
        self.measured: OnEngine | None = None
        """Of that engine."""
        self.held_since: float | None = None
        """Of the monotonic clock, while it is held for its first engine; and how long it was."""
        self.held_s = 0.0
        self.trace = order.trace
        """Its span, if it is traced."""
        self.capture: Capture | None = None
        """Takes up its answer, where that is kept."""
        self.done: Done | None = None
        self.total_s: float | None = None
        """When it was done."""
        self.limited: InferenceError | None = None
        """The limit that ended it before its time."""
        self.ended_as_seen = False
        """No engine said the last word."""
        self.may_have_cost = False
        """Some engine may have generated something of it."""
        self.elsewhere = False
        """Another gateway has it, or may come for it: its limits are not settled here."""
        self.delivered = Delivered(
            order.choices, logprobs=bool(order.logprobs), keeps=order.grace_s > 0
        )
        self._limiter, self._carrier = limiter, carrier
        self._grows, self._bound, self._watch = order.grows, order.max_tokens, order.watch
        self._extending: asyncio.Task[None] | None = None
        self._refused_early = False
        self._pending: Delta | None = None
        self._fault: InferenceError | None = None
        self._cancelled: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._began = time.monotonic() - elapsed_s
        self._ttft_s: float | None = None
        self._on_settled: list[Callable[[], None]] = []

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` when its figures are final; now, if they are."""
        if self.done is None:
            self._on_settled.append(callback)
        else:
            callback()

    def take_up(self, capture: Capture | None) -> None:
        """From its beginning on, what is said goes to the capture as well, if there is one."""
        if capture is not None:
            self.capture = capture
            self.on_settled(partial(self._give_up, capture))

    def _give_up(self, capture: Capture) -> None:
        assert self.done is not None and self.total_s is not None
        if self.elsewhere or self.done.finish_reason == GONE:  # another gateway's, or nobody's
            capture.drop()
        else:
            capture.end(self.done, self.target.model, time.time() - self.total_s)

    async def read(self) -> Delta | Done:
        """The deltas since the last read as one; after them, how the request ended.

        Raises:
            InferenceError: the request failed, or was ended from outside.
            Gone: it was to be adopted, and is not there.
        """
        while (ready := self._take()) is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return ready

    def cancel(self, reason: str) -> None:
        """Abort it wherever it runs or waits; `reason` becomes its finish reason."""
        if self.done is None and self._cancelled is None:
            self._cancelled = reason
            self._pending = None
            self._stop(reason)

    def end(self, error: InferenceError, *, elsewhere: bool = False) -> None:
        """End it from outside: the reader gets `error` at once, and the engine aborts. With
        `elsewhere` another gateway has it now."""
        if self.done is None and self._fault is None:
            self._fault, self.elsewhere = error, elsewhere
            self.cancel(error.code)
            self._wake()

    def leave(self, error: InferenceError) -> bool:
        """Leave it to its engine, for another gateway to come for it; the reader gets `error`.
        False: it can't be left."""
        if not self.is_wanted or self.leg is None or not self.leg.keeps:
            return False
        self._fault, self._pending, self.elsewhere = error, None, True
        self._cancelled = error.code
        self._stop(LEFT)
        self._wake()
        return True

    # --- who brings it to engines ----------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Since it came."""
        return time.monotonic() - self._began

    @property
    def is_wanted(self) -> bool:
        """Nobody has ended it."""
        return self._cancelled is None and self.done is None

    @property
    def ttft_s(self) -> float | None:
        """When its first delta came; None before."""
        return self._ttft_s

    def stay(self) -> None:
        """Whatever becomes of its engine, it goes to no other one."""
        if self.order is not None:
            self.order = None
            self._carrier.forgot(self)
            self.delivered.forget()

    def given_to(self, link: EngineLink) -> None:
        """This engine has it from now on."""
        self.engine, self.measured = link.engine.id, link.measured
        self.revision = link.engine.info.revision

    def waits(self, wait: Wait) -> None:
        """What it waits for: an engine said so, or it waits for an engine."""
        if self._watch is not None and (self.leg is None or not self.leg.has_begun):
            self._watch(wait)

    def push(self, delta: Delta) -> None:
        """Take a delta from the engine."""
        if self._ttft_s is None:
            self._ttft_s = self.elapsed_s
        delta = self.delivered.add(delta)
        if self.order is not None and not self.delivered.can_move:
            self.stay()
        if self.capture is not None:
            self.capture.add(delta)
        if self._cancelled is None:
            self._pending = delta if self._pending is None else self._pending.merged(delta)
            self._wake()
            self._stay_within_limits()

    def settle(self, done: Done) -> None:
        """Take the last word on it."""
        if self._bound is not None and self._reached(self._bound, done):
            self.limited = RateLimitExceeded(
                f"The answer was ended at {self._bound} tokens, which is what the limits allow an "
                "answer that neither streams nor sets `max_tokens`."
            )
        if self.limited is not None:
            done = msgspec.structs.replace(done, finish_reason="length", fault=None)
        self.stay()
        self.done, self.leg = done, None
        self.total_s = self.elapsed_s
        self._wake()
        self._carrier.settled(self)
        for tell in self._on_settled:
            tell()

    def settle_as_seen(self, finish_reason: str | None, error: InferenceError | None) -> None:
        """No engine will say a last word, so it is what was seen of the answer."""
        usage = Usage(
            prompt_tokens=self.delivered.prompt_tokens,
            cached_tokens=self.delivered.cached_tokens,
            completion_tokens=self.delivered.completion_tokens,
            ttft_s=self._ttft_s,
            total_s=self.elapsed_s,
        )
        fault = None if error is None else Fault.of(error)
        self.ended_as_seen = True
        self.settle(Done(self.id, usage, finish_reason, fault=fault, attempt=self.attempt))

    @staticmethod
    def _reached(bound: int, done: Done) -> bool:
        """Else it was the model's context that ended it."""
        return done.finish_reason == "length" and done.usage.completion_tokens >= bound

    # --- limits ----------------------------------------------------------------------------------

    def _stay_within_limits(self) -> None:
        reserved = self.reservation.output_tokens
        if not self._grows or reserved is None or self._extending is not None:
            return
        left = reserved - self.delivered.completion_tokens
        if left <= 0 or (left < LOW_TOKENS and not self._refused_early):
            self._extending = asyncio.create_task(self._extend(reserved))

    async def _extend(self, reserved: int) -> None:
        try:
            await self._limiter.extend(self.reservation, EXTENSION_TOKENS)
            self._refused_early = False
        except Unavailable:  # nobody can say no; what it generates is counted at its end
            self.reservation.output_tokens = reserved + EXTENSION_TOKENS
        except InferenceError as refusal:
            self._refused_early = True
            if self.delivered.completion_tokens >= reserved:
                self._cut(refusal)
        self._extending = None

    def _cut(self, refusal: InferenceError) -> None:
        if self.is_wanted:
            self.limited = refusal
            self._cancelled = refusal.code
            self._stop("length")

    def _stop(self, reason: str) -> None:
        self.stay()
        if self.leg is None:
            self._carrier.stopped(self)
        else:
            self.leg.link.post(Cancel(self.id, reason, self.leg.attempt))

    # --- the reader ------------------------------------------------------------------------------

    def _take(self) -> Delta | Done | None:
        if self._fault is not None:
            raise self._fault
        if self._pending is not None:
            delta, self._pending = self._pending, None
            return delta
        if self.done is None:
            return None
        if self.done.fault is not None:
            raise self.done.fault.error()
        if self.done.finish_reason == GONE:
            raise Gone
        return self.done

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
