"""The JSON messages between the playground's page and its socket.

The page chooses the ids of its answers; they are unique per user. `seq` counts the characters (code
points) of an answer so far, `token_seq` the tokens whose probabilities were requested, `call_seq`
the parts of its tool calls: that is all it takes to resume an answer.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from frontend.playground.checks import check_extra, check_tools
from frontend.sockets.messages import Ping, SocketMessage
from inference.errors import InferenceError, InvalidRequest
from inference.operations.bodies.shape import BodyShape

MAX_ID_CHARS = 64
TOP_LOGPROBS = 5
"""Alternatives shown for each token."""


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """The function that a tool call names; its arguments are JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call of the model, in OpenAI's format."""

    id: str
    function: Function
    type: Literal["function"] = "function"


class PaneTurn(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One message of the conversation, in OpenAI's format."""

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""
    """For a result: the id of its call."""


class Parameters(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Parameters set in a pane; None means the model's default."""

    system: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] = []
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    schema: dict[str, Any] | None = None
    """The JSON schema that the answer must conform to."""
    tools: list[Any] = []
    """Tools that the model may call, in OpenAI's format."""
    extra: dict[str, Any] = {}
    """Other fields of the request, such as `tool_choice`."""
    logprobs: bool = False
    """Whether to show the probability and the alternatives of each token."""

    def fields(self) -> dict[str, Any]:
        """As fields of an OpenAI request.

        Raises:
            InvalidRequest: the tools have a wrong shape, or another field is set elsewhere.
        """
        check_tools(self.tools)
        check_extra(self.extra, has_schema=self.schema is not None)
        plain: dict[str, Any] = {
            **self.extra,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "stop": self.stop or None,
            "seed": self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "tools": self.tools or None,
            "logprobs": self.logprobs or None,
            "top_logprobs": TOP_LOGPROBS if self.logprobs else None,
        }
        if self.schema is not None:
            plain["response_format"] = self.response_format
        return {name: value for name, value in plain.items() if value is not None}

    @property
    def response_format(self) -> dict[str, Any]:
        """The response format with the schema."""
        schema = {"name": "answer", "schema": self.schema, "strict": True}
        return {"type": "json_schema", "json_schema": schema}


class Start(SocketMessage, tag="start"):
    """Page to socket: generate this answer."""

    id: str
    model: str
    messages: list[PaneTurn]
    parameters: Parameters = Parameters()

    def body(self) -> bytes:
        """The request as a client of the API would have sent it.

        Raises:
            InvalidRequest: see `Parameters.fields`.
        """
        turns: list[Any] = list(self.messages)
        if self.parameters.system:
            turns.insert(0, {"role": "system", "content": self.parameters.system})
        body = {"model": self.model, "messages": turns, "stream": True, **self.parameters.fields()}
        return msgspec.json.encode(body)


class Stop(SocketMessage, tag="stop"):
    """Page to socket: abort this answer; its outcome is still sent."""

    id: str


class ResumePane(SocketMessage, tag="resume"):
    """Page to socket: continue this answer after that many characters, tokens, parts of calls."""

    id: str
    after: int
    tokens: int = 0
    calls: int = 0


class Alternative(msgspec.Struct):
    """A candidate for a token; `logprob` is the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class Token(Alternative):
    """A token of an answer, as in OpenAI's `logprobs`. A character may span several tokens: their
    bytes have to be joined before they are decoded."""

    top_logprobs: list[Alternative] = []


class CallPart(msgspec.Struct, omit_defaults=True):
    """A part of the tool call at this `index` of an answer; the first one has its id and name."""

    index: int = 0
    id: str = ""
    name: str = ""
    arguments: str = ""


class PaneDelta(SocketMessage, tag="delta", omit_defaults=True):
    """Socket to page: more text, tokens or parts of tool calls, which `seq`, `token_seq` and
    `call_seq` include."""

    id: str
    seq: int
    text: str
    tokens: list[Token] = []
    token_seq: int = 0
    calls: list[CallPart] = []
    call_seq: int = 0


class PanePhase(SocketMessage, tag="phase"):
    """Socket to page: what an answer is waiting for; one that moves waits in the middle too.

    `phase` is `waiting` until the engine reports, then one of `inference.link.wire.Wait`, then
    `generating`; `place` is the position in the queue, `elapsed_ms` the time in this phase.
    """

    id: str
    phase: str
    place: int = 0
    elapsed_ms: int = 0


class Finished(SocketMessage, tag="done"):
    """Socket to page: how the answer ended and what is billed. The cost is in pico-units,
    which a JavaScript number holds exactly up to 9,007 units of the currency."""

    id: str
    request_id: str
    finish_reason: str
    usage: dict[str, Any]
    cost: int
    ttft_ms: float | None
    tokens_per_s: float | None
    queue_ms: float
    load_ms: float
    limited: str = ""
    """The limit that cut the answer short."""


class Failed(SocketMessage, tag="error"):
    """Socket to page: the answer failed. The id is empty if the page's message had none."""

    id: str
    code: str
    message: str
    request_id: str = ""
    retry_after_s: float | None = None

    @classmethod
    def of(cls, id: str, error: InferenceError, request_id: str = "") -> Failed:
        shown = f"req_{request_id}" if request_id else ""
        return cls(id, error.code, error.message, shown, error.retry_after_s)


FromPage = Start | Stop | ResumePane | Ping
Outcome = Finished | Failed
_decoder: msgspec.json.Decoder[FromPage] = msgspec.json.Decoder(FromPage)


def decode(text: str | bytes) -> FromPage:
    """Decode a message from the page.

    Raises:
        InvalidRequest: it is not a valid message, or holds more than the body of a request may.
    """
    BodyShape().feed(text.encode() if isinstance(text, str) else text)
    try:
        message = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Not a message of the playground: {error}.") from None
    if not isinstance(message, Ping) and not 0 < len(message.id) <= MAX_ID_CHARS:
        raise InvalidRequest(f"`id` takes 1 to {MAX_ID_CHARS} characters.", param="id")
    return message


class _Named(msgspec.Struct):
    id: str = ""


_named = msgspec.json.Decoder(_Named)


def id_of(text: str | bytes) -> str:
    """The id in an otherwise invalid message, so that its pane can show the error; "" if none."""
    try:
        return _named.decode(text).id[:MAX_ID_CHARS]
    except (msgspec.DecodeError, RecursionError):
        return ""
