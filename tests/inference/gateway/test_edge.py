"""What the HTTP edge answers itself: keys, methods, paths, encodings."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.errors import MAX_RETRY_AFTER_S, RateLimitExceeded
from inference.operations.registry import OPERATIONS
from tests.inference.rig import Rig, chat, rig
from tests.inference.samples import MODEL

CHAT = "/v1/chat/completions"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def asked(stack: Rig, method: str, path: str, **options: Any) -> httpx.Response:
    async with stack.gateway.client(key="") as client:
        return await client.request(method, path, **options)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer acme"},
        {"Authorization": "bearer  acme"},
        {"api-key": "acme"},
        {"X-API-Key": "acme"},
        {"Authorization": "Bearer acme", "x-api-key": "acme"},
        {"Authorization": "Basic dXNlcjp3b3Jk", "api-key": "acme"},
        {"Authorization": "Bearer acme", "api-key": ""},
    ],
    ids=str,
)
async def test_a_key_comes_in_one_of_three_headers(stack: Rig, headers: dict[str, str]) -> None:
    answer = await asked(stack, "POST", CHAT, json=chat(max_tokens=1), headers=headers)
    assert answer.status_code == 200, answer.text
    (entry,) = await stack.gateway.ledger.settled()
    assert entry.account.tenant_id == len("acme")


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([], "didn't provide"),
        ([("Authorization", "Basic acme")], "didn't provide"),
        ([("Authorization", "Bearer")], "didn't provide"),
        ([("x-api-key", "")], "didn't provide"),
        ([("Authorization", "Bearer acme"), ("x-api-key", "globex")], "different API keys"),
        ([("api-key", "acme"), ("x-api-key", "globex")], "different API keys"),
        ([("Authorization", "Bearer acme"), ("Authorization", "Bearer globex")], "different"),
    ],
    ids=str,
)
async def test_a_request_without_exactly_one_key_is_refused_unchecked(
    stack: Rig, headers: list[tuple[str, str]], says: str
) -> None:
    for path in (CHAT, "/v1/models"):
        method = "POST" if path == CHAT else "GET"
        answer = await asked(stack, method, path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert says in answer.json()["error"]["message"]
    assert stack.gateway.keys.lookups["key"] == 0


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", f"/v1/models/{MODEL.name}", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
        ("DELETE", "/health", "GET, HEAD"),
        ("PATCH", "/readyz", "GET, HEAD"),
    ],
)
async def test_a_method_that_is_not_taken(stack: Rig, method: str, path: str, allow: str) -> None:
    answer = await asked(stack, method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/v1/", "/v1/assistants", "/v1/chat", "/v1/" + "x" * 5000])
async def test_an_unknown_address_is_said_as_openai_does(
    stack: Rig, method: str, path: str
) -> None:
    answer = await asked(stack, method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "not_found")
    assert len(error["message"]) <= 400


async def test_health_is_served_where_load_generators_look(stack: Rig) -> None:
    answers = [await asked(stack, "GET", path) for path in ("/healthz", "/health")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, identity"])
async def test_a_compressed_body_is_refused_unread(stack: Rig, encoding: str) -> None:
    headers = {"Authorization": "Bearer acme", "Content-Encoding": encoding}
    body = gzip.compress(json.dumps(chat()).encode())
    answer = await asked(stack, "POST", CHAT, content=body, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (415, "unsupported_media_type")
    assert encoding.lower() in error["message"]


async def test_a_body_that_is_said_to_be_plain_is_read(stack: Rig) -> None:
    headers = {"Authorization": "Bearer acme", "Content-Encoding": "identity"}
    answer = await asked(stack, "POST", CHAT, json=chat(max_tokens=1), headers=headers)
    assert answer.status_code == 200


async def test_a_model_is_found_by_every_name_that_a_request_may_have(stack: Rig) -> None:
    """Also by the name of a version whose adapter has no live version in the list."""
    stack.adapter("acme", "support@2")
    async with stack.gateway.client() as client:
        assert (await client.post(CHAT, json=chat("support@2", max_tokens=1))).status_code == 200
        answer = await client.get("/v1/models/support@2")
        base = await client.get(f"/v1/models/{MODEL.name}")
    free = dict.fromkeys(("prompt", "cached_prompt", "completion"), "0")
    pricing = {"currency": "usd", "unit": "1M tokens"} | free
    can = {"tools": False, "reasoning": False, "structured_outputs": False, "vision": False}
    found = {"object": "model", "created": 0, "root": MODEL.name, "pricing": pricing}
    found |= {"operations": [one.path for one in OPERATIONS], "capabilities": can}
    assert answer.json() == found | {"id": "support@2", "owned_by": "acme"}
    assert base.json() == found | {"id": MODEL.name, "owned_by": "lorikeet"}


async def test_nobody_is_told_to_wait_longer_than_clients_listen(stack: Rig) -> None:
    stack.gateway.limits.full = True
    stack.gateway.limits.refusal = RateLimitExceeded("Full.", retry_after_s=61.0)
    async with stack.gateway.client() as client:
        answer = await client.post(CHAT, json=chat())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, str(MAX_RETRY_AFTER_S))
