"""Request heads and chunk framing beyond their bounds are refused and never parsed."""

from __future__ import annotations

import pytest

from gateway.edge.bounds import MAX_HEADERS, MAX_PIPELINED, MAX_URL_BYTES, SMALL_CHUNKS, EdgeBounds
from gateway.edge.census import Slot
from gateway.edge.http import PIECE_BYTES
from tests.edge.serving import Served, error_of, get, post, serving, status_of

KERNEL_BYTES = 32 << 20
"""Upper bound on what both kernels' buffers hold of a connection."""
HEADERS = EdgeBounds().header_bytes
CHUNKED = "Transfer-Encoding: chunked"


NO_HOST = b"GET / HTTP/1.0\r\n\r\n"


@pytest.fixture(scope="module")
def served() -> object:
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (get("/", "X: " + "x" * HEADERS), (431, "headers_too_large")),
        (get("/", *["X: " + "x" * 1000] * 40), (431, "headers_too_large")),
        (get("/", *["X: x"] * MAX_HEADERS), (431, "headers_too_large")),
        (get("/" + "x" * MAX_URL_BYTES), (414, "uri_too_long")),
        (get("/?" + "x" * MAX_URL_BYTES), (414, "uri_too_long")),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (HEADERS + 2 * PIECE_BYTES), (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\n" + b"x" * (HEADERS + 2 * PIECE_BYTES), (431, "headers_too_large")),
        (b"GET / HTTP/1.1\r\n\r\n", (400, "invalid_request")),
        (get("/", "Host: other"), (400, "invalid_request")),
        (get("/", "Host: other", version="1.0"), (400, "invalid_request")),
        (get("/", *["Content-Length: 0"] * 2), (400, "invalid_request")),
        *(
            (get("/", f"Transfer-Encoding: {coding}"), (501, "transfer_coding_not_supported"))
            for coding in ("gzip", "gzip, chunked", "identity")
        ),
        (get("/", "Transfer-Encoding: chunked, gzip"), (400, "invalid_request")),
        (get("/", CHUNKED, "Transfer-Encoding: gzip"), (400, "invalid_request")),
        *(
            (get("/", version=version), (505, "http_version_not_supported"))
            for version in ("0.9", "1.2", "2.0", "3.0")
        ),
        (b"no request at all\r\n\r\n", (400, "invalid_request")),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400, "invalid_request")),
    ],
)
def test_an_unacceptable_head_is_refused_and_the_connection_closed(
    served: Served, head: bytes, expected: tuple[int, str]
) -> None:
    reached = len(served.seen.requests)
    with served.dial() as client:
        client.send(head)
        answer = client.rest()
    assert error_of(answer) == expected
    assert b"connection: close" in answer and b"x-request-id: req_" in answer
    assert len(served.seen.requests) == reached


def test_the_oldest_clients_name_no_host(served: Served) -> None:
    with served.dial() as client:
        client.send(NO_HOST)
        assert status_of(client.answer()) == 200


def test_an_address_that_is_refused_again_and_again_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = [0.05, 1000.0]
    monkeypatch.setattr(Slot, "hold_s", lambda slot, now: held.pop(0))
    with serving() as served, served.dial() as first, served.dial() as second:
        first.send(b"no request at all\r\n\r\n" + b"x" * PIECE_BYTES)
        assert error_of(first.rest()) == (400, "invalid_request")
        second.send(b"no request at all\r\n\r\n")
        assert second.rest() == b"", "it has gone before its turn came"
    assert held == []


def test_the_maximum_number_of_headers_is_accepted(served: Served) -> None:
    with served.dial() as client:
        said = client.ask("/", *["X: x"] * (MAX_HEADERS - 1))
        assert said["headers"] == MAX_HEADERS
        client.ask("/" + "x" * (MAX_URL_BYTES - 1))
        client.ask("/", "X: " + "x" * (HEADERS - 200))
        for byte in get("/", "X: slow"):
            client.send(bytes([byte]))
        assert status_of(client.answer()) == 200


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\n",
        post(CHUNKED) + b"1;",
        post(CHUNKED) + b"0\r\nX: ",
    ],
    ids=["blank lines", "a value", "a name", "a chunk's extension", "a trailer"],
)
def test_an_endless_head_is_cut_off_while_others_are_served(served: Served, start: bytes) -> None:
    """The bound is on bytes: no more of them are read, however many a client sends."""
    with served.dial() as client, served.dial() as neighbour:
        client.send(start)
        part = b"\r\n" * 512 if not start else b"x" * 1024
        assert client.pour(part * 64, most=4 * KERNEL_BYTES) < KERNEL_BYTES
        assert neighbour.ask()["path"] == "/"


def test_trailers_are_nobodys(served: Served) -> None:
    """Headers are bounded and trusted before trailers arrive, so trailers must be dropped."""
    trailers = b"0\r\nCookie: a=b\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"
    with served.dial() as client:
        client.send(post(CHUNKED) + b"3\r\nabc\r\n" + trailers)
        assert status_of(client.answer()) == 200
        client.ask()
    first, second = served.seen.requests[-2:]
    assert served.seen.bodies[-2] == b"abc"
    names = [name for name, _ in first["headers"]]
    assert names == [b"host", b"transfer-encoding"]
    assert [name for name, _ in second["headers"]] == [b"host"]


def test_a_body_of_tiny_chunks_is_refused(served: Served) -> None:
    with served.dial() as client:
        client.send(post(CHUNKED) + b"1\r\nx\r\n" * (SMALL_CHUNKS + 100))
        assert error_of(client.rest()) == (400, "invalid_request")


def test_a_body_of_chunks_is_taken(served: Served) -> None:
    parts = [b"x"] * (SMALL_CHUNKS - 10) + [b"y" * 4096] * 500
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    with served.dial() as client:
        client.send(post(CHUNKED) + body + b"0\r\n\r\n")
        assert status_of(client.answer()) == 200
        assert served.seen.bodies[-1] == b"".join(parts)
        client.send(post(CHUNKED) + body + b"0\r\n\r\n")  # chunks are counted per request
        assert status_of(client.answer()) == 200


def test_some_requests_may_be_sent_ahead(served: Served) -> None:
    with served.dial() as client:
        client.send(b"".join(get(f"/{number}") for number in range(MAX_PIPELINED)))
        found = b""
        while found.count(b"HTTP/1.1 200") < MAX_PIPELINED or not found.endswith(b"}"):
            found += client.read()
    assert [found.index(b'"/%d"' % number) for number in range(MAX_PIPELINED)] == sorted(
        found.index(b'"/%d"' % number) for number in range(MAX_PIPELINED)
    )


def test_not_thousands(served: Served) -> None:
    reached = len(served.seen.requests)
    with served.dial() as client:
        client.send(get("/hold") + get() * 1000)
        assert client.rest() == b""
    assert len(served.seen.requests) <= reached + 1
