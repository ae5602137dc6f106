"""A gateway accepts no session and no password: the console's credentials are refused here."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.planes.forward import ROUTE
from gateway.planes.inference import InferenceParts, application
from inference.gateway import http

PATHS = {
    ROUTE: "/v1/usage/receipts",
    http.ROUTE: "/v1/models",
    r"^(healthz|health|readyz|fleetz)$": "/healthz",
    r"^metrics$": "/metrics",
    r"^demand$": "/demand",
    r"^internal/": "/internal/engines",
    r"^engine/failed$": "/engine/failed",
    r"^engine/probe$": "/engine/probe",
    r"^engine/adapters/": "/engine/adapters/" + "0" * 64 + "/adapter_config.json",
    r"": "/account/login/",
}
"""A path for each route; a new route must be added here."""
SOCKETS = {
    r"^v1/responses$": "/v1/responses",
    r"^ws/engine$": "/ws/engine",
    r"^ws/lines$": "/ws/lines",
    r"^ws/live$": "/ws/live",
    r"^ws/playground/(?P<slug>[a-z0-9-]+)$": "/ws/playground/acme",
    r"": "/ws/no-such",
}
OPEN = {"/healthz"}
SESSION = "abcdefghijklmnopqrstuvwxyz012345"
BASIC = "Basic " + base64.b64encode(b"operator:the right password").decode()


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    parts = InferenceParts.configured()
    async with parts.forward:
        yield application(parts)


def patterns(app: Any, kind: str) -> set[str]:
    return {str(route.pattern) for route in app.application_mapping[kind].routes}


async def test_every_route_is_tried(app: Any) -> None:
    assert patterns(app, "http") == PATHS.keys()
    assert patterns(app, "websocket") == SOCKETS.keys()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", [*PATHS.values(), *http.VLLM_PATHS])
async def test_no_session_and_no_password_opens_an_address(
    app: Any, path: str, method: str
) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        plain = await client.request(method, path)
        for headers in ({"Cookie": f"sessionid={SESSION}"}, {"Authorization": BASIC}):
            answer = await client.request(method, path, headers=headers)
            assert answer.status_code == plain.status_code
            assert answer.status_code >= 400 or path in OPEN
            assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", SOCKETS.values())
async def test_no_session_opens_a_socket(app: Any, path: str) -> None:
    said: list[dict[str, Any]] = []
    heard = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", "text": SESSION}])

    async def receive() -> dict[str, Any]:
        return next(heard, {"type": "websocket.disconnect", "code": 1000})

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    headers = [(b"cookie", f"sessionid={SESSION}".encode()), (b"authorization", BASIC.encode())]
    headers += [(b"origin", b"http://localhost")]
    scope = {"type": "websocket", "path": path, "headers": headers, "query_string": b"",
             "client": ("192.0.2.1", 1), "subprotocols": []}  # fmt: skip
    await app(scope, receive, send)
    assert said[-1]["type"] == "websocket.close"
    assert [one["type"] for one in said].count("websocket.send") == 0
