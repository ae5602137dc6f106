"""What a client owes, and for how long. Sans-IO: `now` is a monotonic time in seconds.

A connection owes the rest of its request's head, the next bytes of its body, or, between requests,
nothing but some sign of life. While it waits for its answer it owes nothing, however long that
takes: only what is written to it must be read.
"""

from __future__ import annotations

from enum import Enum

from gateway.edge.bounds import LINGER_S, Bounds


class Owed(Enum):
    NOTHING = "nothing"
    HEAD = "head"
    """All of it in time: further bytes of it win no more."""
    BODY = "body"
    """Some more of it: each part that comes, and each time it is not asked for, begins it anew."""
    SURPLUS = "surplus"
    """The end of a body that was answered already."""
    REST = "rest"
    """Another request, or the end of the connection."""
    GOODBYE = "goodbye"
    """The end of the connection: it was refused."""


class Patience:
    """With what one connection owes."""

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
        """From now on it owes this."""
        self.owed, self._since = owed, now

    def over(self, now: float) -> bool:
        """Whether it has owed that for too long."""
        return now - self._since > self._longest_s[self.owed]


class Unread:
    """What was written to a client which does not read. One that reads slowly is let read."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._bytes = 0
        self._since = 0.0

    def over(self, unsent: int, now: float) -> bool:
        """Whether none of it was read for too long; to be asked regularly, with how many bytes of
        what somebody waits for are `unsent`."""
        if not self._bytes or unsent < self._bytes:
            self._since = now
        self._bytes = unsent
        return unsent > 0 and now - self._since > self._longest_s
