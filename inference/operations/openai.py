"""What the operations of OpenAI's API share: reading bodies and framing answers.

Pure functions of bytes. The gateway reads only what routing, limits and framing need; the engine's
agent validates the rest with vLLM's own request models. Chunks are assembled from encoded pieces,
because only the text changes from token to token.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from inference.errors import InferenceError, InvalidRequest
from inference.link.accounts import Usage
from inference.link.workload import Workload
from inference.operations.bodies.beginnings import Beginnings
from inference.operations.bodies.constraints import check_response_format, check_structured_outputs
from inference.operations.bodies.fields import OF_VLLM, UNSERVED, check_fields
from inference.operations.bodies.ranges import (
    Count,
    Factor,
    Penalty,
    Positive,
    Seed,
    Share,
    Temperature,
    TopK,
    TopLogprobs,
)
from inference.operations.bodies.reading import decode, require_model
from inference.operations.operation import Call, Framing, Operation
from inference.operations.structure import AskedStructure

DONE = b"data: [DONE]\n\n"

MAX_CHOICES = 1024
"""Most texts that one request may ask for: `n` for each of its prompts. Engines may take fewer."""

ARRAY = re.compile(rb"\s*\[\s*(.)", re.DOTALL)
"""A JSON array; the group is the first character of its first element. Elements are not decoded on
this loop: there may be megabytes of small ones."""

MAX_TOP = 1000
"""Most log-probabilities of one token that are counted; engines take fewer."""

FINGERPRINT_CHARS = 12
"""Characters of an engine's revision that `system_fingerprint` shows."""

_json = msgspec.json.Encoder().encode


MAX_IDENTIFIER = 128
"""Most characters of a `safety_identifier`; OpenAI's limit."""
Identifier = Annotated[str, msgspec.Meta(max_length=MAX_IDENTIFIER)]


class StreamFields(msgspec.Struct):
    """`stream_options` of a request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


NULL = msgspec.Raw(b"null")
"""The value of a field that is missing."""


class SampledBody(msgspec.Struct):
    """The fields that the gateway reads of any generating request: those that it needs, and those
    that engines check too loosely or too late. Numbers may not be strings such as "NaN"."""

    model: str
    stream: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale", "fast"] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    min_p: Share | None = None
    min_tokens: Count | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Factor | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    structured_outputs: msgspec.Raw = NULL
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: Share | None = None
    user: str | None = None


class Fields(SampledBody):
    """The fields that it also reads if the answer consists of choices."""

    stream_options: StreamFields | None = None
    max_tokens: Count | None = None
    n: Positive | None = None
    prompt_logprobs: TopLogprobs | None = None
    response_format: msgspec.Raw = NULL


Read = TypeVar("Read", bound=Fields)


def top_of(given: msgspec.Raw) -> int:
    """The number in a field that asks for the likeliest tokens, at most MAX_TOP; 0 if it is not a
    number, which engines then reject."""
    digits = bytes(given).strip()
    return min(MAX_TOP, int(digits[:4])) if digits.isdigit() else 0


class OpenAIOperation(Operation, Generic[Read]):
    """An operation whose answer consists of choices of text, in chunks or as a whole.

    The methods that return a choice leave out `index`, `logprobs` and `finish_reason`.
    """

    in_batches = True
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    """The field `object` of an answer, and of a chunk."""
    decoder: ClassVar[msgspec.json.Decoder[Any]]
    """Decodes a body to the fields that the gateway reads, of type `Read`."""
    has_service_tier: ClassVar[bool] = False
    """Whether answers and chunks have a `service_tier`."""

    @abstractmethod
    def check_prompt(self, fields: Read) -> None:
        """Check, by its first bytes, that there is a prompt.

        Raises:
            InvalidRequest: there is none.
        """

    @abstractmethod
    def wanted_tokens(self, fields: Read) -> int | None:
        """The bound of each choice in tokens, if the body sets one."""

    def prompts(self, fields: Read) -> tuple[int, int]:
        """The number of prompts, and of their tokens together, 0 if they are text."""
        return 1, 0

    def parsers(self, fields: Read) -> tuple[str, ...]:
        """The parsers (`ModelInfo.parsers`) that the engine needs.

        Raises:
            InvalidRequest: the fields that need them, such as `tools`, are wrong.
        """
        return ()

    @abstractmethod
    def beginnings(self, fields: Read) -> Beginnings:
        """The beginnings of its prompt; none if there are several prompts."""

    def safety_identifier(self, fields: Read) -> str:
        """The field of this name, empty if there is none."""
        return ""

    def tools(self, fields: Read) -> msgspec.Raw:
        """The tools that the answer may call, if any."""
        return NULL

    @abstractmethod
    def logprobs(self, fields: Read) -> int:
        """The number of log-probabilities with each token of each choice."""

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
        """See `Operation`."""
        fields: Read = decode(self.decoder, body)
        require_model(fields.model)
        self.check_prompt(fields)
        if fields.stream_options is not None and not fields.stream:
            raise InvalidRequest(
                "`stream_options` is only allowed when `stream` is true.", param="stream_options"
            )
        if fields.prompt_logprobs is not None and fields.stream:
            raise InvalidRequest(
                "`prompt_logprobs` is not supported with `stream`: a stream has no place for them.",
                param="prompt_logprobs",
            )
        if fields.response_format is not NULL:
            check_response_format(fields.response_format)
        if fields.structured_outputs is not NULL:
            check_structured_outputs(fields.structured_outputs)
        options = fields.stream_options or StreamFields()
        prompts, tokens = self.prompts(fields)
        choices = (fields.n or 1) * prompts
        if choices > MAX_CHOICES:
            raise InvalidRequest(
                f"The request has {choices} choices (`n` for each prompt): it can have at "
                f"most {MAX_CHOICES}.",
                param="n",
            )
        return Call(
            operation=self,
            model=fields.model,
            stream=bool(fields.stream),
            include_usage=bool(options.include_usage),
            running_usage=bool(options.include_usage and options.continuous_usage_stats),
            workload=Workload(
                prompts=prompts,
                prompt_tokens=tokens,
                choices=choices,
                max_tokens=self.wanted_tokens(fields),
                logprobs=max(self.logprobs(fields), _of_prompt(fields)),
            ),
            flex=fields.service_tier == "flex",
            parsers=self.parsers(fields),
            body=body,
            beginnings=self.beginnings(fields),
            user=fields.user or "",
            safety_identifier=self.safety_identifier(fields),
            structure=AskedStructure.of(
                fields.response_format, fields.structured_outputs, self.tools(fields)
            ),
        )

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> OpenAIFraming:
        """See `Operation`."""
        return OpenAIFraming(self, call, id, created, common_fields(self, call, revision))

    def conform(self, choice: dict[str, Any]) -> None:
        """See `Operation`."""
        for name in VLLM_ONLY_IN_CHOICE:
            choice.pop(name, None)
        drop_unasked(choice)
        choice.setdefault("logprobs", None)
        choice.setdefault("finish_reason", None)

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`."""
        check_fields(body, UNSERVED)
        check_fields(body, OF_VLLM, self.accepted)
        # As with OpenAI, null means that the field is missing; vLLM accepts null for some only.
        kept = {name: value for name, value in super().allowed(body).items() if value is not None}
        if kept.get("top_p") == 0:  # the likeliest token alone, which vLLM calls `top_k` 1
            del kept["top_p"]
            kept["top_k"] = 1
        return kept


VLLM_ONLY_IN_CHOICE = ("routed_experts", "stop_reason")
"""Keys of a choice that vLLM adds to OpenAI's, and that clients don't get."""

ASKED_OF_VLLM = ("prompt_logprobs", "prompt_token_ids", "token_ids")
"""Keys of an answer, a chunk or a choice that are null unless clients asked for them."""


def drop_unasked(part: dict[str, Any]) -> None:
    """Remove the keys of ASKED_OF_VLLM that are null. Mutates `part`."""
    for name in ASKED_OF_VLLM:
        if part.get(name) is None:
            part.pop(name, None)


def _of_prompt(fields: Fields) -> int:
    """The number of log-probabilities that the answer has with each token of a prompt."""
    return 0 if fields.prompt_logprobs is None else 1 + fields.prompt_logprobs


def common_fields(operation: OpenAIOperation[Any], call: Call, revision: str) -> dict[str, str]:
    """The fields of every answer and chunk that say how it was made: the service tier, and a
    fingerprint of weights, tokenizer and options."""
    common = (
        {"service_tier": "flex" if call.flex else "default"} if operation.has_service_tier else {}
    )
    if revision:
        common["system_fingerprint"] = f"fp_{revision[:FINGERPRINT_CHARS]}"
    return common


class _Pieces(NamedTuple):
    """The encoded pieces of a stream's chunks."""

    head: bytes
    before_text: bytes
    after_text: bytes
    more: bytes
    """The fields that the engine's chunks lack, but for `usage`."""


class OpenAIFraming(Framing):
    """OpenAI's chunks and answers."""

    def __init__(
        self,
        operation: OpenAIOperation[Any],
        call: Call,
        id: str,
        created: int,
        common: dict[str, str],
    ) -> None:
        """`common` are fields of every answer and chunk."""
        self._operation, self._common = operation, common
        self._open = dict.fromkeys(range(call.workload.choices))
        """Choices that have no finish reason yet."""
        self._include_usage, self._running_usage = call.include_usage, call.running_usage
        self._tail = b',"usage":null}\n\n' if call.include_usage else b"}\n\n"
        """The end of a chunk, behind its choices."""
        self._usage = Usage()
        """The tokens so far, if each chunk says them."""
        self._id = operation.answer_id(id)
        self._model, self._created = call.model, created

    @cached_property
    def _pieces(self) -> _Pieces:
        """Made on first use, as only streams need them."""
        head = {
            "id": self._id,
            "object": self._operation.chunk_object,
            "created": self._created,
            "model": self._model,
        }
        before, _, after = _running(self._operation.delta("")).partition(b'""')
        start = b"data: " + _json(head | self._common)[:-1] + b',"choices":['
        more = b"," + _json(self._common)[1:-1] if self._common else b""
        return _Pieces(start, start + before, after + b"]", more)

    def counted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """See `Framing`. Prompts may be counted one by one."""
        if self._running_usage:
            self._count(prompt=prompt_tokens, cached=cached_tokens)

    def generated(self, tokens: int) -> None:
        """See `Framing`."""
        if self._running_usage:
            self._count(completion=tokens)

    def _count(self, *, prompt: int = 0, cached: int = 0, completion: int = 0) -> None:
        usage = self._usage
        self._usage = Usage(
            usage.prompt_tokens + prompt,
            usage.cached_tokens + cached,
            usage.completion_tokens + completion,
        )
        self._tail = b',"usage":' + _json(usage_body(self._usage)) + b"}\n\n"

    def opening(self) -> bytes:
        """See `Framing`."""
        opening, pieces = self._operation.opening(), self._pieces
        return b"" if opening is None else pieces.head + _running(opening) + b"]" + self._tail

    def text(self, text: str) -> bytes:
        """See `Framing`."""
        pieces = self._pieces
        return pieces.before_text + _json(text) + pieces.after_text + self._tail

    def chunk(self, chunk: bytes) -> bytes:
        """See `Framing`."""
        if b'"finish_reason":null' not in chunk:
            for choice in msgspec.json.decode(chunk)["choices"]:
                if choice.get("finish_reason") is not None:
                    self._open.pop(choice["index"], None)
        return b"data: " + chunk[:-1] + self._pieces.more + self._tail

    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """A chunk with the finish reason of each choice that has none yet, and the limit that ended
        the answer early, if any; empty if all choices have ended."""
        if not self._open:
            return b""
        end = self._operation.end() | _ended(finish_reason, limited)
        choices = b",".join(_json({"index": index} | end) for index in self._open)
        return self._pieces.head + choices + b"]" + self._tail

    def ending(self, usage: Usage) -> bytes:
        """See `Framing`."""
        if not self._include_usage:
            return DONE
        return self._pieces.head + b'],"usage":' + _json(usage_body(usage)) + b"}\n\n" + DONE

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        limited: InferenceError | None = None,
    ) -> bytes:
        """See `Framing`."""
        choice = {"index": 0} | self._operation.choice(text) | _ended(finish_reason, limited)
        return _json(
            {
                "id": self._id,
                "object": self._operation.whole_object,
                "created": self._created,
                "model": self._model,
                "choices": [choice],
                "usage": usage_body(usage),
                **self._common,
            }
        )

    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        """See `Framing`. Choices that a limit ended name it."""
        if limited is None:
            common = b"," + _json(self._common)[1:-1] if self._common else b""
            return response[:-1] + common + b"}"
        answer = msgspec.json.decode(response) | self._common
        for choice in answer["choices"]:
            if choice["finish_reason"] == "length":
                choice |= _details(limited)
        return _json(answer)


def _running(choice: dict[str, Any]) -> bytes:
    """The only choice of a chunk, without a finish reason."""
    return _json({"index": 0} | choice | _ended(None))


def _ended(finish_reason: str | None, limited: InferenceError | None = None) -> dict[str, Any]:
    return {"logprobs": None, "finish_reason": finish_reason} | _details(limited)


def _details(limited: InferenceError | None) -> dict[str, Any]:
    """The limit that ended an answer early. Not in `error`: clients would treat the answer as
    failed."""
    if limited is None:
        return {}
    return {"finish_details": {"code": limited.code, "message": limited.message}}


def span(seconds: float) -> str:
    """A time span in the format of `x-ratelimit-reset` headers: `120ms`, `1.5s`, `6m0s`."""
    ms = round(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:g}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


class UsageCounts(Protocol):
    """Token counts of one request: final (`accounts.Usage`) or so far (an engine's meter)."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def is_estimated(self) -> bool: ...


def usage_body(usage: UsageCounts) -> dict[str, Any]:
    """The `usage` object of an answer."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def counts_of(body: dict[str, Any]) -> Usage:
    """The reverse of `usage_body`."""
    return Usage(
        body["prompt_tokens"],
        body["prompt_tokens_details"]["cached_tokens"],
        body["completion_tokens"],
        body["completion_tokens_details"]["reasoning_tokens"],
    )
