"""A raw HTTP/1.1 client: one keep-alive connection, and no parsing beyond the end of an answer."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any, Self, cast

Address = tuple[str, int]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_LAST_CHUNK = b"\r\n0\r\n\r\n"
"""Ends a chunked body. It cannot occur earlier in one: JSON contains no bare carriage return."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. A chunked body keeps its framing.

    `first_s` and `total_s` are from the request to the first byte and to the last, in seconds; the
    gateway sends a stream's headers together with its first token.
    """

    status: int
    body: bytes
    first_s: float = 0.0
    total_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Mean seconds per token of a stream after the first one."""
        return (self.total_s - self.first_s) / max(1, self.completion_tokens - 1)

    @property
    def completion_tokens(self) -> int:
        """The number in the usage of the answer, or of a stream's last chunk."""
        found = _COMPLETION_TOKENS.findall(self.body)
        return int(found[-1]) if found else 0

    @property
    def events(self) -> int:
        """Server-sent events in the body, `[DONE]` included."""
        return self.body.count(b"data: ")


class Refused(Exception):
    """An answer other than 200."""


def post(path: str, body: dict[str, Any], key: str = "") -> bytes:
    """A complete POST request with a JSON body; `key` is sent as the bearer token."""
    content = json.dumps(body).encode()
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\n{authorization}"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[Reply]
        self._reset()

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect.

        Raises:
            OSError: nothing listens there.
        """
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, *address)
        return connection

    async def send(self, request: bytes) -> Reply:
        """Send a request made by `post` and wait for the whole answer.

        Raises:
            ConnectionError: the connection was closed before the answer was complete.
            Refused: the status is not 200.
        """
        self._reset()
        self._answer = asyncio.get_running_loop().create_future()
        self._sent_at = time.perf_counter()
        self._transport.write(request)
        reply = await self._answer
        if reply.status != 200:
            raise Refused(f"{reply.status}: {reply.body.decode(errors='replace')[:500]}")
        return reply

    @property
    def answered(self) -> bool:
        """Whether any part of the answer has arrived."""
        return self._size > 0

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if not self._parts:
            self._first_at = time.perf_counter()
        self._parts.append(data)
        self._size += len(data)
        if self._body_at is None:
            self._read_head()
        if self._body_at is not None and self._complete():
            whole = b"".join(self._parts)
            first_s = self._first_at - self._sent_at
            total_s = time.perf_counter() - self._sent_at
            reply = Reply(int(whole[9:12]), whole[self._body_at :], first_s, total_s)
            self._answer.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        answer = getattr(self, "_answer", None)
        if answer is not None and not answer.done():
            answer.set_exception(error or ConnectionResetError("closed by the server"))

    def _reset(self) -> None:
        self._sent_at = self._first_at = 0.0
        self._parts: list[bytes] = []
        self._size = 0
        self._body_at: int | None = None
        self._end_at: int | None = None
        """None for a chunked body, whose length is unknown."""

    def _read_head(self) -> None:
        head, found, _ = b"".join(self._parts).partition(b"\r\n\r\n")
        if found:
            self._body_at = len(head) + len(found)
            if length := _LENGTH.search(head):
                self._end_at = self._body_at + int(length[1])
            elif not _CHUNKED.search(head):
                self._answer.set_exception(ConnectionError("an answer without a length"))

    def _complete(self) -> bool:
        if self._end_at is not None:
            return self._size >= self._end_at
        last = self._parts[-1]
        if len(last) < len(_LAST_CHUNK):
            last = b"".join(self._parts[-len(_LAST_CHUNK) :])
        return last.endswith(_LAST_CHUNK)
