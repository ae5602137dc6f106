"""A client that sends too slowly, or reads nothing, is disconnected; no other is."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from gateway.edge.bounds import EdgeBounds
from tests.edge.serving import SOON, error_of, get, post, serving, status_of

LONG = EdgeBounds(header_s=1000, keep_alive_s=1000, body_s=1000, surplus_s=1000, write_s=1000)
SHORT = EdgeBounds(header_s=SOON, keep_alive_s=SOON, body_s=SOON, surplus_s=SOON, write_s=SOON)


@pytest.mark.parametrize(
    "start", [b"G", get()[:-2], b"\r\n", get("/hold", "Content-Length: 0") + b"GET"]
)
def test_an_incomplete_head_times_out(start: bytes) -> None:
    with serving(bounds=replace(LONG, header_s=SOON)) as served, served.dial() as client:
        client.send(start)
        answer = client.rest()
        assert answer == b"" or error_of(answer) == (408, "request_timeout")


def test_further_bytes_do_not_extend_the_time_of_a_head() -> None:
    with serving(bounds=replace(LONG, header_s=SOON)) as served, served.dial() as client:
        client.send(b"GET / HTTP/1.1\r\nX: ")
        client.sock.settimeout(SOON / 20)
        answer = b""
        while not answer:
            client.send(b"x")
            try:
                answer = client.read()
            except TimeoutError:
                continue
        assert error_of(answer) == (408, "request_timeout")


def test_blank_lines_do_not_extend_the_time_of_a_head() -> None:
    with serving(bounds=replace(LONG, header_s=SOON)) as served, served.dial() as client:
        client.ask()
        assert error_of(client.pour_slowly(b"\r\n", SOON / 20)) == (408, "request_timeout")


def test_a_silent_new_connection_times_out() -> None:
    with serving(bounds=replace(LONG, header_s=SOON)) as served, served.dial() as client:
        assert client.rest() == b""


def test_an_idle_connection_times_out() -> None:
    with serving(bounds=replace(LONG, keep_alive_s=SOON)) as served, served.dial() as client:
        client.ask()
        assert client.rest() == b""


def test_a_connection_is_kept_alive() -> None:
    with (
        serving(bounds=replace(SHORT, header_s=1000, keep_alive_s=1000)) as served,
        served.dial() as client,
    ):
        for _ in range(3):
            client.ask()
            time.sleep(2 * SOON)


def test_a_stalled_body_times_out() -> None:
    with serving(bounds=replace(LONG, body_s=SOON)) as served, served.dial() as client:
        client.send(post("Content-Length: 10", body=b"x"))
        assert error_of(client.rest()) == (408, "request_timeout")
        served.until(lambda: served.seen.ended == ["/"])
        assert served.seen.bodies == []


def test_a_slow_body_does_not_time_out() -> None:
    """Each part extends the time, in total beyond the bound."""
    with (
        serving(bounds=replace(SHORT, header_s=1000, body_s=10 * SOON)) as served,
        served.dial() as client,
    ):
        client.send(post("Content-Length: 20"))
        for _ in range(20):
            time.sleep(SOON)
            client.send(b"x")
        assert status_of(client.answer()) == 200


def test_an_answer_may_take_its_time() -> None:
    """A stream lasts many times longer than all bounds, which do not apply to its client."""
    with serving(bounds=replace(SHORT, header_s=1000)) as served, served.dial() as client:
        client.send(get(f"/stream/10/10/{SOON}", "Connection: close"))
        assert client.rest().count(b"xxxxxxxxxx") == 10


def test_the_rest_of_an_answered_body_must_arrive_in_time() -> None:
    with serving(bounds=replace(LONG, surplus_s=SOON)) as served, served.dial() as client:
        client.send(post("Content-Length: 1000000", path="/early"))
        assert status_of(client.answer()) == 200
        assert client.pour_slowly(b"x", SOON / 20) == b""


def test_the_connection_is_kept_once_the_rest_of_an_answered_body_arrived() -> None:
    with serving(bounds=replace(LONG, keep_alive_s=SOON)) as served, served.dial() as client:
        client.send(post("Content-Length: 10", path="/early"))
        assert status_of(client.answer()) == 200
        client.send(b"x" * 10 + get())
        assert status_of(client.answer()) == 200
        assert client.rest() == b""


def test_a_client_that_reads_nothing_of_a_stream_is_disconnected() -> None:
    """The application waits for room in the buffer, and is told that the client is gone."""
    with serving(bounds=replace(LONG, write_s=SOON)) as served, served.dial() as client:
        client.send(get("/stream/1000/1000000/0"))
        served.until(lambda: served.seen.ended)


def test_a_client_that_reads_nothing_of_a_complete_answer_is_disconnected() -> None:
    """A complete answer that is still in the buffer keeps no connection open."""
    bounds = replace(LONG, write_s=SOON)
    with serving(bounds=bounds) as served, served.dial() as client:
        client.send(get("/stream/1/20000000/0", "Connection: close"))
        served.until(lambda: not served.server.server_state.connections)


def test_a_client_that_reads_slowly_is_not_disconnected() -> None:
    """It reads for many times the bound, but too little for the application to write meanwhile."""
    with serving(bounds=replace(LONG, write_s=5 * SOON)) as served:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.connect(("127.0.0.1", served.port))
            sock.sendall(get("/stream/1/20000000/0", "Connection: close"))
            read = 0
            for _ in range(20):
                time.sleep(SOON)
                read += len(sock.recv(1 << 18))
            while part := sock.recv(1 << 20):
                read += len(part)
        assert read > 20_000_000
