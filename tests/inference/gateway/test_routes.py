"""Requests that name a route: which option answers, and what the answer and the ledger say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from inference.interfaces.directory import ResolvedTarget, TokenPrice, TrafficRoute
from tests.inference.rig import Rig, chat, rig
from tests.inference.samples import MODEL
from tests.inference.test_routes import EASY, HARD, fit


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    """With a route of acme between two of its adapters."""
    async with rig(tmp_path) as one:
        options = [
            ResolvedTarget(
                name, MODEL.name, one.adapter("acme", name, number), number,
                adapter_id=number, price=TokenPrice(number, number, number),
            )
            for number, name in enumerate(("small", "large"), 1)
        ]  # fmt: skip
        one.gateway.keys.routes["acme", "auto"] = TrafficRoute("auto", options, 1, fit())
        yield one


async def ask(stack: Rig, path: str, body: dict[str, Any], key: str = "acme") -> httpx.Response:
    async with stack.gateway.client(key) as client:
        return await client.post(path, json=body)


def body_of(path: str, text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 2},
        "/v1/completions": {"prompt": text, "max_tokens": 2},
        "/v1/responses": {"input": text, "max_output_tokens": 16},
        "/v1/messages": {"messages": messages, "max_tokens": 2},
    }
    return {"model": "auto", **bodies[path], **more}


PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("text", "answers"), [(EASY, "small"), (HARD, "large")])
async def test_the_chosen_option_answers_and_is_named_and_billed(
    stack: Rig, path: str, text: str, answers: str
) -> None:
    answer = await ask(stack, path, body_of(path, text))
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == answers
    (entry,) = await stack.gateway.ledger.settled()
    number = 1 if answers == "small" else 2
    assert (entry.model, entry.account.route) == (answers, "auto")
    assert (entry.account.version_id, entry.account.adapter_id) == (number, number)
    assert entry.account.price == (number,) * 3


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_names_the_option_too(stack: Rig, path: str) -> None:
    answer = await ask(stack, path, body_of(path, HARD, stream=True))
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if "{" in line]
    first = json.loads(data[0])
    named = first.get("model") or (first.get("response") or first.get("message"))["model"]
    assert named == "large" and '"model":"auto"' not in answer.text


async def test_what_has_no_text_gets_the_best_option(stack: Rig) -> None:
    answer = await ask(stack, "/v1/completions", {"model": "auto", "prompt": [1, 2, 3]})
    assert answer.json()["model"] == "large"


async def test_a_request_with_a_models_own_name_is_not_routed(stack: Rig) -> None:
    assert (await ask(stack, PATHS[0], chat("small"))).json()["model"] == "small"
    (entry,) = await stack.gateway.ledger.settled()
    assert entry.account.route == ""


async def test_the_defaults_of_the_base_model_apply_to_the_option(stack: Rig) -> None:
    route = stack.gateway.keys.routes["acme", "auto"]
    options = [option and replace(option, defaults=b'"max_tokens":1,') for option in route.options]
    stack.gateway.keys.routes["acme", "auto"] = replace(route, options=options)
    answer = await ask(stack, PATHS[0], chat("auto", messages=[{"role": "user", "content": HARD}]))
    assert answer.json()["model"] == "large"
    assert answer.json()["usage"]["completion_tokens"] == 1
    (entry,) = await stack.gateway.ledger.settled()
    assert (entry.model, entry.account.route) == ("large", "auto")


async def test_another_tenant_has_no_such_model(stack: Rig) -> None:
    answer = await ask(stack, PATHS[0], chat("auto"), key="globex")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
