"""Bounds on what a client may send before it is parsed, and on how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

MAX_HEADERS = 100
MAX_URL_BYTES = 8 << 10
"""Single sign-on redirects back with some 4 KiB."""
MAX_PIPELINED = 16
"""Requests on one connection that wait for an earlier answer. Hardly any client pipelines; each
costs 15 us, and one read of the socket can contain 9,000 of them."""
MIN_CHUNK_BYTES = 64
SMALL_CHUNKS = 1024
"""A body may have this many chunks, plus one for each MIN_CHUNK_BYTES: each costs a call in Python,
and one read can contain 40,000 chunks of one byte."""
LINGER_S = 2.0
"""How long data from a refused client is read and discarded: if closed at once, the connection is
reset, and many clients lose the answer."""
LINGER_BYTES = 1 << 20
"""How much of that data at most."""
MAX_TICK_S = 2.0
"""Longest pause between two checks of a connection."""


@dataclass(frozen=True, slots=True)
class EdgeBounds:
    """Times in seconds; see the settings."""

    header_bytes: int = 32 << 10
    header_s: float = 20
    keep_alive_s: float = 75
    body_s: float = 30
    surplus_s: float = 60
    write_s: float = 60
    connections: int = 8192
    connections_per_address: int = 2048

    @classmethod
    def configured(cls) -> EdgeBounds:
        return cls(
            header_bytes=settings.MAX_HEADER_BYTES,
            header_s=settings.HEADER_TIMEOUT_S,
            keep_alive_s=settings.KEEP_ALIVE_S,
            body_s=settings.BODY_IDLE_S,
            write_s=settings.WRITE_IDLE_S,
            connections=settings.MAX_CONNECTIONS,
            connections_per_address=settings.MAX_CONNECTIONS_PER_ADDRESS,
        )

    @property
    def tick_s(self) -> float:
        times = (self.header_s, self.keep_alive_s, self.body_s, self.surplus_s, self.write_s)
        return min(MAX_TICK_S, min(times) / 4)
