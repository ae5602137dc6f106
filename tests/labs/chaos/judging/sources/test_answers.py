"""How the clients read an answer, and which answers they must not accept."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.labs.chaos.judging.facts import Received
from tests.labs.chaos.judging.sources.answers import receive

CHAT = "/v1/chat/completions"
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def whole(text: str, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": USAGE} | fields


def stream(*parts: str) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {part}\n\n" for part in parts))


CHUNK = '{"choices":[{"index":0,"delta":{"content":"teas"}}]}'
END = json.dumps({"choices": [], "usage": USAGE})
ERROR = {"message": "m", "type": "server_error", "param": None, "code": "engine_lost"}

ANSWERS: dict[str, tuple[httpx.Response, dict[str, Any]]] = {
    "whole": (httpx.Response(200, json=whole("teapot")), {"complete": True, "tokens": 2}),
    "whole, a token too few": (httpx.Response(200, json=whole("tea")), {"wrong": "1 tokens"}),
    "no usage": (httpx.Response(200, json=whole("teapot", usage=None)), {"wrong": "its usage"}),
    "not JSON": (httpx.Response(200, text="<html>"), {"wrong": "not an answer"}),
    "error": (httpx.Response(502, json={"error": ERROR}), {"error": "engine_lost"}),
    "error of another shape": (
        httpx.Response(502, json={"error": {"message": "m"}}), {"wrong": "not an error"},
    ),
    "error page": (httpx.Response(500, text="Server Error"), {"wrong": "not an answer"}),
    "stream": (stream(CHUNK, CHUNK, END, "[DONE]"), {"complete": True, "tokens": 2}),
    "stream, a token lost": (stream(CHUNK, END, "[DONE]"), {"wrong": "1 tokens"}),
    "stream without an end": (stream(CHUNK, END), {"wrong": "without an end"}),
    "stream that failed": (
        stream(CHUNK, json.dumps({"error": ERROR})),
        {"error": "engine_lost", "tokens": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
async def test_outcomes_of_answers(answer: str) -> None:
    response, expected = ANSWERS[answer]
    one = Received("acme", "gateway-0", 0.0, path=CHAT, streams=answer.startswith("stream"))
    await receive(response, one, None, four_letters=True)
    assert sum(map(bool, (one.complete, one.left, one.error, one.broken, one.wrong))) == 1
    for name, value in expected.items():
        found = getattr(one, name)
        assert value in found if isinstance(value, str) else value == found


async def test_a_client_that_leaves() -> None:
    one = Received("acme", "gateway-0", 0.0, path=CHAT, streams=True)
    await receive(stream(CHUNK, CHUNK, CHUNK, END, "[DONE]"), one, 2, four_letters=True)
    assert (one.outcome, one.tokens) == ("client left", 2)


async def test_an_answer_that_a_limit_cut() -> None:
    """More tokens may have been generated than were sent."""
    cut = {"choices": [{"index": 0, "delta": {}, "finish_details": {"code": "c"}}]}
    one = Received("acme", "gateway-0", 0.0, path=CHAT, streams=True)
    await receive(stream(CHUNK, json.dumps(cut), END, "[DONE]"), one, None, four_letters=True)
    assert (one.complete, one.tokens) == (True, 1)


async def test_an_engine_with_other_tokens() -> None:
    """A piece of text has at least one token, and maybe more."""
    one = Received("acme", "gateway-0", 0.0, path=CHAT, streams=True)
    await receive(stream(CHUNK, END, "[DONE]"), one, None, four_letters=False)
    assert (one.complete, one.tokens) == (True, 1)
