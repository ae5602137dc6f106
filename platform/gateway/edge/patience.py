"""What a client has to send next, and by when. Sans-IO: `now` is a monotonic time in seconds.

A client owes the rest of its request's head, the next bytes of its body, or, between requests, the
next request. While it waits for its answer it owes nothing, however long that takes; it only has to
read what is written to it.
"""

from __future__ import annotations

from enum import Enum

from gateway.edge.bounds import LINGER_S, Bounds


class Owed(Enum):
    NOTHING = "nothing"
    HEAD = "head"
    """The whole head within the time limit: further bytes do not extend it."""
    BODY = "body"
    """More of the body: the time limit restarts with each part, and while reading is paused."""
    SURPLUS = "surplus"
    """The rest of a body whose request was answered already."""
    REST = "rest"
    """Another request, or the end of the connection."""
    GOODBYE = "goodbye"
    """The end of the connection: it was refused."""


class Patience:
    """What one connection's client owes, and since when."""

    def __init__(self, bounds: Bounds, now: float) -> None:
        self.owed = Owed.HEAD
        self._since = now
        self._longest_s = {
            Owed.NOTHING: float("inf"),
            Owed.HEAD: bounds.header_s,
            Owed.BODY: bounds.body_s,
            Owed.SURPLUS: bounds.surplus_s,
            Owed.REST: bounds.keep_alive_s,
            Owed.GOODBYE: LINGER_S,
        }

    def expect(self, owed: Owed, now: float) -> None:
        """The client owes this from now on."""
        self.owed, self._since = owed, now

    def over(self, now: float) -> bool:
        """Whether the client has owed that for too long."""
        return now - self._since > self._longest_s[self.owed]


class Unread:
    """Detects a client that reads nothing of what was written. Slow reading is allowed."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._bytes = 0
        self._since = 0.0

    def over(self, unsent: int, now: float) -> bool:
        """Whether nothing was read for too long. To be called regularly. `unsent`: unsent bytes,
        0 unless a writer, or the closing of the connection, waits for them."""
        if not self._bytes or unsent < self._bytes:
            self._since = now
        self._bytes = unsent
        return unsent > 0 and now - self._since > self._longest_s
