"""What a client has to send next, and by when. Sans-IO: `now` is a monotonic time in seconds.

Expected is the rest of a request's head, the next bytes of its body, or, between requests, the next
request. From a client that waits for its answer nothing is expected, however long that takes; it
only has to read what is written to it.
"""

from __future__ import annotations

from enum import Enum

from gateway.edge.bounds import LINGER_S, EdgeBounds


class Expected(Enum):
    NOTHING = "nothing"
    HEAD = "head"
    """The whole head within the time limit: further bytes do not extend it. It restarts while
    reading is paused, because earlier requests of the connection are not answered yet."""
    BODY = "body"
    """More of the body: the time limit restarts with each part, and while reading is paused."""
    SURPLUS = "surplus"
    """The rest of a body whose request was answered already."""
    IDLE = "idle"
    """Another request, or the end of the connection."""
    CLOSE = "close"
    """The end of the connection: it was refused."""


class ReadTimeout:
    """What is expected of one connection's client, and since when."""

    def __init__(self, bounds: EdgeBounds, now: float) -> None:
        self.expected = Expected.HEAD
        self._since = now
        self._excused = False
        self._longest_s = {
            Expected.NOTHING: float("inf"),
            Expected.HEAD: bounds.header_s,
            Expected.BODY: bounds.body_s,
            Expected.SURPLUS: bounds.surplus_s,
            Expected.IDLE: bounds.keep_alive_s,
            Expected.CLOSE: LINGER_S,
        }

    def expect(self, expected: Expected, now: float) -> None:
        """This is expected from now on."""
        self.expected, self._since, self._excused = expected, now, False

    def expired(self, now: float) -> bool:
        """Whether the client has taken too long."""
        return now - self._since > self._longest_s[self.expected]

    def excused(self, unread: int) -> bool:
        """Whether a client whose time expired gets until the next check, because bytes of it are
        `unread`: this process was late itself, as after a suspend. Once for what is expected, so
        that bytes which keep coming extend nothing."""
        excused, self._excused = unread > 0 and not self._excused, True
        return excused


class WriteTimeout:
    """Detects a client that reads nothing of what was written. Slow reading is allowed."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._bytes = 0
        self._since = 0.0

    def expired(self, unsent: int, now: float) -> bool:
        """Whether nothing was read for too long. To be called regularly. `unsent`: unsent bytes,
        0 unless a writer, or the closing of the connection, waits for them."""
        if not self._bytes or unsent < self._bytes:
            self._since = now
        self._bytes = unsent
        return unsent > 0 and now - self._since > self._longest_s
