"""Bounds on the number of connections, in all and per client address."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from gateway.edge.bounds import EdgeBounds
from tests.edge.serving import SOON, Served, error_of, get, post, serving, status_of

LOOPBACK = "127.0.0.1"


def test_connections_of_one_address_are_bounded() -> None:
    with serving(bounds=EdgeBounds(connections_per_address=3)) as served, ExitStack() as stack:
        first, *_ = [stack.enter_context(served.dial()) for _ in range(3)]
        first.ask()
        with served.dial() as fourth:
            answer = fourth.rest()
            assert error_of(answer) == (429, "rate_limit_exceeded")
            assert b"retry-after: 1" in answer
        first.sock.close()
        served.until(lambda: asked(served))


def asked(served: Served) -> bool:
    with served.dial() as client:
        client.send(get("/", "Connection: close"))
        return client.rest().startswith(b"HTTP/1.1 200")


def test_connections_that_wait_for_their_client_are_evicted_first() -> None:
    """Connections that wait for their client are evicted for new ones, the longest waiting first;
    those that wait for an answer never are."""
    with serving(bounds=EdgeBounds(connections=4)) as served, ExitStack() as stack:
        working, silent, slow, idle = [stack.enter_context(served.dial()) for _ in range(4)]
        idle.ask()
        working.send(get("/hold"))
        slow.send(post("Content-Length: 10"))
        served.until(lambda: len(served.seen.requests) == 3)
        for number in range(20):
            client = stack.enter_context(served.dial())
            assert client.ask(f"/{number}")["path"] == f"/{number}"
        for gone in (silent, slow, idle):
            assert gone.rest() == b""
        assert "/hold" not in served.seen.ended


def test_no_room_where_all_work() -> None:
    with serving(bounds=EdgeBounds(connections=2)) as served, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(served.dial()).send(get("/hold"))
        served.until(lambda: len(served.seen.requests) == 2)
        with served.dial() as third:
            answer = third.rest()
        assert error_of(answer) == (503, "server_is_overloaded")


def test_what_has_ended_is_not_counted() -> None:
    with serving(bounds=EdgeBounds(connections_per_address=2)) as served:
        for number in range(10):
            with served.dial() as client:
                if number % 2:
                    client.send(b"no request\r\n\r\n")
                    assert status_of(client.rest()) == 400
                else:
                    client.ask()
            served.until(lambda: not served.server.server_state.connections)


# --- Proxies -------------------------------------------------------------------------------------


def test_forwarded_headers_of_untrusted_addresses_are_ignored() -> None:
    with serving() as served, served.dial() as client:
        said = client.ask("/", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https")
        assert (said["client"], said["scheme"]) == (LOOPBACK, "http")


def test_a_trusted_proxy_says_who_asks() -> None:
    with serving(proxies=(LOOPBACK,)) as served, served.dial() as client:
        said = client.ask("/", "X-Forwarded-For: 6.6.6.6, 192.0.2.1", "X-Forwarded-Proto: https")
        assert (said["client"], said["scheme"]) == ("192.0.2.1", "https")
        said = client.ask()
        assert (said["client"], said["scheme"]) == (LOOPBACK, "http")


def test_a_proxys_connections_are_its_clients() -> None:
    """A proxy's connections are not bounded; those of each client behind it are."""
    bounds = replace(EdgeBounds(connections_per_address=2), header_s=1000 * SOON)
    with serving(bounds=bounds, proxies=(LOOPBACK,)) as served, ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(served.dial())
            client.send(get("/hold", "X-Forwarded-For: 2001:db8::1"))
        served.until(lambda: len(served.seen.requests) == 2)
        with served.dial() as third, served.dial() as other:
            third.send(get("/", "X-Forwarded-For: 2001:db8::ffff:2"))
            assert error_of(third.answer()) == (429, "rate_limit_exceeded")
            said = other.ask("/", "X-Forwarded-For: 2001:db8:0:1::1")
            assert said["client"] == "2001:db8:0:1::1"


def test_an_answer_that_fails_before_its_body_is_an_error() -> None:
    with serving() as served, served.dial() as client:
        client.send(get("/broken"))
        head, _, body = client.rest().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ") and b"connection: close" in head
    assert body == b"Internal Server Error"


# --- HTTP/1.0 ------------------------------------------------------------------------------------


def test_a_client_of_http_1_0_is_told_no_chunks() -> None:
    with serving() as served, served.dial() as client:
        client.send(get("/stream/3/10/0", version="1.0"))
        head, _, body = client.rest().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert body == b"x" * 30


def test_an_answer_with_a_length_has_it_in_http_1_0_as_well() -> None:
    with serving() as served, served.dial() as client:
        client.send(get(version="1.0"))
        head, _, body = client.rest().partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head


def test_a_client_of_http_1_1_is_told_chunks() -> None:
    with serving() as served, served.dial() as client:
        client.send(get("/stream/1/10/0", "Connection: close"))
        assert b"transfer-encoding: chunked" in client.rest()
