"""The guard answers before the body is read, and cuts off a body that is too long."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from pytest_django import Settings

from inference.errors import InferenceError, InvalidApiKey
from inference.interfaces.directory import Grant, ModelCard, ResolvedTarget, TrafficRoute
from tenants.adapters.uploads.guard import FRAMING_BYTES, BodyGuard
from tests.adapters.servers import serving
from tests.adapters.uploads.uploading import KEY, chunked

PATH = "/api/v1/adapters/pirate/versions"
BEARER = (b"authorization", KEY["Authorization"].encode())


class Application:
    """The application behind the guard: reads the whole body, as Django does, and answers 200."""

    def __init__(self) -> None:
        self.bodies: list[int] = []
        self.disconnects = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        self.bodies.append(size)
        length = (b"content-length", b"2")
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b"ok"})


class Keys:
    """A Directory that knows two keys."""

    async def authenticate(self, secret: str) -> Grant:
        scopes = {KEY["Authorization"][7:]: "adapters:write", "lk_reader": "inference"}
        if secret not in scopes:
            raise InvalidApiKey
        return Grant(1, 1, "acme", frozenset({scopes[secret]}), None, 1.0, "salt")

    async def grant_of(self, key_id: int) -> Grant:
        raise NotImplementedError

    async def resolve(self, grant: Grant, name: str) -> ResolvedTarget:
        raise NotImplementedError

    async def cascade(self, grant: Grant, name: str) -> TrafficRoute | None:
        raise NotImplementedError

    async def models(self, grant: Grant) -> list[ModelCard]:
        raise NotImplementedError

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        raise NotImplementedError


async def ask(
    guard: BodyGuard, headers: list[tuple[bytes, bytes]], path: str = PATH, method: str = "POST"
) -> tuple[int, dict[str, Any]]:
    """The guard's answer to a request whose body must not be read."""
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await guard(scope, receive, send)
    assert (b"content-type", b"application/problem+json") in sent[0]["headers"]
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Basic bGs=")],
        [(b"authorization", b"Bearer sk-other")],
        [(b"cookie", b"csrftoken=x")],
    ],
)
async def test_an_upload_without_valid_credentials_is_refused(
    headers: list[tuple[bytes, bytes]],
) -> None:
    status, problem = await ask(BodyGuard(Application()), headers)
    assert (status, problem["code"], problem["status"]) == (401, "invalid_api_key", 401)


async def test_the_form_of_the_console_is_guarded_alike(settings: Settings) -> None:
    settings.MAX_ADAPTER_BYTES = 1000
    form, guard = "/t/acme/adapters/upload", BodyGuard(Application())
    assert (await ask(guard, [], form))[0] == 401
    length = (b"content-length", str(1000 + FRAMING_BYTES + 1).encode())
    assert (await ask(guard, [BEARER, length], form))[0] == 413


async def test_keys_are_checked_in_full_with_a_directory() -> None:
    guard = BodyGuard(Application(), Keys())
    unknown = (b"authorization", b"Bearer lk_unknown")
    assert (await ask(guard, [unknown]))[0] == 401
    reader = (b"authorization", b"Bearer lk_reader")
    status, problem = await ask(guard, [reader])
    assert (status, problem["code"]) == (403, "insufficient_permissions")
    async with serving(guard) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.post(PATH, content=b"x", headers=KEY)).status_code == 200


async def test_announced_too_large(settings: Settings) -> None:
    settings.MAX_ADAPTER_BYTES = 1000
    length = str(1000 + FRAMING_BYTES + 1).encode()
    status, problem = await ask(BodyGuard(Application()), [BEARER, (b"content-length", length)])
    assert (status, problem["code"]) == (413, "payload_too_large")
    assert "1,000\N{NO-BREAK SPACE}bytes" in problem["detail"]


@pytest.mark.django_db(transaction=True)
async def test_session_of_a_browser(settings: Settings) -> None:
    session, anonymous = SessionStore(), SessionStore()
    session[SESSION_KEY] = "1"
    anonymous["next"] = "/"
    await session.acreate()
    await anonymous.acreate()
    keys = {session.session_key: 200, anonymous.session_key: 401, "made-up": 401}
    application = Application()
    async with (
        serving(BodyGuard(application)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        for key, status in keys.items():
            cookie = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={key}"}
            assert (await client.post(PATH, content=b"x", headers=cookie)).status_code == status


async def test_over_a_real_connection(settings: Settings) -> None:
    settings.MAX_ADAPTER_BYTES = 100_000
    limit = 100_000 + FRAMING_BYTES
    application = Application()
    async with (
        serving(BodyGuard(application)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):

        async def post(content: Any, path: str = PATH) -> int:
            return (await client.post(path, content=content, headers=KEY)).status_code

        assert await post(bytes(limit)) == 200
        assert await post(chunked(bytes(limit))) == 200
        assert application.bodies == [limit, limit]
        assert await post(bytes(10 * limit)) == 413, "announced: refused before it is read"
        assert application.disconnects == 0
        assert await post(chunked(bytes(limit + 1))) == 413, "counted: cut off"
        assert await post(chunked(bytes(3 * limit), 70_000)) == 413
        assert application.disconnects == 2
        assert (await client.get(PATH)).status_code == 200


@pytest.mark.parametrize("path", ["/account/login/", "/api/v1/keys", "/api/v1/uploads/x", "/"])
async def test_no_other_address_takes_what_fills_the_disk(settings: Settings, path: str) -> None:
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    length = (b"content-length", str(limit + 1).encode())
    status, problem = await ask(BodyGuard(Application()), [length], path)
    assert (status, problem["code"]) == (413, "payload_too_large")
    assert str(limit) in problem["detail"]
    application = Application()
    async with (
        serving(BodyGuard(application)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        assert (await client.post(path, content=bytes(limit))).status_code == 200
        assert (await client.put(path, content=chunked(bytes(limit + 1)))).status_code == 413
    assert (application.bodies, application.disconnects) == ([limit], 1)


async def test_application_that_answered_already(settings: Settings) -> None:
    """The guard sends no answer after the application's."""
    settings.MAX_ADAPTER_BYTES = 1000

    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        while (await receive())["type"] != "http.disconnect":
            pass

    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(FRAMING_BYTES), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [BEARER]}
    await BodyGuard(hasty)(scope, receive, send)
    assert [message.get("status") for message in sent] == [400, None]
