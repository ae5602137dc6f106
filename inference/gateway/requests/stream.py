"""One request in flight at the gateway: the merged output that its reader has not taken yet.

A slow reader gets one bigger delta instead of many, so nothing waits for it and nothing piles up
beyond the answer itself. A stream outlives its client: it is settled when its last engine says
`done` or is lost, and only then is its usage final.

It may run on several engines, one after another, and on none in between (`requests` does that);
the reader notices only the pause.

A stream that comes near the end of its reservation asks for more. If there is no more, it ends with
what was reserved, as `length`; what the engine generates until the cancel reaches it is billed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from inference.errors import InferenceError, RateLimitExceeded, Unavailable
from inference.gateway.fleet.engine_link import Leg
from inference.gateway.measuring.content import Capture
from inference.gateway.measuring.measures import OnEngine
from inference.gateway.requests.delivered import Delivered
from inference.gateway.requests.journey import Journey, Why
from inference.gateway.requests.order import Order
from inference.interfaces.limiter import Limiter
from inference.link.accounts import first_attempt
from inference.link.wire import GONE, LEFT, Cancel, Delta, Done, Fault, Wait
from inference.operations.estimate import EXTENSION_TOKENS

LOW_TOKENS = 128
"""A stream asks for more when fewer output tokens are left: generating them takes seconds, against
a round trip to Redis."""


class Gone(Exception):
    """The answer that was to be adopted no longer exists; nothing of it was read."""


class Carrier(Protocol):
    """Brings streams to engines; implemented by `requests.Requests`."""

    def begun(self, stream: Stream, leg: Leg) -> None:
        """The engine sends the first output of the stream's attempt."""
        ...

    def ended(self, stream: Stream, leg: Leg, done: Done) -> None:
        """The engine sent `done` for the stream's attempt."""
        ...

    def lost(self, stream: Stream, leg: Leg) -> None:
        """The link to the stream's engine ended."""
        ...

    def stopped(self, stream: Stream) -> None:
        """A stream that no engine has at the moment is to end."""
        ...

    def forgot(self, stream: Stream) -> None:
        """The stream's body is no longer kept."""
        ...

    def settled(self, stream: Stream) -> None:
        """The stream's usage is final."""
        ...


class Stream:
    """The mailbox of one request over all its attempts: engines' links push, one reader reads."""

    def __init__(
        self, order: Order, limiter: Limiter, carrier: Carrier, *, elapsed_s: float = 0.0
    ) -> None:
        """A stream whose order `grows` may generate more than was reserved, if more can then be
        reserved; any other is bounded by what the limits let each choice generate. `elapsed_s` is
        the time that the request spent at other gateways."""
        self.id, self.grant, self.target = order.request_id, order.grant, order.target
        self.reservation, self.started_at = order.reservation, order.started_at
        self.order: Order | None = order
        """None once it can't go to another engine any more: the body may be large."""
        self.kept = 0
        """Bytes of the body that are kept for a move while it runs."""
        self.journey: Journey | None = None
        """None as long as its first engine has it."""
        self.leg: Leg | None = None
        """The current attempt; None while it waits for an engine, and once it has ended."""
        self.attempt = first_attempt(order.turn) - 1
        """The highest attempt so far."""
        self.engine = ""
        """The id of the engine to which it was given last."""
        self.revision = ""
        self.measured: OnEngine | None = None
        """The histograms of that engine."""
        self.held_since: float | None = None
        """Monotonic time, while it is held for its first engine."""
        self.held_s = 0.0
        """How long it was held."""
        self.trace = order.trace
        """Its span, if it is traced."""
        self.capture: Capture | None = None
        """Records its answer, if its tenant keeps content."""
        self.done: Done | None = None
        self.total_s: float | None = None
        """Seconds from its arrival to its end."""
        self.limited: InferenceError | None = None
        """The limit that ended it early."""
        self.ended_as_seen = False
        """Settled with what was seen here, without an engine's `done`."""
        self.may_have_cost = False
        """An engine may have generated something for it."""
        self.elsewhere = False
        """Another gateway has it, or may adopt it: its limits are not settled here."""
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
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic() - elapsed_s
        self._ttft_s: float | None = None
        self._on_settled: list[Callable[[], None]] = []

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the usage is final; at once, if it is already."""
        if self.done is None:
            self._on_settled.append(callback)
        else:
            callback()

    def take_up(self, capture: Capture | None) -> None:
        """Pass the answer to the capture as well, if there is one. Call it before any delta."""
        if capture is not None:
            self.capture = capture
            self.on_settled(partial(self._give_up, capture))

    def _give_up(self, capture: Capture) -> None:
        assert self.done is not None and self.total_s is not None
        if self.elsewhere or self.done.finish_reason == GONE:  # another gateway has it, or none
            capture.drop()
        else:
            capture.end(self.done, self.target.model, time.time() - self.total_s)

    async def read(self) -> Delta | Done:
        """The deltas since the last read, merged into one; after the last delta, the `Done`.

        Raises:
            InferenceError: the request failed, or was ended from outside.
            Gone: the answer was to be adopted, and no longer exists.
        """
        while self._pending is None and self.done is None and self._fault is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._take()

    def cancel(self, reason: str) -> None:
        """Abort the request wherever it runs or waits; `reason` becomes its finish reason."""
        if self.done is None and self._cancelled is None:
            self._cancelled = reason
            self._pending = None
            self._stop(reason)

    def end(self, error: InferenceError, *, elsewhere: bool = False) -> None:
        """End the request from outside: the reader gets `error` at once, and the engine aborts.
        With `elsewhere` another gateway has it now."""
        if self.done is None and self._fault is None:
            self._fault, self.elsewhere = error, elsewhere
            self.cancel(error.code)
            self._wake()

    def leave(self, error: InferenceError) -> bool:
        """Leave the request to its engine, for another gateway to adopt; the reader gets `error`.
        False if that is not possible, and then nothing changed."""
        if not self.is_wanted or self.leg is None or not self.leg.keeps:
            return False
        self._fault, self._pending, self.elsewhere = error, None, True
        self._cancelled = error.code
        self._stop(LEFT)
        self._wake()
        return True

    # --- for the link of its engine (engine_link.Receiver) ---------------------------------------

    def begun(self, leg: Leg) -> None:
        """The engine sends the first output of this attempt."""
        self.may_have_cost = True
        self._carrier.begun(self, leg)

    def ended(self, leg: Leg, done: Done) -> None:
        """The engine sent `done` for this attempt."""
        self._carrier.ended(self, leg, leg.clamped(done))

    def lost(self, leg: Leg) -> None:
        """The link to the engine ended."""
        self.may_have_cost = True
        self._carrier.lost(self, leg)

    # --- for the carrier -------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request arrived."""
        return time.monotonic() - self._began

    @property
    def is_wanted(self) -> bool:
        """Whether it was neither cancelled nor has ended."""
        return self._cancelled is None and self.done is None

    @property
    def ttft_s(self) -> float | None:
        """Seconds to its first delta; None before that."""
        return self._ttft_s

    def may_leave(self, leg: Leg, why: Why) -> bool:
        """Whether the request may go from this engine to another."""
        if self.order is None or not self.is_wanted:
            return False
        return self.journey is None or self.journey.may_leave(leg, why)

    def stay(self) -> None:
        """Rule out moving to another engine from now on, and free what is kept for that."""
        if self.order is not None:
            self.order = None
            self._carrier.forgot(self)
            self.delivered.forget()

    def given_to(self, leg: Leg) -> None:
        """The engine of this attempt has the request from now on."""
        self.leg, self.measured = leg, leg.link.measured
        self.engine, self.revision = leg.link.engine.id, leg.link.engine.info.revision

    def waits(self, wait: Wait) -> None:
        """Pass on what the request waits for: reported by an engine, or that it waits for one."""
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
            reserved = self.reservation.output_tokens
            if self._grows and reserved is not None and self._extending is None:
                self._stay_within(reserved)

    def settle(self, done: Done) -> None:
        """End the stream with this `done`."""
        if self._bound is not None and self._reached(self._bound, done):
            self.limited = RateLimitExceeded(
                f"The answer was cut off at {self._bound} tokens, the most that the rate "
                "limits allow for a request that sets neither `stream` nor `max_tokens`."
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
        """No engine will send `done`, so end the stream with the usage that was seen here."""
        usage = self.delivered.usage(self._ttft_s, self.elapsed_s)
        fault = None if error is None else Fault.of(error)
        self.ended_as_seen = True
        self.settle(Done(self.id, usage, finish_reason, fault=fault, attempt=self.attempt))

    @staticmethod
    def _reached(bound: int, done: Done) -> bool:
        """Whether the bound ended the answer, and not the model's context."""
        return done.finish_reason == "length" and done.usage.completion_tokens >= bound

    # --- limits ----------------------------------------------------------------------------------

    def _stay_within(self, reserved: int) -> None:
        left = reserved - self.delivered.completion_tokens
        if left <= 0 or (left < LOW_TOKENS and not self._refused_early):
            self._extending = asyncio.create_task(self._extend(reserved))

    async def _extend(self, reserved: int) -> None:
        try:
            await self._limiter.extend(self.reservation, EXTENSION_TOKENS)
            self._refused_early = False
        except Unavailable:  # the counters can't refuse; what it generates is counted at its end
            self.reservation.output_tokens = reserved + EXTENSION_TOKENS
        except InferenceError as refusal:
            self._refused_early = True
            if self.delivered.completion_tokens >= reserved:
                self._cut(refusal)
        finally:
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

    def _take(self) -> Delta | Done:
        if self._fault is not None:
            raise self._fault
        if self._pending is not None:
            delta, self._pending = self._pending, None
            return delta
        assert self.done is not None
        if self.done.fault is not None:
            raise self.done.fault.error()
        if self.done.finish_reason == GONE:
            raise Gone
        return self.done

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
