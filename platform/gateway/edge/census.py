"""Counts and bounds connections, in total and for each address. Sans-IO.

When all slots are taken, the connection that has waited longest for its client is evicted for a
new one, so a client that opens connections and sends little or nothing can't lock out others.
Refusals to one address are spaced out, because a refused client can reconnect at once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inference.addresses import network_of
from inference.errors import Overloaded, RateLimitExceeded
from inference.pacing import Pacing


class Slot:
    """The admission of one connection."""

    def __init__(self, census: Census, network: str | None, evict: Callable[[], None]) -> None:
        """`evict` ends the connection."""
        self._census, self.network, self.evict = census, network, evict

    def waits(self) -> None:
        """It now waits for its client, so it may be evicted to make room for another."""
        self._census.waits(self)

    def works(self) -> None:
        """The client waits for this process now, so the connection may not be evicted."""
        self._census.waiting.pop(self, None)

    def hold_s(self, now: float) -> float:
        """Seconds to delay the answer to this refused connection. `now` is a monotonic time in
        seconds."""
        return 0.0 if self.network is None else self._census.pacing.hold_s(self.network, now)

    def leave(self) -> None:
        """The connection has ended. May be called twice."""
        self._census.remove(self)


class Census:
    """The connections of one process."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._slots: set[Slot] = set()
        self._of: Counter[str] = Counter()
        """Connections by network; behind proxies, requests by the client's network."""
        self.waiting: OrderedDict[Slot, None] = OrderedDict()
        """Connections that wait for their clients, longest wait first."""
        self.pacing = Pacing()
        """Spaces out refusals, by network."""
        self.closing = False
        """The process ends soon, so each answer is the last one on its connection."""

    def __len__(self) -> int:
        return len(self._slots)

    def enter(self, address: str | None, evict: Callable[[], None]) -> Slot:
        """Admit a connection from this address (None for a trusted proxy), evicting another one if
        all slots are taken.

        Raises:
            RateLimitExceeded: this address has too many connections.
            Overloaded: there are too many, and none of them waits for its client.
        """
        network = None if address is None else network_of(address)
        if network is not None:
            self._require_room(network)
        if len(self._slots) >= self._most and self.waiting:
            oldest = next(iter(self.waiting))
            oldest.leave()
            oldest.evict()
        if len(self._slots) >= self._most:
            raise Overloaded(
                "This server has reached its maximum number of connections.", retry_after_s=1
            )
        slot = Slot(self, network, evict)
        self._slots.add(slot)
        if network is not None:
            self._of[network] += 1
        slot.waits()
        return slot

    def waits(self, slot: Slot) -> None:
        if slot in self._slots:
            self.waiting[slot] = None
            self.waiting.move_to_end(slot)

    def remove(self, slot: Slot) -> None:
        if slot not in self._slots:
            return
        self._slots.remove(slot)
        self.waiting.pop(slot, None)
        if slot.network is not None:
            self._release(slot.network)

    @contextmanager
    def request(self, address: str) -> Iterator[None]:
        """Wrap a request that a trusted proxy forwards from this address: it counts as a
        connection of the address.

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
                f"Your IP address has the maximum of {self._most_per_address} open connections.",
                retry_after_s=1,
            )

    def _release(self, network: str) -> None:
        self._of[network] -= 1
        if not self._of[network]:
            del self._of[network]
