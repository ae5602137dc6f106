"""Reads what an OpenAI-compatible server answers: events, counts and errors. No IO.

The server is another program, often another company's: nothing that it sends is trusted to be
complete, small or of the right type.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec

from inference.agent.engines.assembly import whole_reason
from inference.agent.engines.engine import Meter
from inference.errors import (
    ContextLengthExceeded,
    EngineFailed,
    InferenceError,
    InvalidRequest,
    Overloaded,
)
from inference.operations.openai import OpenAIOperation, drop_unasked
from inference.operations.pooling.pooling import Vector

MAX_EVENT = 4 << 20
"""Bytes of one event: far above a token with all its log-probabilities."""
DONE = b"[DONE]"
TOO_LONG = re.compile(r"context (?:length|size|window)", re.IGNORECASE)
REASONS = {"stop", "length", "tool_calls", "content_filter"}
REASONING = re.compile(r"<reasoning>(.*)</reasoning>", re.DOTALL)
RETRY_S = 1.0
CHARS_PER_TOKEN = 4


class EventStream:
    """The events of a stream, from pieces of it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of each event that the piece completes, without `[DONE]`.

        Raises:
            EngineFailed: an event is longer than MAX_EVENT.
        """
        self._rest += piece
        lines = []
        if b"\n" in piece:  # else a long event would be copied with each of its pieces
            *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > MAX_EVENT:
            raise EngineFailed(f"The upstream sent an event of more than {MAX_EVENT} bytes.")
        for line in lines:
            name, _, data = line.rstrip(b"\r").partition(b":")
            data = data.strip()
            if name == b"data" and data and data != DONE:
                yield bytes(data)


class _Function(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, omit_defaults=True):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct, omit_defaults=True):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None

    def untag(self) -> None:
        """Move a piece of reasoning out of the content."""
        if self.content and (found := REASONING.fullmatch(self.content)):
            self.content, self.reasoning = None, found[1]

    def delta(self, *, first: bool) -> dict[str, Any]:
        """As clients get it: the role stands in a choice's first one only."""
        for place, call in enumerate(self.tool_calls or ()):
            call.index = place if call.index is None else call.index
        fields: dict[str, Any] = msgspec.to_builtins(self)
        if thought := fields.pop("reasoning_content", None):  # the older name
            fields.setdefault("reasoning", thought)
        return {"role": "assistant", "content": ""} | fields if first else fields


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Message | None = None
    text: str | None = None
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    total_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None

    @property
    def unseen_tokens(self) -> int:
        """Reasoning that is in the total alone: Google's services leave it out of
        `completion_tokens`."""
        if not self.prompt_tokens:
            return 0
        counted = self.prompt_tokens + (self.completion_tokens or 0)
        return max(0, (self.total_tokens or 0) - counted)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class StreamReading:
    """One streamed answer: `chunk` for each event, in order."""

    def __init__(
        self,
        operation: OpenAIOperation[Any],
        meter: Meter,
        max_choices: int,
        *,
        tagged: bool = False,
    ) -> None:
        """`tagged`: as `Dialect.tagged_reasoning`."""
        self._operation, self._meter, self._max_choices = operation, meter, max_choices
        self._tagged = tagged
        self._begun: set[int] = set()
        self._reasons: dict[int, str] = {}
        self._taken = meter.completion_tokens
        self.exact = False
        """Whether the server has said what it used; before, each piece of text counts as a token,
        as which nearly all servers send it."""

    def ended(self) -> str:
        """The finish reason of the request as a whole: `length` if a choice was cut.

        Raises:
            EngineFailed: a choice has not ended.
        """
        if not self._reasons or self._begun - self._reasons.keys():
            raise EngineFailed("The upstream ended the answer before its end.")
        return whole_reason(self._reasons.values())

    def take_tokens(self) -> int:
        """The output tokens counted since the last call."""
        before, self._taken = self._taken, self._meter.completion_tokens
        return self._taken - before

    def chunk(self, data: bytes) -> dict[str, Any] | None:
        """The event as a chunk of ours, without the request's identity; None if it has no choice.

        Raises:
            InferenceError: it is an error, or no chunk.
        """
        try:
            read = _decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineFailed(f"The upstream sent what is no chunk: {error}.") from None
        if read.error is not None:
            raise EngineFailed
        self._count(read)
        choices = [self._choice(one) for one in read.choices]
        if not choices:
            return None
        return {"object": self._operation.chunk_object, "choices": choices}

    def estimate_prompt(self, body_bytes: int) -> None:
        """Count the prompt of an answer that ended before the server said what it used."""
        if not self._meter.prompt_tokens and self._begun:
            self._meter.prompt_tokens = max(1, body_bytes // CHARS_PER_TOKEN)
            self._meter.is_estimated = True

    def _choice(self, one: _Choice) -> dict[str, Any]:
        if not 0 <= one.index < self._max_choices:
            raise EngineFailed(f"The upstream sent a choice {one.index} that was not asked for.")
        choice: dict[str, Any] = msgspec.structs.asdict(one)
        drop_unasked(choice)
        if one.delta is None:
            del choice["delta"]
            choice["text"] = one.text or ""
        else:
            del choice["text"]
            if self._tagged:
                one.delta.untag()
            choice["delta"] = one.delta.delta(first=one.index not in self._begun)
        self._begun.add(one.index)
        if one.finish_reason:
            reason = one.finish_reason if one.finish_reason in REASONS else "stop"
            self._reasons[one.index] = choice["finish_reason"] = reason
        self._operation.conform(choice)
        return choice

    def _count(self, read: _Chunk) -> None:
        meter, usage = self._meter, read.usage
        if usage is not None:
            self.exact, meter.is_estimated = True, False
            meter.prompt_tokens = max(meter.prompt_tokens, usage.prompt_tokens)
            unseen = usage.unseen_tokens
            generated = (usage.completion_tokens or 0) + unseen
            meter.completion_tokens = max(meter.completion_tokens, generated)
            meter.reasoning_tokens = max(meter.reasoning_tokens, unseen)
            if (of_prompt := usage.prompt_tokens_details) is not None:
                cached = min(of_prompt.cached_tokens or 0, meter.prompt_tokens)
                meter.cached_tokens = max(meter.cached_tokens, cached)
            if (of_answer := usage.completion_tokens_details) is not None:
                reasoning = min(of_answer.reasoning_tokens or 0, meter.completion_tokens)
                meter.reasoning_tokens = max(meter.reasoning_tokens, reasoning)
        elif not self.exact:
            meter.completion_tokens += sum(map(_says_something, read.choices))
            meter.is_estimated = meter.completion_tokens > 0


def _says_something(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)


class _ErrorBody(msgspec.Struct):
    message: str = ""
    param: str | None = None
    code: str | int | None = None
    type: str | None = None


class _ScoredLogprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _ScoredChoice(msgspec.Struct):
    logprobs: _ScoredLogprobs
    prompt_token_ids: list[int] | None = None


class _ScoredCompletion(msgspec.Struct):
    choices: list[_ScoredChoice]
    usage: _Usage


class ScoredPrompt(msgspec.Struct, frozen=True):
    """The log-probability of each of a prompt's tokens but the first, NaN where it is not a number,
    and the ids of all, empty if the server does not say them."""

    values: list[float]
    ids: list[int]


def scored_prompt(body: bytes) -> ScoredPrompt:
    """Reads the completion of a prompt that was asked for with `echo` and `logprobs`.

    Raises:
        EngineFailed: it is none.
    """
    try:
        read = msgspec.json.decode(body, type=_ScoredCompletion)
        (choice,) = read.choices
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise EngineFailed(f"The upstream's answer has no log-probabilities: {error}.") from None
    length = read.usage.prompt_tokens
    found = choice.logprobs.token_logprobs[1:length]
    if len(found) != length - 1:
        raise EngineFailed("The upstream's answer lacks log-probabilities of its prompt.")
    values = [math.nan if one is None else one for one in found]
    return ScoredPrompt(values, choice.prompt_token_ids or [])


class _AnswerToken(msgspec.Struct):
    logprob: float | None


class _AnswerLogprobs(msgspec.Struct):
    content: list[_AnswerToken]


class _AnswerChoice(msgspec.Struct):
    logprobs: _AnswerLogprobs


class _ScoredAnswer(msgspec.Struct):
    choices: list[_AnswerChoice]


def scored_answer(body: bytes) -> ScoredPrompt:
    """The same of the tokens of a completion, which was asked for with `logprobs`.

    Raises:
        EngineFailed: it is none.
    """
    try:
        (choice,) = msgspec.json.decode(body, type=_ScoredAnswer).choices
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise EngineFailed(f"The upstream's answer has no log-probabilities: {error}.") from None
    found = choice.logprobs.content
    if not found:
        raise EngineFailed("The upstream's answer has no log-probabilities.")
    return ScoredPrompt([math.nan if one.logprob is None else one.logprob for one in found], [])


class _Embedding(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]
    usage: _Usage | None = None


def vectors_of(body: bytes, inputs: int) -> tuple[list[Vector], int]:
    """The vector of each of so many inputs, and the prompts' tokens; 0 if the server does not say
    how many. Takes up to a second.

    Raises:
        EngineFailed: it is no answer to them.
    """
    try:
        read = msgspec.json.decode(body, type=_Embeddings)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EngineFailed(f"The upstream sent what is no list of embeddings: {error}.") from None
    found = sorted(read.data, key=attrgetter("index"))
    if len(found) != inputs or not all(one.embedding for one in found):
        raise EngineFailed(f"The upstream sent {len(found)} embeddings of {inputs} inputs.")
    vectors = [array("f", one.embedding) for one in found]
    if not all(math.isfinite(sum(map(abs, vector))) for vector in vectors):
        raise EngineFailed("The upstream sent an embedding with a number that is not finite.")
    return vectors, 0 if read.usage is None else max(0, read.usage.prompt_tokens)


class _ChatChoice(msgspec.Struct):
    message: _Message


class _WholeChat(msgspec.Struct):
    choices: list[_ChatChoice]


def chat_text(body: bytes) -> str:
    """The text of a chat's answer that was not streamed; empty if it has none."""
    try:
        read = msgspec.json.decode(body, type=_WholeChat)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return "".join(one.message.content or "" for one in read.choices)


def error_of(status: int, body: bytes) -> InferenceError:
    """What a server refuses or fails with, as one of ours. What is wrong between it and this
    process, such as its key, is not the client's business."""
    error = _error_in(body)
    if status == 429 or status == 503:
        return Overloaded(retry_after_s=RETRY_S)
    if status not in (400, 413, 422):
        return EngineFailed()
    if error.code == "context_length_exceeded" or TOO_LONG.search(error.message):
        return ContextLengthExceeded(error.message or None)
    return InvalidRequest(error.message or None, param=error.param)


def message_in(body: bytes) -> str:
    """The message of a refusal, in OpenAI's form or in SGLang's; else the body as it is."""
    try:
        whole = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        whole = {}
    own = whole.get("error_message")
    found = own if isinstance(own, str) else _error_in(body).message
    return found or body.decode(errors="replace")


def _error_in(body: bytes) -> _ErrorBody:
    """The error in a body, whether it is inside `error` or the body itself."""
    try:
        whole = msgspec.json.decode(body, type=dict[str, Any])
        inner = whole.get("error", whole)
        if isinstance(inner, str):
            return _ErrorBody(inner)
        return msgspec.convert(inner, _ErrorBody)
    except (msgspec.MsgspecError, RecursionError):
        return _ErrorBody()
