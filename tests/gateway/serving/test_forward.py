"""Requests that gateways forward to the console: without bodies, cookies or loops."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from gateway.planes import forward
from gateway.planes.forward import Forward
from inference.errors import InvalidApiKey
from inference.interfaces.directory import Grant
from inference.shared_capacity import TENANT_SHARE
from tests.adapters.servers import Responder, serving

PATH = "/v1/usage/receipts?limit=1&after=a%2Fb"


async def knows(key: str) -> Grant:
    """The grant of a key: `lk_acme` is of the tenant `acme`, and so on."""
    if not key.startswith("lk_"):
        raise InvalidApiKey
    return Grant(1, 1, key.removeprefix("lk_"), frozenset(), None, 1.0, "")


async def test_a_report_is_passed_on_and_nothing_that_it_needs_not() -> None:
    console = Responder(lambda scope, body: (206, scope["query_string"]))
    async with (
        serving(console) as url,
        Forward(url, knows) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here, timeout=60) as client,
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
        Forward(url, knows) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here, timeout=60) as client,
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
async def test_requests_that_are_not_forwarded(
    method: str, headers: dict[str, str], status: int
) -> None:
    console = Responder(lambda scope, body: (200, b""))
    async with (
        serving(console) as url,
        Forward(url, knows) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here, timeout=60) as client,
    ):
        answer = await client.request(method, PATH, headers=headers)
    assert (answer.status_code, console.requests) == (status, [])


async def test_a_console_that_is_away_is_said_to_be(unused_tcp_port: int) -> None:
    async with (
        Forward(f"http://127.0.0.1:{unused_tcp_port}", knows) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here, timeout=60) as client,
    ):
        answer = await client.get(PATH)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "service_unavailable"


@pytest.mark.parametrize(("method", "path"), [("GET", PATH), ("POST", "/v1/files")])
async def test_a_tenant_takes_its_share_alone(method: str, path: str) -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()
    go_on = asyncio.Event()

    async def console(scope: Any, receive: Any, send: Any) -> None:
        asked.put_nowait(None)
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async with (
        serving(console) as url,
        Forward(url, knows) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here, timeout=60) as client,
    ):

        async def ask(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (await client.request(method, path, headers=headers)).status_code

        share = [
            asyncio.create_task(ask("lk_acme")) for _ in range(forward.AT_ONCE // TENANT_SHARE)
        ]
        for _ in share:
            await asked.get()
        assert await ask("lk_acme") == 503
        other = asyncio.create_task(ask("lk_other"))
        await asked.get()
        go_on.set()
        assert await asyncio.gather(other, *share) == [200] * (1 + len(share))
        assert await ask("lk_acme") == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/files", 401),
        ("GET", "/v1/files/file-1/content", 401),
        ("GET", "/v1/usage/receipts/jwks.json", 200),
    ],
)
async def test_files_are_for_keys_alone(method: str, path: str, status: int) -> None:
    console = Responder(lambda scope, body: (200, b""))
    async with (
        serving(console) as url,
        Forward(url, knows) as app,
        serving(app) as here,
        httpx.AsyncClient(base_url=here, timeout=60) as client,
    ):
        answer = await client.request(method, path)
        wrong = await client.request(method, path, headers={"Authorization": "Bearer guessed"})
    assert (answer.status_code, wrong.status_code) == (status, 401)
    assert len(console.requests) == (status == 200)
