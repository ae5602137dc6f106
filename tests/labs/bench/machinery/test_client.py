"""The benchmarks' HTTP client: it finds the end of an answer however its bytes arrive."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.bench.machinery.client import Connection, Refused, Reply

WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 34\r\n\r\n{"usage":{"completion_tokens":12}}'
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b'19\r\ndata: {"choices":["0"]}\n\n\r\n'
    b'29\r\ndata: {"usage":{"completion_tokens": 7}}\n\n\r\n'
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


class Wire(asyncio.Transport):
    """Records that something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.set()


async def answered(pieces: list[bytes]) -> Reply:
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    sending = asyncio.create_task(connection.send(b"a request"))
    await wire.written.wait()
    for piece in pieces:
        assert not sending.done()
        connection.data_received(piece)
    return await sending


def cut(data: bytes, at: set[int]) -> list[bytes]:
    ends = [*sorted(at), len(data)]
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@given(st.sets(st.integers(1, len(WHOLE) - 1)))
def test_a_whole_answer_ends_at_its_length(at: set[int]) -> None:
    reply = asyncio.run(answered(cut(WHOLE, at)))
    assert (reply.status, reply.completion_tokens, reply.events) == (200, 12, 0)


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_a_stream_ends_with_its_last_chunk(at: set[int]) -> None:
    reply = asyncio.run(answered(cut(STREAM, at)))
    assert (reply.status, reply.completion_tokens, reply.events) == (200, 7, 3)
    assert reply.body.endswith(b"0\r\n\r\n")


async def test_a_refusal_is_told_with_its_body() -> None:
    with pytest.raises(Refused, match="429: slow down"):
        await answered([b"HTTP/1.1 429 Too Many\r\nContent-Length: 9\r\n\r\nslow down"])


async def test_a_connection_that_breaks_fails_the_request() -> None:
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    sending = asyncio.create_task(connection.send(b"a request"))
    await wire.written.wait()
    connection.data_received(STREAM[:-1])
    connection.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await sending
