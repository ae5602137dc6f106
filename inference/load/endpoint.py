"""An OpenAI endpoint over HTTP: streamed chats, whose usage is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from inference.agent.engines.upstream.connection import IDLE_S
from inference.agent.engines.upstream.reading import EventStream
from inference.errors import EngineFailed
from inference.load.callers import LoadCaller
from inference.load.planned import PlannedRequest
from inference.load.prompts import PromptText
from inference.load.sending import AnswerListener, LoadRefused

CONNECT_S = 30.0
SHORT, LONG = 8, 136
"""Words of the two prompts that measure how many tokens words are."""


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def has_text(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning)


class _Choice(msgspec.Struct):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int:
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


class HTTPEndpoint:
    """Chats at `base_url`, which ends in `/v1`. With `ignore_eos`, a field of vLLM's, answers are
    as long as planned; without it, planned lengths are only their limit."""

    def __init__(
        self,
        base_url: str,
        callers: Mapping[str, LoadCaller],
        text: PromptText,
        *,
        ignore_eos: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        # No limits of its own: what is not sent in time is the sender's to count.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S
            ),
            trust_env=False,
            transport=transport,
        )
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._callers = callers
        self._more = {"ignore_eos": True} if ignore_eos else {}
        self.text = text

    async def aclose(self) -> None:
        await self._client.aclose()

    async def measure(self, caller: LoadCaller) -> None:
        """Find out how many tokens words are, for the model that this tenant asks for most.

        Raises:
            LoadRefused: it didn't answer, or without usage.
        """
        short, long = [
            (words, await self._tokens_of(caller, self.text.words(words)))
            for words in (SHORT, LONG)
        ]
        self.text = self.text.measured(short, long)

    async def _tokens_of(self, caller: LoadCaller, text: str) -> int:
        body = _body(caller.models[0], text, 1, {})
        noted = _NotedUsage()
        await self._ask(caller, body, noted)
        if not noted.prompt_tokens:
            raise LoadRefused("no usage in the answer")
        return noted.prompt_tokens

    def prepare(self, request: PlannedRequest) -> bytes:
        text = self.text.of(request)
        return _body(request.model, text, request.output_tokens, self._more)

    async def ask(self, request: PlannedRequest, body: bytes, listener: AnswerListener) -> None:
        await self._ask(self._callers[request.tenant], body, listener)

    async def _ask(self, caller: LoadCaller, body: bytes, listener: AnswerListener) -> None:
        headers = {"content-type": "application/json"}
        if caller.key:
            headers["authorization"] = f"Bearer {caller.key}"
        try:
            async with self._client.stream(
                "POST", self._url, content=body, headers=headers
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise LoadRefused(f"HTTP {answer.status_code}")
                await _read(answer, listener)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise LoadRefused("no connection") from None
        except httpx.HTTPError:
            raise LoadRefused("connection lost") from None


def _body(model: str, text: str, tokens: int, more: dict[str, Any]) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
    )


async def _read(answer: httpx.Response, listener: AnswerListener) -> None:
    events, finished = EventStream(), False
    try:
        async for piece in answer.aiter_bytes():
            for data in events.feed(piece):
                finished |= _take(data, listener)
    except EngineFailed:
        raise LoadRefused("an event too long") from None
    if not finished:
        raise LoadRefused("answer cut off")


def _take(data: bytes, listener: AnswerListener) -> bool:
    """Pass an event on; returns whether it ends the answer."""
    try:
        event = _event.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LoadRefused("not an event of OpenAI's") from None
    if event.error:
        raise LoadRefused("error in the stream")
    if any(choice.delta.has_text for choice in event.choices):
        listener.text()
    if (usage := event.usage) is not None:
        listener.usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    return any(choice.finish_reason for choice in event.choices)


class _NotedUsage:
    def __init__(self) -> None:
        self.prompt_tokens = 0

    def text(self) -> None:
        pass

    def usage(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
