"""Limits: what is reserved for a request, and what is left."""

from __future__ import annotations

from typing import Protocol

import msgspec

from inference.interfaces.directory import Grant, Limits, ResolvedTarget, TokenPrice
from inference.link.accounts import Usage


class ReservationRequest(msgspec.Struct, frozen=True):
    """What to reserve for a request.

    It wants `output_tokens` over all choices; if fewer are left it gets those, unless they are
    fewer than `least_output_tokens`: then it is refused. `quantities` is what it uses besides
    tokens and the request itself, by the name under which a kind of limit counts it, such as
    `images`.
    """

    prompt_tokens: int
    output_tokens: int
    least_output_tokens: int
    quantities: dict[str, int] = {}


class Room(msgspec.Struct, frozen=True):
    """How much of a limit is left, for the `x-ratelimit` headers; `reset_s` is from now."""

    limit: int
    remaining: int
    reset_s: float


class Reservation(msgspec.Struct):
    """What was reserved for the request `id`; `Limiter.extend` increases it.

    `output_tokens` may be generated, None if nothing limits tokens. `rooms` is keyed by the end of
    the header's name (`requests`, `tokens`), each of the scope that has the least left.
    """

    id: str
    output_tokens: int | None = None
    rooms: dict[str, Room] = {}


class Limiter(Protocol):
    """Limits over all scopes: reserved before a request is dispatched, settled after it ended.

    The first call that settles or releases a reservation counts; later ones for the same id change
    nothing. A reservation of a process that died is returned when its lease expires.
    """

    async def reserve(
        self, id: str, grant: Grant, target: ResolvedTarget, ask: ReservationRequest
    ) -> Reservation:
        """Reserve in every scope at once, or in none.

        Raises:
            RateLimitExceeded, InsufficientQuota: a limit is reached; nothing was reserved.
            Unavailable: the counters cannot be reached and the settings say to refuse.
        """
        ...

    async def extend(self, reservation: Reservation, output_tokens: int) -> None:
        """Reserve that many more output tokens, or as many as are left (at least one).

        Mutates the reservation.

        Raises:
            RateLimitExceeded, InsufficientQuota: none are left; nothing changed.
        """
        ...

    async def take_over(self, id: str, grant: Grant, target: ResolvedTarget) -> Reservation:
        """Continue with what another gateway reserved for this request. If that was given back
        already, nothing is reserved, so that the answer is not counted twice. Never raises."""
        ...

    def hand_over(self, id: str) -> None:
        """Another gateway continues the request, or may do so: this one does not settle it."""
        ...

    def settle(self, id: str, usage: Usage | None, price: TokenPrice | None = None) -> None:
        """The request ended: replace what was reserved by what was used, free its concurrency slot.

        If `usage` is None, it is unknown and the estimate stays. `price` is that of its bill; None:
        the one that was reserved. Returns at once; never raises.
        """
        ...

    def release(self, id: str) -> None:
        """The request was never started: give everything back. Returns at once; never raises."""
        ...

    async def peek(self, limits: tuple[Limits, ...]) -> Reservation:
        """The current `rooms` of these limits; reserves nothing."""
        ...
