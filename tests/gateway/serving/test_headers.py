"""Nothing parses cookies that are too large, and no parser gets a header beyond its bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http import cookies
from pathlib import Path
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from gateway.planes.headers import (
    MAX_BACKSLASHES,
    MAX_COOKIE_BYTES,
    MAX_PARSED_BYTES,
    HeaderLimit,
    excess,
)
from inference.gateway.exchanges.exchange import REFUSED

Headers = list[tuple[bytes, bytes]]

HOST: Headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
TIMEOUT_S = 60.0
ROOT = Path(__file__).resolve().parents[3]


def quoted(size: int, escapes: int) -> bytes:
    """The cookie of `size` bytes with this many escapes that takes Python longest to parse."""
    inner = size - len(b'a=""')
    return b'a="' + (b"\\a" * escapes).ljust(inner, b"x")[:inner] + b'"'


def lines(*values: bytes) -> Headers:
    return [(b"cookie", value) for value in values]


class Application:
    """The application behind the limit; records what reaches it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["type"])
        await send({"type": "reached"})


async def first_events(app: Any, scope: dict[str, Any], count: int = 1) -> list[Any]:
    """The first events that `app` sends for a request or a websocket's opening."""
    client = ApplicationCommunicator(app, {"query_string": b"", "method": "GET"} | scope)
    opening = "websocket.connect" if scope["type"] == "websocket" else "http.request"
    await client.send_input({"type": opening})
    try:
        return [await client.receive_output(timeout=TIMEOUT_S) for _ in range(count)]
    finally:
        client.stop(exceptions=False)


TOO_MUCH = [
    lines(quoted(80_000, 39_000)),
    lines(b"a=" + b"x" * (MAX_COOKIE_BYTES - 1)),
    lines(*[b"a=" + b"x" * 1022] * 8, b"a"),
    [(b"Cookie", b"a=" + b"x" * MAX_COOKIE_BYTES)],
    lines(quoted(1000, MAX_BACKSLASHES + 1)),
    lines(quoted(400, MAX_BACKSLASHES), quoted(400, 1)),
]
ALLOWED = [
    [],
    [(b"authorization", b"\\" * 80_000)],
    lines(b"sessionid=" + b"s" * 32, b"csrftoken=" + b"c" * 32),
    lines(b"a=" + b"x" * (MAX_COOKIE_BYTES - 2)),
    lines(*[b"a=" + b"x" * 1022] * 8),
    lines(quoted(MAX_COOKIE_BYTES, MAX_BACKSLASHES)),
]


@pytest.mark.parametrize("headers", TOO_MUCH)
async def test_too_much_goes_no_further(headers: Headers) -> None:
    app = Application()
    scope = {"path": "/", "headers": HOST + headers}
    start, body = await first_events(HeaderLimit(app), scope | {"type": "http"}, 2)
    assert start["status"] == 431
    assert b"Delete the cookies of this site" in body["body"]
    (closed,) = await first_events(HeaderLimit(app), scope | {"type": "websocket"})
    assert (closed["type"], closed["code"]) == ("websocket.close", REFUSED)
    assert app.reached == []


@pytest.mark.parametrize("headers", ALLOWED)
async def test_what_browsers_send_passes(headers: Headers) -> None:
    app = Application()
    for kind in ("http", "websocket"):
        scope = {"type": kind, "path": "/", "headers": HOST + headers}
        assert await first_events(HeaderLimit(app), scope) == [{"type": "reached"}]
    assert app.reached == ["http", "websocket"]


async def test_the_lifespan_has_no_cookies() -> None:
    app = Application()
    await first_events(HeaderLimit(app), {"type": "lifespan"})
    assert app.reached == ["lifespan"]


@pytest.mark.parametrize("name", MAX_PARSED_BYTES)
async def test_a_header_that_is_parsed_is_small(name: bytes) -> None:
    app, most = Application(), MAX_PARSED_BYTES[name]
    scope = {"type": "http", "path": "/"}
    for value in (b"x" * most, b"x" * (most + 1)):
        await first_events(HeaderLimit(app), scope | {"headers": [(name, value)]})
    half = [(name.upper(), b"x" * (most // 2 + 1))] * 2
    start, body = await first_events(HeaderLimit(app), scope | {"headers": half}, 2)
    assert start["status"] == 431 and f"at most {most} are".encode() in body["body"]
    assert app.reached == ["http"]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (TOO_MUCH[0], f"80000 bytes; at most {MAX_COOKIE_BYTES} are allowed."),
        (TOO_MUCH[5], f"{MAX_BACKSLASHES + 1} backslashes; at most "),
    ],
)
def test_the_message_has_the_value_and_the_limit(headers: Headers, said: str) -> None:
    error = excess(headers)
    assert error is not None and said in error.message


async def refused_at(path: str) -> tuple[bytes, bytes]:
    """Media type and body of a refusal."""
    scope = {"type": "http", "path": path, "headers": TOO_MUCH[0]}
    start, body = await first_events(HeaderLimit(Application()), scope, 2)
    headers = dict(start["headers"])
    assert headers[b"x-request-id"].startswith(b"req_")
    assert int(headers[b"content-length"]) == len(body["body"])
    return headers[b"content-type"], body["body"]


async def test_each_api_is_answered_in_its_own_shape() -> None:
    kind, body = await refused_at("/v1/chat/completions")
    error = json.loads(body)["error"]
    assert kind == b"application/json"
    assert (error["code"], error["type"]) == ("headers_too_large", "invalid_request_error")

    kind, body = await refused_at("/api/v1/keys")
    described = json.loads(body)
    assert kind == b"application/problem+json"
    assert (described["status"], described["code"]) == (431, "headers_too_large")

    kind, _ = await refused_at("/account/login/")
    assert kind.startswith(b"text/plain")


ADDRESSES = [
    ("http", "GET", "/account/login/"),
    ("http", "POST", "/t/acme/adapters/upload"),
    ("http", "GET", "/api/v1/keys"),
    ("http", "GET", "/v1/usage/receipts/key"),
]
CONTENT_TYPE = [(b"content-type", b'a/b; x="' + b";" * 30_000)]
READERS = [ADDRESSES[1]]
"""Addresses that read cookies and, without a session's, answer without a database."""
OF_GATEWAYS = [
    ("http", "GET", "/"),
    ("http", "GET", "/v1/models"),
    ("http", "GET", "/metrics"),
    ("http", "GET", "/internal/fleet"),
    ("websocket", "GET", "/ws/live"),
    ("websocket", "GET", "/ws/playground/acme"),
    ("websocket", "GET", "/ws/engine"),
    ("websocket", "GET", "/v1/responses"),
]


async def survey(app: Any) -> None:
    """Print each address's answer to cookies that are too large, and how many were parsed; then
    how many the READERS parse of those that may pass."""
    read: list[str] = []
    cookies._unquote = lambda text: read.append(text) or text
    found = []
    for kind, method, path in ADDRESSES:
        scope = {"type": kind, "method": method, "path": path, "headers": HOST + TOO_MUCH[0]}
        (refused,) = await first_events(app, scope)
        found.append([path, refused.get("status") or refused.get("code"), len(read)])
        (refused,) = await first_events(app, scope | {"headers": HOST + CONTENT_TYPE})
        assert refused["status"] == 431, path
    for kind, method, path in READERS:
        read.clear()
        scope = {"type": kind, "method": method, "path": path, "headers": HOST + ALLOWED[-1]}
        await first_events(app, scope)
        found.append([path, len(read)])
    print(json.dumps(found))


async def survey_of_gateway(app: Any) -> None:
    """Print how many cookies a gateway parses at its addresses, where it does not bound them."""
    read: list[str] = []
    cookies._unquote = lambda text: read.append(text) or text
    for kind, method, path in OF_GATEWAYS:
        scope = {"type": kind, "method": method, "path": path, "headers": HOST + TOO_MUCH[0]}
        await first_events(app, scope)
    print(json.dumps(len(read)))


def surveyed(plane: str, survey: str) -> Any:
    """The survey's output from a process of its own, in which it replaces Python's parser."""
    code = (
        "import asyncio, warnings; warnings.simplefilter('ignore')\n"
        "import django; django.setup()\n"
        f"from gateway.planes.{plane} import {plane.title()}Parts as Parts, application\n"
        f"from tests.gateway.serving.test_headers import {survey}\n"
        f"asyncio.run({survey}(application(Parts.configured())))"
    )
    variables = {
        "PYTHONPATH": f"platform{os.pathsep}.",
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
    }
    env = os.environ | variables
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_address_of_the_console_reads_them() -> None:
    found = surveyed("control", "survey")
    assert found == [
        *([path, 431, 0] for _, _, path in ADDRESSES),
        *([path, 1] for _, _, path in READERS),
    ]


def test_a_gateway_reads_none_at_all() -> None:
    assert surveyed("inference", "survey_of_gateway") == 0
