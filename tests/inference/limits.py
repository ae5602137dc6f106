"""A Limiter that counts reservations, for tests of the code that uses a limiter."""

from __future__ import annotations

import asyncio

from inference.errors import InferenceError, RateLimitExceeded, Unavailable
from inference.interfaces.directory import Grant, Limits, ResolvedTarget, TokenPrice
from inference.interfaces.limiter import Reservation, ReservationRequest, Room
from inference.link.accounts import Usage

NOTHING = ReservationRequest(0, 0, 0)


class Counted:
    """Takes output tokens from `tokens_left` (None: no limit) and remembers what was settled."""

    def __init__(self) -> None:
        self.tokens_left: int | None = None
        self.full = False
        """If set, every request is refused."""
        self.refusal: InferenceError = RateLimitExceeded(
            "Rate limit reached for tests.", retry_after_s=3
        )
        self.away = False
        self.answers = asyncio.Event()
        """While cleared, `extend` waits."""
        self.answers.set()
        self.open: dict[str, ReservationRequest] = {}
        self.settled: dict[str, Usage | None] = {}
        self.prices: dict[str, TokenPrice | None] = {}
        """The price with which each was settled."""
        self.offered: list[str] = []
        """Every id that `settle` was called with, whether reserved here or not."""
        self.released: list[str] = []
        self.extensions: list[int] = []
        self.looked: list[tuple[Limits, ...]] = []
        self.taken: list[str] = []
        self.handed_over: list[str] = []

    async def reserve(
        self, id: str, grant: Grant, target: ResolvedTarget, ask: ReservationRequest
    ) -> Reservation:
        if self.full:
            raise self.refusal
        granted = None if self.tokens_left is None else self._take(ask.output_tokens)
        if granted is not None and granted < ask.least_output_tokens:
            self.tokens_left = granted
            raise self.refusal
        self.open[id] = ask
        return Reservation(id, granted, self._rooms())

    async def extend(self, reservation: Reservation, output_tokens: int) -> None:
        await self.answers.wait()
        if self.away:
            raise Unavailable
        granted = self._take(output_tokens)
        if not granted:
            raise self.refusal
        assert reservation.output_tokens is not None
        reservation.output_tokens += granted
        self.extensions.append(granted)

    async def take_over(self, id: str, grant: Grant, target: ResolvedTarget) -> Reservation:
        self.open[id] = NOTHING
        self.taken.append(id)
        return Reservation(id, None if self.tokens_left is None else 0)

    def hand_over(self, id: str) -> None:
        del self.open[id]
        self.handed_over.append(id)

    def settle(self, id: str, usage: Usage | None, price: TokenPrice | None = None) -> None:
        self.offered.append(id)
        if self.open.pop(id, None) is not None:
            self.settled[id], self.prices[id] = usage, price

    def release(self, id: str) -> None:
        if self.open.pop(id, None) is not None:
            self.released.append(id)

    async def peek(self, limits: tuple[Limits, ...]) -> Reservation:
        self.looked.append(limits)
        return Reservation("", None, self._rooms())

    def _take(self, wanted: int) -> int:
        assert self.tokens_left is not None
        granted = min(wanted, self.tokens_left)
        self.tokens_left -= granted
        return granted

    def _rooms(self) -> dict[str, Room]:
        if self.tokens_left is None:
            return {}
        return {"requests": Room(100, 99, 0.6), "tokens": Room(1000, self.tokens_left, 90.0)}
