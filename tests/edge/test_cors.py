"""CORS: which requests from pages of other origins are allowed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.edge.cors import Cors

PAGE = "https://app.example.com"
ASKED = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
}


class Application:
    def __init__(self) -> None:
        self.reached = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached += 1
        headers = [(b"content-length", b"2"), (b"x-request-id", b"req_1")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})


def client(app: Application, *origins: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Cors(app, origins))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://api")


def cors(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-")}


async def test_cors_is_off_by_default() -> None:
    app = Application()
    async with client(app) as one:
        answers = [await one.get("/", headers=ASKED), await one.options("/", headers=ASKED)]
    assert app.reached == 2
    assert [cors(answer) for answer in answers] == [{}, {}]


@pytest.mark.parametrize("origins", [(PAGE,), ("https://other.example", f"{PAGE}/"), ("*",)])
async def test_a_preflight_is_answered(origins: tuple[str, ...]) -> None:
    app = Application()
    async with client(app, *origins) as one:
        answer = await one.options("/v1/chat/completions", headers=ASKED)
    assert (answer.status_code, app.reached) == (204, 0)
    told = cors(answer)
    assert told.pop("access-control-allow-origin") == ("*" if origins == ("*",) else PAGE)
    assert "POST" in told["access-control-allow-methods"]
    assert told["access-control-allow-headers"] == ASKED["Access-Control-Request-Headers"]
    assert "access-control-allow-credentials" not in told


async def test_a_page_may_read_answers_and_refusals() -> None:
    app = Application()
    async with client(app, PAGE) as one:
        answer = await one.post("/", headers={"Origin": PAGE})
    assert (answer.status_code, answer.text, answer.headers["vary"]) == (401, "no", "Origin")
    assert cors(answer) == {
        "access-control-allow-origin": PAGE,
        "access-control-expose-headers": "*",
    }


@pytest.mark.parametrize(
    "origin",
    ["http://app.example.com", "https://app.example.com:8443", "https://example.com", "null",
     "https://app.example.com.evil.example"],
)  # fmt: skip
async def test_other_pages_are_told_nothing(origin: str) -> None:
    app = Application()
    async with client(app, PAGE) as one:
        answer = await one.options("/", headers=ASKED | {"Origin": origin})
    assert (answer.status_code, app.reached) == (401, 1)
    assert cors(answer) == {}


@pytest.mark.parametrize("wanted", ["", "a" * 100, ", ".join(["x-a"] * 65), "a b", "ä"])
async def test_headers_that_are_none_are_not_allowed(wanted: str) -> None:
    async with client(Application(), PAGE) as one:
        asked = ASKED | {"Access-Control-Request-Headers": wanted.encode("latin-1")}
        answer = await one.options("/", headers=asked)  # type: ignore[arg-type]
    assert answer.status_code == 204
    assert "access-control-allow-headers" not in answer.headers


async def test_options_of_no_page_are_the_applications() -> None:
    app = Application()
    async with client(app, "*") as one:
        assert (await one.options("/")).status_code == 401
        assert (await one.options("/", headers={"Origin": PAGE})).status_code == 401
