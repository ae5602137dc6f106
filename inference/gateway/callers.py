"""Who asks, and what is left of the limits that hold for them."""

from __future__ import annotations

from contextlib import suppress

from inference.errors import InferenceError, PermissionDenied
from inference.gateway.exchange import Exchange
from inference.gateway.tick import Tick
from inference.grants import Directory, Grant, Limiter


class Callers:
    """Identifies the callers of exchanges."""

    def __init__(self, directory: Directory, limiter: Limiter) -> None:
        self._directory, self._limiter = directory, limiter

    async def identify(self, exchange: Exchange) -> Grant:
        """The grant of the exchange's key, as of now.

        Ask again wherever something may have been waited for, such as the body: the key is looked
        up again only if that was so, for it may have been revoked meanwhile.

        Raises:
            InvalidApiKey, PermissionDenied, Unavailable: it may not infer.
        """
        if exchange.grant is None or exchange.checked is None or exchange.checked.over:
            grant = await self._directory.authenticate(exchange.bearer())
            if "inference" not in grant.scopes:
                raise PermissionDenied("This API key lacks the scope `inference`.")
            exchange.grant, exchange.checked = grant, Tick()
        return exchange.grant

    async def note_limits(self, exchange: Exchange) -> None:
        """For the headers: what is left of the limits, where nothing was reserved of them."""
        if exchange.grant is None or exchange.reservation is not None:
            return
        limits = exchange.grant.limits
        with suppress(InferenceError):  # the headers are not worth an answer
            if exchange.model is not None:
                with suppress(InferenceError):
                    limits += (await self._directory.resolve(exchange.grant, exchange.model)).limits
            exchange.reservation = await self._limiter.look(limits)
