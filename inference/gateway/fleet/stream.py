"""One request in flight at the gateway: what the engine sent and the reader hasn't taken, merged.

A slow reader finds one bigger delta instead of many, so nothing waits for it and nothing piles up
beyond the answer itself. A stream outlives its client: it is settled when the engine says `done`
or is lost, and only then are its figures final.

A stream that comes near the end of its reservation asks for more. Where there is no more, it ends
with what was reserved, as `length`; what the engine generated until it heard of that is billed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from inference.errors import EngineLost, InferenceError, RateLimitExceeded, Unavailable
from inference.gateway.fleet.dispatches import Bounds
from inference.grants import Grant, Limiter, Reservation, Target
from inference.link.wire import Cancel, Delta, Done, Fault, Usage, Wait
from inference.operations.estimate import EXTENSION_TOKENS

LOW_TOKENS = 128
"""It asks when less than that is left: seconds of generating, against a round trip to Redis."""

Watch = Callable[[Wait], None]
"""Told what a request waits for, whenever that changes."""


class Stream:
    """The mailbox of one attempt of a request: the engine's link pushes, one reader reads."""

    def __init__(
        self,
        id: str,
        grant: Grant,
        target: Target,
        *,
        engine_id: str,
        reservation: Reservation,
        limiter: Limiter,
        grows: bool,
        bound: int | None,
        most: Bounds,
        post: Callable[[Cancel], None],
        settled: Callable[[Stream], None],
        watch: Watch | None = None,
        attempt: int = 1,
    ) -> None:
        """`post` sends to the engine; `settled` is called once, when the figures are final; `watch`
        whenever the request, still without output, waits for something else.

        A stream that `grows` may generate more than was reserved, if more can be reserved; `bound`
        is what the limits let each choice of any other one generate. An engine that reports more
        than `most` is believed up to that.
        """
        self.id, self.grant, self.target, self.engine_id = id, grant, target, engine_id
        self.attempt = attempt
        self.done: Done | None = None
        self.reservation = reservation
        self.limited: InferenceError | None = None
        """The limit that ended it before its time."""
        self._limiter = limiter
        self._grows, self._bound, self._most = grows, bound, most
        self._extending: asyncio.Task[None] | None = None
        self._refused_early = False
        self._post, self._settled, self._watch = post, settled, watch
        self._pending: Delta | None = None
        self._fault: InferenceError | None = None
        self._cancelled: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._began = time.monotonic()
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self._ttft_s: float | None = None

    async def read(self) -> Delta | Done:
        """The deltas since the last read as one; after them, how the request ended.

        Raises:
            InferenceError: the request failed, or was ended from outside.
        """
        while (ready := self._take()) is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return ready

    def cancel(self, reason: str) -> None:
        """Abort it in the engine, if it still runs; `reason` becomes its finish reason."""
        if self.done is None and self._cancelled is None:
            self._cancelled = reason
            self._pending = None
            self._post(Cancel(self.id, reason, self.attempt))

    def end(self, error: InferenceError) -> None:
        """End it from outside: the reader gets `error` at once, and the engine aborts."""
        if self.done is None and self._fault is None:
            self._fault = error
            self.cancel(error.code)
            self._wake()

    def waits(self, wait: Wait) -> None:
        """The engine said what it waits for."""
        if self._watch is not None and self._ttft_s is None:
            self._watch(wait)

    def push(self, delta: Delta) -> None:
        """Take a delta from the engine."""
        if self._ttft_s is None:
            self._ttft_s = time.monotonic() - self._began
        self._prompt_tokens += delta.prompt_tokens
        self._cached_tokens += delta.cached_tokens
        self._completion_tokens += delta.tokens
        if self._cancelled is None:
            self._pending = delta if self._pending is None else self._pending.merged(delta)
            self._wake()
            self._stay_within_limits()

    def settle(self, done: Done) -> None:
        """Take the engine's last word."""
        done = self._believed(done, self._most)
        if self._bound is not None and self._reached(self._bound, done):
            self.limited = RateLimitExceeded(
                f"The answer was ended at {self._bound} tokens, which is what the limits allow an "
                "answer that neither streams nor sets `max_tokens`."
            )
        if self.limited is not None:
            done = msgspec.structs.replace(done, finish_reason="length", fault=None)
        self.done = done
        self._wake()
        self._settled(self)

    def lose(self) -> None:
        """The engine is gone; its last word is what was seen of it."""
        usage = Usage(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            ttft_s=self._ttft_s,
            total_s=time.monotonic() - self._began,
        )
        lost = EngineLost(
            f"The engine `{self.engine_id}` was lost before this answer was complete."
        )
        self.settle(Done(self.id, usage, fault=Fault.of(lost), attempt=self.attempt))

    @staticmethod
    def _believed(done: Done, most: Bounds) -> Done:
        """What it says is reserved in its place, so it could use up somebody's budget."""
        usage = most.clamped(done.usage)
        return done if usage is done.usage else msgspec.structs.replace(done, usage=usage)

    @staticmethod
    def _reached(bound: int, done: Done) -> bool:
        """Else it was the model's context that ended it."""
        return done.finish_reason == "length" and done.usage.completion_tokens >= bound

    def _stay_within_limits(self) -> None:
        reserved = self.reservation.output_tokens
        if not self._grows or reserved is None or self._extending is not None:
            return
        left = reserved - self._completion_tokens
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
            if self._completion_tokens >= reserved:
                self._cut(refusal)
        self._extending = None

    def _cut(self, refusal: InferenceError) -> None:
        if self.done is None and self._cancelled is None:
            self.limited = refusal
            self._cancelled = refusal.code
            self._post(Cancel(self.id, "length", self.attempt))

    def _take(self) -> Delta | Done | None:
        if self._fault is not None:
            raise self._fault
        if self._pending is not None:
            delta, self._pending = self._pending, None
            return delta
        if self.done is not None and self.done.fault is not None:
            raise self.done.fault.error()
        return self.done

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
