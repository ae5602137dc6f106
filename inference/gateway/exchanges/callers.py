"""Authenticates callers, and reports what is left of their limits."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from inference.errors import ClientDisconnected, InferenceError, RateLimitExceeded, RequestError
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.loop_iteration import LoopIteration
from inference.interfaces.directory import INFERENCE, Directory, Grant, ResolvedTarget
from inference.interfaces.limiter import Limiter, ReservationRequest
from inference.link.accounts import Usage
from inference.pacing import MAX_WAIT_S, Pacing

NO_MODEL = ResolvedTarget("", "")
NOTHING = ReservationRequest(0, 0, 0)


class Callers:
    """Identifies the callers of exchanges, and counts their refused requests."""

    def __init__(self, directory: Directory, limiter: Limiter) -> None:
        self._directory, self._limiter = directory, limiter
        self._pacing = Pacing()

    async def identify(self, exchange: InferenceExchange) -> Grant:
        """The grant of the exchange's key, as of now.

        Call it again after every await, such as that of the body, because the key may have been
        revoked meanwhile; it is looked up again only if another task may have run.

        Raises:
            InvalidApiKey, PermissionDenied, Unavailable: the key may not infer.
        """
        if exchange.grant is None or exchange.checked is None or exchange.checked.is_over:
            grant = await self._directory.authenticate(exchange.api_key())
            grant.require(INFERENCE)
            exchange.grant, exchange.checked = grant, LoopIteration()
        return exchange.grant

    async def wait_turn(self, grant: Grant) -> None:
        """Delay the request if its tenant sends mostly invalid ones.

        Raises:
            RateLimitExceeded: too many of the tenant's requests wait already.
        """
        wait_s = self._pacing.wait_s(grant.tenant_id, time.monotonic())
        if wait_s is None:
            raise RateLimitExceeded(
                f"Most recent requests of tenant `{grant.tenant}` were invalid, so its "
                "requests are throttled. Fix the errors that they returned.",
                retry_after_s=MAX_WAIT_S,
            )
        if wait_s:
            await asyncio.sleep(wait_s)

    async def count(self, exchange: InferenceExchange, grant: Grant) -> None:
        """Count a request that generates nothing against the request limits.

        Raises:
            RateLimitExceeded: a limit is reached.
        """
        exchange.reservation = await self._limiter.reserve(exchange.id, grant, NO_MODEL, NOTHING)
        self._limiter.settle(exchange.id, Usage())

    def note_valid(self, grant: Grant) -> None:
        """A request was answered, or failed through no fault of its own."""
        self._pacing.note(grant.tenant_id, time.monotonic(), refused=False)

    async def note_invalid(
        self, exchange: InferenceExchange, grant: Grant, error: RequestError
    ) -> None:
        """A request failed through its own fault: count it against the request limits, unless it
        has a reservation, which counted it already.

        Raises:
            RateLimitExceeded: a limit is reached; this replaces the request's own error.
        """
        if isinstance(error, ClientDisconnected):
            return
        self._pacing.note(grant.tenant_id, time.monotonic(), refused=True)
        if exchange.reservation is None:
            try:
                await self._limiter.reserve(exchange.id, grant, NO_MODEL, NOTHING)
                self._limiter.settle(exchange.id, Usage())
            except RateLimitExceeded:
                raise
            except InferenceError:  # the request's own error is more useful to its sender
                return

    async def note_limits(self, exchange: InferenceExchange) -> None:
        """Look up what is left of the limits, for the headers, unless there is a reservation."""
        if exchange.grant is not None and exchange.reservation is None:
            await self.note_rooms(exchange)

    async def note_rooms(self, exchange: InferenceExchange) -> None:
        """Look up what is left of the limits, for the headers, even if there is a reservation."""
        if exchange.grant is None:
            return
        limits = exchange.grant.limits
        with suppress(InferenceError):  # missing headers are better than a failed answer
            if exchange.call is not None:
                model = exchange.call.model
                with suppress(InferenceError):
                    limits += (await self._directory.resolve(exchange.grant, model)).limits
            exchange.reservation = await self._limiter.peek(limits)
