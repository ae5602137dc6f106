"""What the console answers under the API's address: passed on without bodies, cookies or loops."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from gateway.planes import forward
from gateway.planes.forward import Forward
from tests.adapters.servers import Responder, serving

PATH = "/v1/usage/receipts?limit=1&after=a%2Fb"


async def test_a_report_is_passed_on_and_nothing_that_it_needs_not() -> None:
    console = Responder(lambda scope, body: (206, scope["query_string"]))
    async with (
        serving(console) as url,
        Forward(url) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here) as client,
    ):
        headers = {"Authorization": "Bearer lk_x", "Cookie": "sessionid=1", "X-Forwarded-For": "1"}
        answer = await client.get(PATH, headers=headers)
    assert (answer.status_code, answer.text) == (206, "limit=1&after=a%2Fb")
    ((path, passed, body),) = console.requests
    assert (path, passed[b"authorization"], body) == ("/v1/usage/receipts", b"Bearer lk_x", b"")
    assert b"cookie" not in passed and b"x-forwarded-for" not in passed


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "lk_x"},
        {"api-key": "lk_x", "Authorization": "Bearer lk_x"},
        {"api-key": "lk_x", "Authorization": "Basic dXNlcjp3b3Jk"},
    ],
    ids=str,
)
async def test_the_console_finds_the_key_where_it_looks(headers: dict[str, str]) -> None:
    console = Responder(lambda scope, body: (200, b""))
    async with (
        serving(console) as url,
        Forward(url) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here) as client,
    ):
        answer = await client.get(PATH, headers=headers)
        differing = await client.get(PATH, headers={"api-key": "lk_x", "x-api-key": "lk_y"})
    assert (answer.status_code, differing.status_code) == (200, 401)
    ((_, passed, _),) = console.requests
    assert passed[b"authorization"] == b"Bearer lk_x"
    assert not passed.keys() & {b"api-key", b"x-api-key"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [("POST", {}, 405), ("DELETE", {}, 405), ("GET", {"x-lorikeet-forwarded": "1"}, 503)],
)
async def test_what_is_refused(method: str, headers: dict[str, str], status: int) -> None:
    console = Responder(lambda scope, body: (200, b""))
    async with (
        serving(console) as url,
        Forward(url) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here) as client,
    ):
        answer = await client.request(method, PATH, headers=headers)
    assert (answer.status_code, console.requests) == (status, [])


async def test_a_console_that_is_away_is_said_to_be(unused_tcp_port: int) -> None:
    async with (
        Forward(f"http://127.0.0.1:{unused_tcp_port}") as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here) as client,
    ):
        answer = await client.get(PATH)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "service_unavailable"


async def test_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "MAX_FORWARDED", 1)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def console(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async with (
        serving(console) as url,
        Forward(url) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here, timeout=60) as client,
    ):
        first = asyncio.create_task(client.get(PATH))
        await asked.wait()
        assert (await client.get(PATH)).status_code == 503
        go_on.set()
        assert (await first).text == "ok"
