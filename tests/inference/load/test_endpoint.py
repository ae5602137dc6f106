"""What is sent over HTTP, and what of an answer is understood."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from inference.load.callers import LoadCaller
from inference.load.endpoint import HTTPEndpoint
from inference.load.planned import PlannedRequest
from inference.load.prompts import PromptText
from inference.load.sending import LoadRefused

CALLERS = {"a": LoadCaller("a", ("m",), "key-of-a"), "b": LoadCaller("b", ("m",))}
ASKED = PlannedRequest(0.0, "a", "m", ((1, 20),), 7)
Handler = Callable[[httpx.Request], httpx.Response]


class Heard:
    def __init__(self) -> None:
        self.texts = 0
        self.counted = (0, 0, 0)

    def text(self) -> None:
        self.texts += 1

    def usage(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        self.counted = (prompt_tokens, cached_tokens, output_tokens)


def endpoint(handler: Handler, *, ignore_eos: bool = True) -> HTTPEndpoint:
    transport = httpx.MockTransport(handler)
    text = PromptText("s")
    return HTTPEndpoint("http://h/v1/", CALLERS, text, ignore_eos=ignore_eos, transport=transport)


def events(*parts: object) -> bytes:
    return b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)


def delta(text: str | None, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def usage(prompt: int) -> dict[str, object]:
    details = {"cached_tokens": 16}
    counts = {"prompt_tokens": prompt, "completion_tokens": 7, "prompt_tokens_details": details}
    return {"choices": [], "usage": counts}


GOOD = events(delta(""), delta("\u2028a"), delta("b", "length"), usage(33)) + b"data: [DONE]\n\n"


async def test_a_request_has_its_tenants_key_and_its_length() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=GOOD)

    asked, heard = endpoint(handler), Heard()
    body = asked.prepare(ASKED)
    await asked.ask(ASKED, body, heard)
    await asked.ask(PlannedRequest(0.0, "b", "m", ((1, 20),), 7), body, Heard())
    assert str(seen[0].url) == "http://h/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer key-of-a"
    assert "authorization" not in seen[1].headers
    sent = json.loads(seen[0].content)
    assert (sent["model"], sent["max_tokens"], sent["ignore_eos"], sent["stream"]) == (
        "m",
        7,
        True,
        True,
    )
    assert len(sent["messages"][0]["content"].split()) == 20
    assert (heard.texts, heard.counted) == (2, (33, 16, 7))
    assert b"ignore_eos" not in endpoint(handler, ignore_eos=False).prepare(ASKED)


@pytest.mark.parametrize(
    ("status", "content", "code"),
    [
        (429, b"{}", "HTTP 429"),
        (302, b"", "HTTP 302"),
        (200, b"", "answer cut off"),
        (200, events(delta("a")), "answer cut off"),
        (200, b"data: {\n\n", "not an event of OpenAI's"),
        (200, b'data: {"choices": 5}\n\n', "not an event of OpenAI's"),
        (200, b"data: \xff\n\n", "not an event of OpenAI's"),
        (200, events(delta("a"), {"error": {"message": "x"}}), "error in the stream"),
        (200, b"data: " + b"x" * (5 << 20), "an event too long"),
    ],
)
async def test_what_is_no_answer_has_a_code(status: int, content: bytes, code: str) -> None:
    asked = endpoint(lambda _: httpx.Response(status, content=content))
    with pytest.raises(LoadRefused, match=f"^{code}$"):
        await asked.ask(ASKED, b"", Heard())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (httpx.ConnectError("x"), "no connection"),
        (httpx.ConnectTimeout("x"), "no connection"),
        (httpx.ReadError("x"), "connection lost"),
        (httpx.RemoteProtocolError("x"), "connection lost"),
    ],
)
async def test_a_broken_connection_has_a_code(error: httpx.HTTPError, code: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(LoadRefused, match=code):
        await endpoint(handler).ask(ASKED, b"", Heard())


async def test_words_are_measured() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        words = len(json.loads(request.content)["messages"][0]["content"].split())
        return httpx.Response(200, content=events(delta("a", "length"), usage(12 + 3 * words)))

    asked = endpoint(handler)
    await asked.measure(CALLERS["a"])
    assert (asked.text.tokens_per_word, asked.text.overhead_tokens) == (3.0, 12.0)


async def test_without_usage_words_can_not_be_measured() -> None:
    asked = endpoint(lambda _: httpx.Response(200, content=events(delta("a", "stop"))))
    with pytest.raises(LoadRefused, match="no usage in the answer"):
        await asked.measure(CALLERS["a"])
