"""One request in flight at the gateway: what the engine sent and the reader hasn't taken, merged.

A slow reader finds one bigger delta instead of many, so nothing waits for it and nothing piles up
beyond the answer itself. A stream outlives its client: it is settled when the engine says `done`
or is lost, and only then are its figures final.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from inference.errors import EngineLost, InferenceError
from inference.grants import Grant, Target, UsageRecord
from inference.wire import Cancel, Delta, Done, Fault, Usage


class Stream:
    """The mailbox of one request: the engine's link pushes, one reader reads."""

    def __init__(
        self,
        id: str,
        grant: Grant,
        target: Target,
        *,
        engine_id: str,
        post: Callable[[Cancel], None],
        settled: Callable[[Stream], None],
    ) -> None:
        """`post` sends to the engine; `settled` is called once, when the figures are final."""
        self.id, self.grant, self.target, self.engine_id = id, grant, target, engine_id
        self.done: Done | None = None
        self._post, self._settled = post, settled
        self._pending: Delta | None = None
        self._fault: InferenceError | None = None
        self._cancelled: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._started_at = datetime.now(UTC)
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
            self._post(Cancel(self.id, reason))

    def end(self, error: InferenceError) -> None:
        """End it from outside: the reader gets `error` at once, and the engine aborts."""
        if self.done is None and self._fault is None:
            self._fault = error
            self.cancel(error.code)
            self._wake()

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

    def settle(self, done: Done) -> None:
        """Take the engine's last word."""
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
        self.settle(Done(self.id, usage, fault=Fault.of(lost)))

    def record(self) -> UsageRecord:
        """The usage of a settled stream."""
        assert self.done is not None
        fault = self.done.fault
        return UsageRecord(
            id=self.id,
            started_at=self._started_at,
            tenant_id=self.grant.tenant_id,
            key_id=self.grant.key_id,
            model=self.target.model,
            base_model=self.target.base_model,
            version_id=self.target.version_id,
            engine_id=self.engine_id,
            usage=self.done.usage,
            finish_reason=self._cancelled
            or (fault.code if fault else self.done.finish_reason or "stop"),
        )

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
