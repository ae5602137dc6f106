"""How many connections there are, in all and of each address. Sans-IO.

Where all places are taken, the connection that has waited longest for its client makes room for a
new one: whoever opens connections and says nothing, or little, keeps nobody out. Refusals to one
address are spaced, as a refused client can connect anew at once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inference.addresses import network_of
from inference.errors import Overloaded, RateLimitExceeded
from inference.gateway.pacing import Pacing


class Visit:
    """One connection's place."""

    def __init__(self, census: Census, network: str | None, evict: Callable[[], None]) -> None:
        """`evict` ends the connection."""
        self._census, self.network, self.evict = census, network, evict

    def waits(self) -> None:
        """Its client owes something from now on, and it may be evicted for another."""
        self._census.waits(self)

    def works(self) -> None:
        """Its client waits, not we."""
        self._census.waiting.pop(self, None)

    def hold_s(self, now: float) -> float:
        """It is refused: how long its answer is held back. `now`: a monotonic time in seconds."""
        return 0.0 if self.network is None else self._census.pacing.hold_s(self.network, now)

    def leave(self) -> None:
        """It has ended; may be said twice."""
        self._census.remove(self)


class Census:
    """Of one process."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._visits: set[Visit] = set()
        self._of: Counter[str] = Counter()
        """Connections by network; requests, where proxies bring them."""
        self.waiting: OrderedDict[Visit, None] = OrderedDict()
        """Those that wait for their clients, in the order in which they began to."""
        self.pacing = Pacing()
        """Of networks whose connections are refused."""

    def __len__(self) -> int:
        return len(self._visits)

    def enter(self, address: str | None, evict: Callable[[], None]) -> Visit:
        """A place for a connection from this address; None for that of a trusted proxy.

        Raises:
            RateLimitExceeded: this address has too many.
            Overloaded: there are too many, and all of them work.
        """
        network = None if address is None else network_of(address)
        if network is not None:
            self._require_room(network)
        if len(self._visits) >= self._most and self.waiting:
            oldest = next(iter(self.waiting))
            oldest.leave()
            oldest.evict()
        if len(self._visits) >= self._most:
            raise Overloaded("This server has as many connections as it takes.", retry_after_s=1)
        visit = Visit(self, network, evict)
        self._visits.add(visit)
        if network is not None:
            self._of[network] += 1
        visit.waits()
        return visit

    def waits(self, visit: Visit) -> None:
        if visit in self._visits:
            self.waiting[visit] = None
            self.waiting.move_to_end(visit)

    def remove(self, visit: Visit) -> None:
        if visit not in self._visits:
            return
        self._visits.remove(visit)
        self.waiting.pop(visit, None)
        if visit.network is not None:
            self._release(visit.network)

    @contextmanager
    def request(self, address: str) -> Iterator[None]:
        """Bracket a request that a trusted proxy brings from this address: it counts there as a
        connection.

        Raises:
            RateLimitExceeded: this address has too many.
        """
        network = network_of(address)
        self._require_room(network)
        self._of[network] += 1
        try:
            yield
        finally:
            self._release(network)

    def _require_room(self, network: str) -> None:
        if self._of.get(network, 0) >= self._most_per_address:
            raise RateLimitExceeded(
                f"There are {self._most_per_address} connections from your address already.",
                retry_after_s=1,
            )

    def _release(self, network: str) -> None:
        self._of[network] -= 1
        if not self._of[network]:
            del self._of[network]
