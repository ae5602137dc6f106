"""An operation: one kind of request that clients can make, from its body to the end of its answer;
and a call: one such request.

The methods of a request's operation are called in this order:

| where | call |
| --- | --- |
| gateway | `shape.Shape` counts the values of the body while it arrives, and checks its text |
| gateway | `parse` reads the fields that routing, limits and framing need: a `Call` |
| gateway | `estimate` returns what to reserve, `bound` how much of that the engine may generate |
| gateway | the `submit` frame carries the operation's `name` and `Call.body` |
| agent | `read` decodes that body; `max_tokens` bounds its choices for the synthetic engine |
| engine | `allowed` returns the fields that an engine may see; the engine runs it (see below) |
| gateway | `framing` writes what the engine sends: chunks, a whole answer, usage |

To add one, write a subclass in a file of its own and add it to `registry.py`. Limits, fairness,
adapters, idempotency, journal and ledger then work without further code. OpenAI's shapes are in
`openai.OpenAIOperation`; `chat.py` and `completion.py` only add what is specific to them.

Each engine decides how to run it: the synthetic one answers any operation from `plain_prompt`; vLLM
has a `Runner` for each in `inference/agent/engines/vllm/runners/`. An engine without one refuses
the operation.

Nothing here may import the gateway, the agent, vLLM or Django: both ends of the link use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec

from inference.errors import InferenceError, InvalidRequest
from inference.link.accounts import Usage
from inference.link.prefixes import Prefix
from inference.link.workload import ONE_CHOICE, Workload
from inference.operations.bodies.beginnings import Beginnings
from inference.operations.error_shapes import OPENAI, ErrorShape
from inference.operations.estimate import Estimate, ask_for, with_prompt
from inference.operations.structure import AskedStructure


@dataclass(slots=True)
class Call:
    """One parsed request: what the gateway knows about its body.

    With `running_usage` each chunk says how many tokens there are so far, beside the usage at the
    end (`include_usage`). A `flex` request may wait behind others. `parsers` are those that its
    engine needs (`ModelInfo.parsers`). `body` is sent to the engine's agent: the client's bytes,
    unless the operation rewrites them. `beginnings` are those of its prompt, empty if it has
    several. `user` and `safety_identifier` are its fields of these names, which only choose between
    the versions of a split. `structure` is what its finished answer is checked against. `route` is
    the name of the route that chose its `model`, if one did.

    Operations with further fields have a subclass (`responses.call.ResponseCall`).
    """

    operation: Operation
    model: str
    stream: bool = False
    include_usage: bool = False
    running_usage: bool = False
    workload: Workload = ONE_CHOICE
    flex: bool = False
    parsers: tuple[str, ...] = ()
    body: bytes = b""
    beginnings: Beginnings = field(default_factory=Beginnings, compare=False)
    user: str = ""
    safety_identifier: str = ""
    structure: AskedStructure | None = None
    route: str = ""

    @property
    def grows(self) -> bool:
        """Whether more may be reserved for it while it runs."""
        return self.stream and self.workload.max_tokens is None

    def check_as_line(self) -> None:
        """Check that it may be a line of a batch: its answer does not stream, and its body is
        self-contained.

        Raises:
            InvalidRequest: it may not.
        """
        if self.stream:
            raise InvalidRequest("`stream` is not supported in a batch.", param="stream")

    def take_prefix(self, salt: str, adapter: str) -> Prefix | None:
        """The names of its prompt's beginnings for this tenant's salt and adapter, which are
        dropped from here."""
        beginnings, self.beginnings = self.beginnings, Beginnings()
        return beginnings.named(salt, adapter)

    def take_body(self) -> bytes:
        """The body, which is dropped from here: a call lives as long as its answer, and the body
        may have many megabytes."""
        body, self.body = self.body, b""
        return body


class PlainPrompt(NamedTuple):
    """A prompt for the synthetic engine, which has no chat template and no tokenizer."""

    whole: str
    repeated: str
    """The part of `whole` that the answer repeats."""


class Framing(ABC):
    """Everything that is written to the client for one request: the chunks of a stream, or the
    whole body.

    A stream is `opening`, then `generated` with `text` or `chunk` in the order of the engine's
    deltas, `closing` and `ending`. `text` is the lean path, where an engine sends plain text; a
    chunk is a finished JSON body.
    """

    def counted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The engine has counted the prompt. Called before the first text or chunk, if at all; the
        usage passed to `ending` is authoritative."""
        return

    def generated(self, tokens: int) -> None:
        """The text or chunks that follow come with so many more output tokens."""
        return

    @abstractmethod
    def opening(self) -> bytes:
        """The beginning of a stream of text, may be empty. Streams of chunks have their own."""

    @abstractmethod
    def text(self, text: str) -> bytes:
        """The chunk that adds this text. Called per token: assembled from encoded pieces."""

    @abstractmethod
    def chunk(self, chunk: bytes) -> bytes:
        """A chunk that the engine wrote in full, ready to send."""

    @abstractmethod
    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """Ends the choices that have not ended yet; `limited` is the limit that ended them early,
        if one did."""

    @abstractmethod
    def ending(self, usage: Usage) -> bytes:
        """The usage, if the client asked for it, and the end of the stream."""

    def failed(self, error: InferenceError) -> bytes:
        """The end of a stream that failed after it began, if that depends on what was written; if
        empty, the error is written by the operation's `errors`."""
        return b""

    @abstractmethod
    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        limited: InferenceError | None = None,
    ) -> bytes:
        """The answer to a request that does not stream, from its text."""

    @abstractmethod
    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        """The answer to a request that does not stream, which the engine wrote in full."""


class Operation(ABC):
    """One stateless object per operation. The module describes the order of calls."""

    name: ClassVar[str]
    """Its name on the wire (`Submit.kind`) and in the registry; never changes."""
    path: ClassVar[str]
    """The path that clients `POST` to."""
    also_at: ClassVar[tuple[str, ...]] = ()
    """Other paths to the same, at which vLLM's own server has it."""
    id_prefix: ClassVar[str]
    """An answer's id is this, a hyphen and the request's id."""
    span_name: ClassVar[str] = ""
    """OpenTelemetry's name for it in spans, if that is not `name`."""
    accepted: ClassVar[frozenset[str]]
    """The fields of a body that engines may see. Others are ignored, as OpenAI ignores unknown
    ones; that includes every field by which a client could claim an identity or choose its cache.
    An allow-list also covers fields that future versions of vLLM add."""

    in_batches: ClassVar[bool] = False
    """Whether lines of a batch may use it: its answer can be one JSON object."""
    errors: ClassVar[ErrorShape] = OPENAI
    """The shape of its errors."""
    uses_adapter: ClassVar[bool] = True
    """Whether its answer depends on an adapter's weights; if not, none is loaded for it."""
    pools: ClassVar[bool] = False
    """Whether it only computes prompts and generates nothing. Its prompts are computed a few at a
    time: engines hold no more of them than one step computes (`pooling`)."""
    max_numbers: ClassVar[int] = 0
    """Most numbers in arrays of a body, such as a prompt's tokens, in addition to
    `shape.MAX_VALUES` other values."""

    # --- gateway ---------------------------------------------------------------------------------

    @abstractmethod
    def parse(self, body: bytes) -> Call:
        """Read a body that `shape.Shape` has checked. Must be cheap: all clients' streams share
        this event loop.

        Raises:
            InvalidRequest: not JSON, or a field that the gateway needs is wrong.
        """

    def estimate(self, call: Call, prompt_tokens: int, max_model_len: int) -> Estimate:
        """What to reserve. `prompt_tokens` is what a body of its size usually has; `max_model_len`
        is in tokens, 0 if unknown.

        Raises:
            ContextLengthExceeded: its prompts come as tokens and have too many.
        """
        workload = with_prompt(call.workload, prompt_tokens, max_model_len)
        ask = ask_for(workload, max_model_len, stream=call.stream)
        return Estimate(workload, ask, call.grows)

    def bound(self, call: Call, reserved_tokens: int | None) -> int | None:
        """Most tokens that each choice may generate of those reserved; None if the call bounds
        itself, its reservation grows as it streams, or nothing limits it."""
        if reserved_tokens is None or call.stream or call.workload.max_tokens is not None:
            return None
        return max(1, reserved_tokens // call.workload.choices)

    @abstractmethod
    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        """The framing of its answer. `id` is the request's; `created` a unix time in seconds;
        `revision` that of the engine (`ModelInfo.revision`), empty if unknown."""

    # --- agent -----------------------------------------------------------------------------------

    def read(self, body: bytes, max_tokens: int | None) -> dict[str, Any]:
        """Decode the body that a frame carries, with each choice bounded by `max_tokens`.

        Raises:
            InvalidRequest: it is not a JSON object.
        """
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
        return fields if max_tokens is None else fields | {"max_tokens": max_tokens}

    def max_tokens(self, body: dict[str, Any]) -> int | None:
        """The bound of each choice in tokens, if the body sets one by a number."""
        for name in ("max_completion_tokens", "max_tokens"):
            if isinstance(wanted := body.get(name), int):
                return max(0, wanted)
        return None

    # --- engine ----------------------------------------------------------------------------------

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """The fields of `body` that an engine may see; `body` is not changed.

        Raises:
            InvalidRequest: it has a shape that no engine accepts, or asks for something that no
                engine does, or for too much.
        """
        return {name: value for name, value in body.items() if name in self.accepted}

    @abstractmethod
    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """The prompt in what `allowed` returned, for the synthetic engine.

        Raises:
            InvalidRequest: it has a shape that only real engines accept.
        """

    def conform(self, choice: dict[str, Any]) -> None:
        """Convert a choice of vLLM's, of a chunk or of a whole answer, to what clients expect.
        Mutates the choice; by default does nothing."""
        return

    def reworded(self, error: BaseException) -> BaseException:
        """An engine's error in the words that this API's clients recognise; by default its own."""
        return error

    def answer_id(self, request_id: str) -> str:
        """The id of the answer and of each of its chunks."""
        return f"{self.id_prefix}-{request_id}"
