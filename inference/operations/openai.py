"""The OpenAI surface as pure functions: request bodies in, JSON and server-sent events out.

Only what routing and framing need is read here; the engine's agent validates the rest with vLLM's
own request models. Chunks are put together from encoded pieces: the one part that changes from
token to token is the text.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Protocol

import msgspec

from inference.errors import InferenceError, InvalidRequest
from inference.link.wire import Usage

Kind = Literal["chat", "completion"]

DONE = b"data: [DONE]\n\n"

_json = msgspec.json.Encoder().encode


class StreamOptions(msgspec.Struct):
    """`stream_options` of a request."""

    include_usage: bool | None = None


class _Call(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    service_tier: str | None = None


class _ChatCall(_Call):
    messages: msgspec.Raw = msgspec.Raw(b"[]")
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"null")


class _CompletionCall(_Call):
    prompt: msgspec.Raw = msgspec.Raw(b"null")


class Call(msgspec.Struct, frozen=True):
    """What the gateway needs to know of a request body.

    `choices` counts the texts that it asks for; `max_tokens` bounds each of them, None where the
    body doesn't. `tokens` counts those of all `prompts` where they come as tokens, 0 where they are
    text. A `flex` request may wait behind others. `parsers` are those that its engine should have.
    """

    kind: Kind
    model: str
    stream: bool
    include_usage: bool
    choices: int = 1
    max_tokens: int | None = None
    flex: bool = False
    prompts: int = 1
    tokens: int = 0
    parsers: tuple[str, ...] = ()


MAX_CHOICES = 1024
"""Texts that one request can ask for, `n` for each of its prompts. Engines may take fewer."""
COMPLETION_TOKENS = 16
"""What a completion without `max_tokens` generates at most, as OpenAI's and vLLM's do."""


_decoders: dict[Kind, msgspec.json.Decoder[Any]] = {
    "chat": msgspec.json.Decoder(_ChatCall),
    "completion": msgspec.json.Decoder(_CompletionCall),
}


def parse(kind: Kind, body: bytes) -> Call:
    """Read a request body of `POST /v1/chat/completions` (`chat`) or `/v1/completions`.

    Raises:
        InvalidRequest: not UTF-8, not JSON, or a field that routing needs is missing or wrong.
    """
    call = _decode(kind, body)
    if not call.model:
        raise InvalidRequest("You must provide a model parameter.", param="model")
    if kind == "chat":
        _check_messages(call.messages)
    if kind == "completion" and bytes(call.prompt) == b"null":
        raise InvalidRequest("You must provide a prompt parameter.", param="prompt")
    if call.stream_options is not None and not call.stream:
        raise InvalidRequest(
            "`stream_options` is only allowed when `stream` is true.", param="stream_options"
        )
    options = call.stream_options or StreamOptions()
    prompts, tokens = _prompts(call)
    choices = max(1, call.n or 1) * prompts
    if choices > MAX_CHOICES:
        raise InvalidRequest(
            f"The request asks for {choices} choices, `n` for each prompt: it can have at most "
            f"{MAX_CHOICES}.",
            param="n",
        )
    return Call(
        kind=kind,
        model=call.model,
        stream=bool(call.stream),
        include_usage=bool(options.include_usage),
        choices=choices,
        max_tokens=_max_tokens(call),
        flex=call.service_tier == "flex",
        prompts=prompts,
        tokens=tokens,
        parsers=_parsers(call),
    )


_ARRAY = re.compile(rb"\s*\[\s*(.)", re.DOTALL)
"""With what its first part begins. Megabytes of small parts are not taken apart on this loop."""


def _parsers(call: _ChatCall | _CompletionCall) -> tuple[str, ...]:
    if isinstance(call, _CompletionCall):
        return ()
    tools = _ARRAY.match(call.tools)
    return () if tools is None or tools[1] == b"]" else ("tool",)


def _check_messages(messages: msgspec.Raw) -> None:
    array = _ARRAY.match(messages)
    if array is None:
        raise InvalidRequest("`messages` must be an array of messages.", param="messages")
    if array[1] == b"]":
        raise InvalidRequest("`messages` must hold at least one message.", param="messages")


def _max_tokens(call: _ChatCall | _CompletionCall) -> int | None:
    if isinstance(call, _CompletionCall):
        return COMPLETION_TOKENS if call.max_tokens is None else call.max_tokens
    if (most := call.max_completion_tokens) is None:
        return call.max_tokens
    if most < 1:  # engines would name `max_tokens`
        message = f"`max_completion_tokens` is {most}: it must be at least 1."
        raise InvalidRequest(message, param="max_completion_tokens")
    return most


def _prompts(call: _ChatCall | _CompletionCall) -> tuple[int, int]:
    """How many prompts a completion has, for a list of texts or of token lists is many, and of how
    many tokens, 0 where they are text. Right for whatever an engine takes."""
    array = None if isinstance(call, _ChatCall) else _ARRAY.match(call.prompt)
    if array is None:
        return 1, 0
    if array[1] == b'"':
        return len(msgspec.json.decode(array.string, type=list[msgspec.Raw])), 0
    parts = bytes(array.string)
    return max(1, parts.count(b"[") - 1), parts.count(b",") + 1


def _decode(kind: Kind, body: bytes) -> Any:
    try:
        body.decode()  # msgspec skips the text of fields that it doesn't read
        return _decoders[kind].decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The body is not UTF-8: {error.reason} at byte {error.start}."
        ) from None
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


_MISSING = re.compile(r"missing required field `(\w+)`")
_AT = re.compile(r"(.*) - at `\$\.?(.*)`")


def _invalid_field(message: str) -> InvalidRequest:
    """msgspec's sentence (`Expected `str`, got `int` - at `$.model``) as ours."""
    if missing := _MISSING.search(message):
        return InvalidRequest(f"You must provide a {missing[1]} parameter.", param=missing[1])
    if found := _AT.fullmatch(message):
        what = found[1][0].lower() + found[1][1:]
        return InvalidRequest(f"`{found[2]}`: {what}.", param=found[2])
    return InvalidRequest(f"The body must be a JSON object: {message}.")


def span(seconds: float) -> str:
    """A time span as the `x-ratelimit-reset` headers have it: `120ms`, `1.5s`, `6m0s`."""
    ms = round(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:g}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


def error_body(error: InferenceError) -> bytes:
    """The OpenAI error shape."""
    return _json(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_event(error: InferenceError) -> bytes:
    """An error in mid-stream. No `[DONE]` follows: a stream that failed never looks complete."""
    return b"data: " + error_body(error) + b"\n\n"


class Counts(Protocol):
    """Token counts of one request: final (`wire.Usage`) or as they stand (an engine's meter)."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...


def usage_body(usage: Counts) -> dict[str, Any]:
    """The `usage` object of an answer."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class Answer:
    """Everything that is written for one request: chunks while it streams, or the whole body."""

    def __init__(self, call: Call, id: str, created: int) -> None:
        """`id` is the request's; `created` a unix time in seconds."""
        self._chat = call.kind == "chat"
        self._open = dict.fromkeys(range(call.choices))
        """Choices that have no finish reason yet."""
        self._include_usage = call.include_usage
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{id}"
        self._model, self._created = call.model, created
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = _json({"id": self._id, "object": kind, "created": created, "model": call.model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        usage = b',"usage":null' if self._include_usage else b""
        before = b'{"index":0,"delta":{"content":' if self._chat else b'{"index":0,"text":'
        after = b"}" if self._chat else b""
        self._before_text = self._head + before
        self._after_text = after + b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._tail = b"]" + usage + b"}\n\n"

    def opening(self) -> bytes:
        """The chunk that a chat stream begins with; nothing for a completion."""
        if not self._chat:
            return b""
        delta = b'{"index":0,"delta":{"role":"assistant","content":""},'
        return self._head + delta + b'"logprobs":null,"finish_reason":null}' + self._tail

    def text(self, text: str) -> bytes:
        """The chunk that adds this text."""
        return self._before_text + _json(text) + self._after_text

    def chunk(self, chunk: bytes) -> bytes:
        """A chunk that the engine made whole."""
        if b'"finish_reason":null' not in chunk:
            for choice in msgspec.json.decode(chunk)["choices"]:
                if choice.get("finish_reason") is not None:
                    self._open.pop(choice["index"], None)
        if self._include_usage:
            chunk = chunk[:-1] + b',"usage":null}'
        return b"data: " + chunk + b"\n\n"

    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """The chunk with the finish reason of each choice that has none, and with the limit that
        ended the answer early; nothing if all have one."""
        if not self._open:
            return b""
        end: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        end |= {"logprobs": None, "finish_reason": finish_reason} | _details(limited)
        choices = b",".join(_json({"index": index} | end) for index in self._open)
        return self._head + choices + self._tail

    def ending(self, usage: Usage) -> bytes:
        """The usage chunk, if it was asked for, and the end of the stream."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + _json(usage_body(usage)) + b"}\n\n" + DONE

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        limited: InferenceError | None = None,
    ) -> bytes:
        """The answer to a request that does not stream."""
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return _json(
            {
                "id": self._id,
                "object": "chat.completion" if self._chat else "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": [
                    choice | {"logprobs": None, "finish_reason": finish_reason} | _details(limited)
                ],
                "usage": usage_body(usage),
                "system_fingerprint": None,
            }
        )


def explained(whole: bytes, limited: InferenceError) -> bytes:
    """A whole answer that the engine made, with the limit that ended some of its choices."""
    answer = msgspec.json.decode(whole)
    for choice in answer["choices"]:
        if choice["finish_reason"] == "length":
            choice |= _details(limited)
    return _json(answer)


def _details(limited: InferenceError | None) -> dict[str, Any]:
    """Why an answer ended early. Not in `error`: clients would take the answer for failed."""
    if limited is None:
        return {}
    return {"finish_details": {"code": limited.code, "message": limited.message}}
