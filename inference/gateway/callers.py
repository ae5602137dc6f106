"""Who asks, and what is left of the limits that hold for them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from inference.errors import (
    ClientDisconnected,
    InferenceError,
    PermissionDenied,
    RateLimitExceeded,
    RequestError,
)
from inference.gateway.exchange import Exchange
from inference.gateway.pacing import MAX_WAIT_S, Pacing
from inference.gateway.tick import Tick
from inference.grants import Ask, Directory, Grant, Limiter, Target
from inference.link.wire import Usage

NO_MODEL = Target("", "")
NOTHING = Ask(0, 0, 0)


class Callers:
    """Identifies the callers of exchanges, and counts what of theirs is refused."""

    def __init__(self, directory: Directory, limiter: Limiter) -> None:
        self._directory, self._limiter = directory, limiter
        self._pacing = Pacing()

    async def identify(self, exchange: Exchange) -> Grant:
        """The grant of the exchange's key, as of now.

        Ask again wherever something may have been waited for, such as the body: the key is looked
        up again only if that was so, for it may have been revoked meanwhile.

        Raises:
            InvalidApiKey, PermissionDenied, Unavailable: it may not infer.
        """
        if exchange.grant is None or exchange.checked is None or exchange.checked.over:
            grant = await self._directory.authenticate(exchange.api_key())
            if "inference" not in grant.scopes:
                raise PermissionDenied("This API key lacks the scope `inference`.")
            exchange.grant, exchange.checked = grant, Tick()
        return exchange.grant

    async def wait_turn(self, grant: Grant) -> None:
        """Hold up a tenant that sends mostly invalid requests.

        Raises:
            RateLimitExceeded: too many of its requests wait already.
        """
        wait_s = self._pacing.wait_s(grant.tenant_id, time.monotonic())
        if wait_s is None:
            raise RateLimitExceeded(
                f"Most of the last requests of tenant `{grant.tenant}` were invalid, so few of "
                "them are read at a time. Their errors say what is wrong with them.",
                retry_after_s=MAX_WAIT_S,
            )
        if wait_s:
            await asyncio.sleep(wait_s)

    async def count(self, exchange: Exchange, grant: Grant) -> None:
        """Count a request that generates nothing against the limits of requests.

        Raises:
            RateLimitExceeded: these are reached.
        """
        exchange.reservation = await self._limiter.reserve(exchange.id, grant, NO_MODEL, NOTHING)
        self._limiter.settle(exchange.id, Usage())

    def note_valid(self, grant: Grant) -> None:
        """A request was answered, or failed for no fault of its own."""
        self._pacing.note(grant.tenant_id, time.monotonic(), refused=False)

    async def note_invalid(self, exchange: Exchange, grant: Grant, error: RequestError) -> None:
        """A request failed by its own fault: it counts against the limits of requests, as it does
        already if it was reserved for.

        Raises:
            RateLimitExceeded: these are reached; this is its answer then.
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
            except InferenceError:  # what is wrong with the request is worth more to its sender
                return

    async def note_limits(self, exchange: Exchange) -> None:
        """For the headers: what is left of the limits, where nothing was reserved of them."""
        if exchange.grant is not None and exchange.reservation is None:
            await self.note_rooms(exchange)

    async def note_rooms(self, exchange: Exchange) -> None:
        """For the headers: what is left of the limits now, whatever was reserved and by whom."""
        if exchange.grant is None:
            return
        limits = exchange.grant.limits
        with suppress(InferenceError):  # the headers are not worth an answer
            if exchange.call is not None:
                model = exchange.call.model
                with suppress(InferenceError):
                    limits += (await self._directory.resolve(exchange.grant, model)).limits
            exchange.reservation = await self._limiter.look(limits)
