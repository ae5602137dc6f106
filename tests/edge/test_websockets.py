"""Bounds on websockets: an unauthenticated client's can hold few resources, and not for long."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from gateway.edge.bounds import EdgeBounds
from gateway.edge.websocket import (
    MAX_JOINED_BYTES,
    STRANGERS_BYTES,
    FrameBudget,
    JoinedMessages,
)
from tests.edge.serving import SOON, Application, Client, Served, get, serving, status_of

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
KNOWN = (1 << 20, True)
TRUSTED = (1 << 20, False)


@contextmanager
def opened(
    trust: tuple[int, bool] | None = None, bounds: EdgeBounds | None = None
) -> Iterator[tuple[Served, ClientConnection]]:
    app = Application()
    app.trust = trust
    with serving(app, bounds=bounds) as served:
        url = f"ws://127.0.0.1:{served.port}/"
        with connect(url, compression=None, open_timeout=60, close_timeout=60) as socket:
            yield served, socket


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """A masked frame of less than 126 bytes."""
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return struct.pack("!BB", 0x80 | opcode, 0x80 | len(payload)) + mask + masked


def upgraded(served: Served, *headers: str) -> Client:
    client = served.dial()
    client.send(get("/ws", *UPGRADE, *headers))
    assert status_of(client.read()) == 101
    return client


def test_cookies_are_nobodys() -> None:
    with serving() as served, upgraded(served, "Cookie: a=" + "x" * 20_000):
        (scope,) = served.seen.requests
    assert b"cookie" not in dict(scope["headers"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((*UPGRADE, "X: " + "x" * 9000), 431),
        ((*UPGRADE, "X: " + "x" * 40_000), 431),
        (UPGRADE[:-1], 400),
        ((*UPGRADE, "Content-Length: 5"), 400),
        ((*UPGRADE, "bad name: x"), 400),
    ],
)
def test_an_opening_that_is_none_is_answered(headers: tuple[str, ...], status: int) -> None:
    with serving() as served, served.dial() as client:
        client.send(get("/ws", *headers))
        assert status_of(client.rest()) == status
        served.until(lambda: not served.server.server_state.connections)


def test_a_refusal_is_a_whole_answer_and_no_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as served, served.dial() as client:
        client.send(get("/ws/refused", *UPGRADE))
        answer = client.rest()
        served.until(lambda: not served.server.server_state.connections)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == 401 and b"www-authenticate: Bearer" in head
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert not caplog.records


def test_none_is_opened_behind_a_request() -> None:
    """The pending request's application would not be told that the client is gone."""
    with serving() as served, served.dial() as client:
        client.send(get("/hold"))
        served.until(lambda: served.seen.requests)
        client.send(get("/ws", *UPGRADE))
        assert status_of(client.rest()) == 400
        served.until(lambda: served.seen.ended == ["/hold"])


def test_a_strangers_message_is_small() -> None:
    with opened() as (served, socket):
        socket.send("x" * STRANGERS_BYTES)
        assert socket.recv(60) == str(STRANGERS_BYTES)
        socket.send("x" * (STRANGERS_BYTES + 1))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(60)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    assert len(served.seen.messages) == 1


@pytest.mark.parametrize("trust", [KNOWN, TRUSTED])
def test_a_known_clients_message_may_be_large(trust: tuple[int, bool]) -> None:
    with opened(trust) as (_, socket):
        socket.send("x")  # the application declares its trust before it reads
        assert socket.recv(60) == "1"
        socket.send(["x" * 10_000] * 100)
        assert socket.recv(60) == "1000000"


@pytest.mark.parametrize("opcode", [0x1, 0x2, 0x9, 0xA])
@pytest.mark.parametrize("trust", [None, KNOWN])
def test_a_flood_of_frames_ends_the_socket(trust: tuple[int, bool] | None, opcode: int) -> None:
    """Their number is bounded: one read of the socket holds many thousands."""
    app = Application()
    app.trust = trust
    with serving(app) as served, upgraded(served) as client, served.dial() as neighbour:
        client.pour(frame(opcode, b"x") * 1000, most=8 << 20)
        client.rest()
        assert neighbour.ask()["path"] == "/"
        served.until(lambda: "/ws" in served.seen.ended)
    assert len(served.seen.messages) <= FrameBudget.BURST


def test_the_link_of_an_engine_is_not_paced() -> None:
    with opened(TRUSTED) as (served, socket):
        socket.send("x")
        socket.recv(60)
        for _ in range(10 * FrameBudget.BURST):
            socket.send("x")
        for _ in range(10 * FrameBudget.BURST):
            assert socket.recv(60) == "1"
    assert len(served.seen.messages) == 1 + 10 * FrameBudget.BURST


def test_a_websocket_client_that_reads_nothing_is_disconnected() -> None:
    with serving(bounds=EdgeBounds(write_s=SOON)) as served, served.dial() as client:
        client.send(get("/ws/pour", *UPGRADE))
        served.until(lambda: "/ws/pour" in served.seen.ended)
        served.until(lambda: not served.server.server_state.connections)


def test_a_silent_socket_stays_open_as_long_as_the_application_likes() -> None:
    bounds = EdgeBounds(keep_alive_s=SOON, body_s=SOON, surplus_s=SOON, write_s=SOON)
    with opened(bounds=bounds) as (_, socket):
        with pytest.raises(TimeoutError):
            socket.recv(10 * SOON)
        socket.send("x")
        assert socket.recv(60) == "1"


def test_a_websocket_counts_as_a_connection_until_it_ends() -> None:
    with serving(bounds=EdgeBounds(connections_per_address=1)) as served:
        for _ in range(3):
            with upgraded(served) as client:
                with served.dial() as second:
                    assert status_of(second.rest()) == 429
                client.send(frame(0x8))
                client.rest()
            served.until(lambda: not served.server.server_state.connections)


class Written:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_messages_of_one_iteration_are_one_write() -> None:
    transport = Written()
    joined = JoinedMessages(cast(Any, transport), asyncio.get_running_loop())
    joined.write(b"a")
    joined.write(b"b")
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"ab"]

    joined.write(b"c")
    joined.write(bytes(MAX_JOINED_BYTES))
    assert transport.writes[1:] == [b"c" + bytes(MAX_JOINED_BYTES)]  # a slow reader is noticed now
    joined.write(b"d")
    joined.close()
    assert (transport.writes[2:], transport.closed) == ([b"d"], True)
    joined.write(b"e")
    await asyncio.sleep(0)
    assert transport.writes[3:] == []
