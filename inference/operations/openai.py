"""What operations of OpenAI's API share: how bodies are read, answers and errors framed.

Pure functions of bytes. The gateway reads only what routing, limits and framing need; the engine's
agent validates the rest with vLLM's own request models. Chunks are put together from encoded
pieces: the one part that changes from token to token is the text.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from inference.errors import InferenceError, InvalidRequest
from inference.link.wire import Usage
from inference.operations.bodies.beginnings import Beginnings
from inference.operations.bodies.constraints import check_response_format, check_structured_outputs
from inference.operations.bodies.fields import check_fields
from inference.operations.bodies.reading import decode
from inference.operations.call import Call
from inference.operations.operation import Framing, Operation

DONE = b"data: [DONE]\n\n"

MAX_CHOICES = 1024
"""Texts that one request can ask for, `n` for each of its prompts. Engines may take fewer."""

ARRAY = re.compile(rb"\s*\[\s*(.)", re.DOTALL)
"""With what its first part begins. Megabytes of small parts are not taken apart on this loop."""

MAX_TOP = 1000
"""Log-probabilities of one token; engines take fewer."""

FINGERPRINT_CHARS = 12
"""Of an engine's revision, in `system_fingerprint`."""

_json = msgspec.json.Encoder().encode


class StreamOptions(msgspec.Struct):
    """`stream_options` of a request."""

    include_usage: bool | None = None


NULL = msgspec.Raw(b"null")
"""Of a field that is not there."""


class Sampled(msgspec.Struct):
    """What the gateway reads of any generating request: what it needs, and what engines take too
    lightly or find out too late. A number is one, not a text such as "NaN"."""

    model: str
    stream: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale", "fast"] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    structured_outputs: msgspec.Raw = NULL
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    user: str | None = None


class Fields(Sampled):
    """And of one whose answer is choices."""

    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    response_format: msgspec.Raw = NULL


Read = TypeVar("Read", bound=Fields)


def top_of(given: msgspec.Raw) -> int:
    """The number of a field that asks for the likeliest tokens; 0 if it is none, which engines then
    find fault with."""
    digits = bytes(given).strip()
    return min(MAX_TOP, int(digits[:4])) if digits.isdigit() else 0


class OpenAIOperation(Operation, Generic[Read]):
    """An operation whose answer is choices of text, in chunks or as a whole.

    The dicts that describe a choice lack `index`, `logprobs` and `finish_reason`.
    """

    in_batches = True
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    """The field `object` of an answer, and of a chunk."""
    decoder: ClassVar[msgspec.json.Decoder[Any]]
    """Reads the gateway's fields, of type `Read`."""
    tells_tier: ClassVar[bool] = False
    """Whether answers and chunks say how they were served (`service_tier`)."""

    @abstractmethod
    def check_prompt(self, fields: Read) -> None:
        """See, from its first bytes, that there is a prompt.

        Raises:
            InvalidRequest: there is none.
        """

    @abstractmethod
    def wanted_tokens(self, fields: Read) -> int | None:
        """What bounds each choice, if the body says."""

    def prompts(self, fields: Read) -> tuple[int, int]:
        """How many prompts there are, and of how many tokens, 0 where they are text."""
        return 1, 0

    def parsers(self, fields: Read) -> tuple[str, ...]:
        """Those of `ModelInfo.parsers` that the engine should have.

        Raises:
            InvalidRequest: what they would read is wrong.
        """
        return ()

    @abstractmethod
    def beginnings(self, fields: Read) -> Beginnings:
        """Those of its prompt; none where there are many prompts."""

    @abstractmethod
    def logprobs(self, fields: Read) -> int:
        """How many log-probabilities come with each token of each choice."""

    @abstractmethod
    def opening(self) -> dict[str, Any] | None:
        """The choice of the chunk that a stream begins with, if it begins with one."""

    @abstractmethod
    def delta(self, text: str) -> dict[str, Any]:
        """The choice of a chunk that adds this text."""

    @abstractmethod
    def end(self) -> dict[str, Any]:
        """A choice of the chunk that ends a stream."""

    @abstractmethod
    def choice(self, text: str) -> dict[str, Any]:
        """A choice of a whole answer."""

    def parse(self, body: bytes) -> Call:
        """As the operation says."""
        fields: Read = decode(self.decoder, body)
        if not fields.model:
            raise InvalidRequest("You must provide a model parameter.", param="model")
        self.check_prompt(fields)
        if fields.stream_options is not None and not fields.stream:
            raise InvalidRequest(
                "`stream_options` is only allowed when `stream` is true.", param="stream_options"
            )
        check_response_format(fields.response_format)
        check_structured_outputs(fields.structured_outputs)
        options = fields.stream_options or StreamOptions()
        prompts, tokens = self.prompts(fields)
        choices = max(1, fields.n or 1) * prompts
        if choices > MAX_CHOICES:
            raise InvalidRequest(
                f"The request asks for {choices} choices, `n` for each prompt: it can have at most "
                f"{MAX_CHOICES}.",
                param="n",
            )
        return Call(
            operation=self,
            model=fields.model,
            stream=bool(fields.stream),
            include_usage=bool(options.include_usage),
            choices=choices,
            max_tokens=self.wanted_tokens(fields),
            flex=fields.service_tier == "flex",
            prompts=prompts,
            tokens=tokens,
            parsers=self.parsers(fields),
            logprobs=self.logprobs(fields),
            body=body,
            beginnings=self.beginnings(fields),
        )

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> OpenAIFraming:
        """As the operation says."""
        return OpenAIFraming(self, call, id, created, told_of(self, call, revision))

    def conform(self, choice: dict[str, Any]) -> None:
        """As the operation says."""
        for name in VLLM_ONLY_IN_CHOICE:
            choice.pop(name, None)
        choice.setdefault("logprobs", None)
        choice.setdefault("finish_reason", None)

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """As the operation says."""
        check_fields(body)
        # A null means, as with OpenAI, that the field is not there; vLLM takes it of some alone.
        kept = {name: value for name, value in super().allowed(body).items() if value is not None}
        if kept.get("top_p") == 0:  # of the likeliest token alone, which vLLM wants said so
            del kept["top_p"]
            kept["top_k"] = 1
        return kept


VLLM_ONLY_IN_CHOICE = (
    "prompt_logprobs",
    "prompt_token_ids",
    "routed_experts",
    "stop_reason",
    "token_ids",
)
"""Keys of a choice of vLLM's that OpenAI's don't have."""


def told_of(operation: OpenAIOperation[Any], call: Call, revision: str) -> dict[str, str]:
    """What every answer and chunk says of how it was made: the tier, and which weights, tokenizer
    and options."""
    told = {"service_tier": "flex" if call.flex else "default"} if operation.tells_tier else {}
    if revision:
        told["system_fingerprint"] = f"fp_{revision[:FINGERPRINT_CHARS]}"
    return told


class OpenAIFraming(Framing):
    """OpenAI's chunks and answers."""

    def __init__(
        self,
        operation: OpenAIOperation[Any],
        call: Call,
        id: str,
        created: int,
        told: dict[str, str],
    ) -> None:
        """`told` are fields of every answer and chunk."""
        self._operation, self._told = operation, told
        self._open = dict.fromkeys(range(call.choices))
        """Choices that have no finish reason yet."""
        self._include_usage = call.include_usage
        self._id = operation.answer_id(id)
        self._model, self._created = call.model, created
        head = {
            "id": self._id,
            "object": operation.chunk_object,
            "created": created,
            "model": call.model,
        }
        fields = told | ({"usage": None} if self._include_usage else {})
        self._more = b"," + _json(fields)[1:-1] if fields else b""
        """What a chunk of the engine's lacks."""
        self._head = b"data: " + _json(head | told)[:-1] + b',"choices":['
        usage = b',"usage":null' if self._include_usage else b""
        self._tail = b"]" + usage + b"}\n\n"
        before, _, after = _running(operation.delta("")).partition(b'""')
        self._before_text, self._after_text = self._head + before, after + self._tail

    def opening(self) -> bytes:
        """As the framing says."""
        opening = self._operation.opening()
        return b"" if opening is None else self._head + _running(opening) + self._tail

    def text(self, text: str) -> bytes:
        """As the framing says."""
        return self._before_text + _json(text) + self._after_text

    def chunk(self, chunk: bytes) -> bytes:
        """As the framing says."""
        if b'"finish_reason":null' not in chunk:
            for choice in msgspec.json.decode(chunk)["choices"]:
                if choice.get("finish_reason") is not None:
                    self._open.pop(choice["index"], None)
        return b"data: " + chunk[:-1] + self._more + b"}\n\n"

    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """The chunk with the finish reason of each choice that has none, and with the limit that
        ended the answer early; nothing if all have one."""
        if not self._open:
            return b""
        end = self._operation.end() | _ended(finish_reason, limited)
        choices = b",".join(_json({"index": index} | end) for index in self._open)
        return self._head + choices + self._tail

    def ending(self, usage: Usage) -> bytes:
        """As the framing says."""
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
        """As the framing says."""
        choice = {"index": 0} | self._operation.choice(text) | _ended(finish_reason, limited)
        return _json(
            {
                "id": self._id,
                "object": self._operation.whole_object,
                "created": self._created,
                "model": self._model,
                "choices": [choice],
                "usage": usage_body(usage),
                **self._told,
            }
        )

    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        """As the framing says; choices that a limit ended say so."""
        if limited is None:
            told = b"," + _json(self._told)[1:-1] if self._told else b""
            return response[:-1] + told + b"}"
        answer = msgspec.json.decode(response) | self._told
        for choice in answer["choices"]:
            if choice["finish_reason"] == "length":
                choice |= _details(limited)
        return _json(answer)


def _running(choice: dict[str, Any]) -> bytes:
    """The only choice of a chunk, which does not end it."""
    return _json({"index": 0} | choice | _ended(None))


def _ended(finish_reason: str | None, limited: InferenceError | None = None) -> dict[str, Any]:
    return {"logprobs": None, "finish_reason": finish_reason} | _details(limited)


def _details(limited: InferenceError | None) -> dict[str, Any]:
    """Why an answer ended early. Not in `error`: clients would take the answer for failed."""
    if limited is None:
        return {}
    return {"finish_details": {"code": limited.code, "message": limited.message}}


def span(seconds: float) -> str:
    """A time span as the `x-ratelimit-reset` headers have it: `120ms`, `1.5s`, `6m0s`."""
    ms = round(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:g}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


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


def counts_of(body: dict[str, Any]) -> Usage:
    """The counts in such an object."""
    return Usage(
        body["prompt_tokens"],
        body["prompt_tokens_details"]["cached_tokens"],
        body["completion_tokens"],
        body["completion_tokens_details"]["reasoning_tokens"],
    )
