"""The requests of one gateway that no engine has: held for their first engine, or moving to another
one. No event loop, no clock.

Rules
    1. Held requests are dispatched in order (`held`). Later requests of the same kind come after
       them.
    2. Moving requests go before all held ones, in the order in which they lost their engines.
    3. All are tried again when something happens that may allow it (an engine joins, or has begun
       or read enough of what it was sent; revisions or adapters change), and only then: no engine's
       statistics do. Of requests that need the same only the first is tried, so waiting costs the
       same however many different requests wait.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from inference.gateway.requests.held import HeldRequest, HeldRequests, Holding
from inference.gateway.requests.request import Request


class Waiting:
    """The requests that wait for an engine, in order."""

    def __init__(self, holding: Holding) -> None:
        self._held = HeldRequests(holding)
        self._requests: dict[str, Request] = {}
        """All of them, by id."""
        self._moving: dict[str, Request] = {}
        """In the order in which they lost their engines."""
        self._to_try: deque[Request] = deque()
        """The rest of the round that is under way."""
        self._in_vain: set[Hashable] = set()
        """What requests tried in this round needed in vain."""
        self._again = False
        """Whether another round has to follow."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def by_base_model(self) -> dict[str, int]:
        """Their numbers, by base model."""
        moving = Counter(request.target.base_model for request in self._moving.values())
        return dict(moving + Counter(self._held.by_base_model))

    def blocks(self, kind: Hashable) -> bool:
        """Whether a request of this kind is held, so that a new one has to wait behind it."""
        return self._held.has_kind(kind)

    def hold(self, request: Request, kind: Hashable) -> None:
        """Hold a request.

        Raises:
            NoEngine: too many are held already, in total or of its tenant; nothing changed.
        """
        order = request.order
        assert order is not None
        self._held.add(
            HeldRequest(
                id=request.id,
                tenant=order.grant.tenant,
                base_model=order.target.base_model,
                kind=kind,
                size=len(order.body),
                lane=order.lane,
            )
        )
        self._requests[request.id] = request
        self._again |= bool(self._to_try)  # the round that is under way has not seen it

    def move(self, request: Request) -> None:
        """A request lost its engine."""
        self._requests[request.id] = self._moving[request.id] = request

    def remove(self, request: Request) -> bool:
        """A request waits no longer; returns whether it was held."""
        self._requests.pop(request.id, None)
        self._moving.pop(request.id, None)
        return self._held.remove(request.id)

    def set_kind(self, request: Request, kind: Hashable) -> None:
        """What a held request needs may have changed."""
        self._held.set_kind(request.id, kind)

    def kind_of(self, request: Request) -> Hashable:
        """The kind of a held request."""
        return self._held[request.id].kind

    def held(self) -> list[Request]:
        """All held requests, in order."""
        return [self._requests[id] for id in self._held.in_order()]

    # --- rounds ----------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Try all of them again, once a round that is under way has ended."""
        self._again = True

    @property
    def is_round_open(self) -> bool:
        """Whether some are to be tried."""
        return bool(self._to_try) or self._again

    def some(self, most: int) -> list[Request]:
        """The next requests to try, up to this many; some may wait no longer."""
        if self._again and not self._to_try:
            self._again = False
            self._in_vain.clear()
            self._to_try.extend((*self._moving.values(), *self.held()))
        return [self._to_try.popleft() for _ in range(min(most, len(self._to_try)))]

    def was_in_vain(self, needed: Hashable) -> bool:
        """Whether a request that needed the same was tried in this round."""
        return needed in self._in_vain

    def note_in_vain(self, needed: Hashable) -> None:
        """No engine takes a request that needs this."""
        self._in_vain.add(needed)
