"""What an operation is: one thing that clients can ask for, from its body to its answer's end.

A request meets its operation in this order:

| where | what is asked of it |
| --- | --- |
| gateway | its body is counted while it arrives: `shape.Shape` |
| gateway | `parse` reads the body as far as routing, limits and framing need it: a `Call` |
| gateway | `estimate` says what to reserve for it, `bound` what the engine may generate of that |
| gateway | the `submit` frame carries the operation's `name` and `Call.body` |
| agent | `read` decodes that body; `choices` and `max_tokens` say what it takes of the queue |
| engine | `allowed` is what of the body an engine may see; the engine runs it (see below) |
| gateway | `framing` writes what the engine sends: chunks, a whole answer, usage |

To add one, write a subclass in a file of its own and name it in `registry.py`. Limits, fairness,
adapters, idempotency, journal and ledger hold for it without another line. OpenAI's shapes are
ready in `openai.OpenAIOperation`; `chat.py` and `completion.py` are what remains of theirs.

How an engine runs it is the engine's: the synthetic one answers any operation from `plain_prompt`;
vLLM has a `Runner` for each in `inference/agent/engines/vllm/runners/`. An engine that has none
refuses the operation.

Nothing here may import the gateway, the agent, vLLM or Django: both ends of the link use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import msgspec

from inference.errors import InferenceError, InvalidRequest
from inference.link.wire import Usage
from inference.operations.call import Call
from inference.operations.error_shapes import OPENAI, ErrorShape
from inference.operations.estimate import Estimate, ask_of, bound_of, grows, prompt_tokens_of


class PlainPrompt(NamedTuple):
    """A prompt for an engine without chat template and tokenizer: the synthetic one."""

    whole: str
    said: str
    """The part of it that the answer repeats."""


class Framing(ABC):
    """Everything that is written for one request: chunks while it streams, or the whole body.

    A stream is `opening`, then `text` and `chunk` in the order of the engine's deltas, `closing`
    and `ending`. Text is the lean path, where an engine sends plain text; a chunk is a finished
    JSON body.
    """

    def counted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The engine has counted the prompt. Comes before the first text or chunk, if at all; what
        `ending` is told holds in any case."""
        return

    @abstractmethod
    def opening(self) -> bytes:
        """What a stream of text begins with; empty if nothing. Engines open their own chunks."""

    @abstractmethod
    def text(self, text: str) -> bytes:
        """The chunk that adds this text. Once per token: put together from encoded pieces."""

    @abstractmethod
    def chunk(self, chunk: bytes) -> bytes:
        """A chunk that the engine made whole."""

    @abstractmethod
    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """What ends the choices that did not end yet, with the limit that ended them early."""

    @abstractmethod
    def ending(self, usage: Usage) -> bytes:
        """The usage, if it was asked for, and the end of the stream."""

    def failed(self, error: InferenceError) -> bytes:
        """What ends a stream that fails after it began, where that depends on what was written; if
        empty, the operation's `errors` say it."""
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
        """The answer to a request that does not stream, which the engine made whole."""


class Operation(ABC):
    """One object per operation, without state. The module says what is called when."""

    name: ClassVar[str]
    """On the wire (`Submit.kind`) and in the registry; for ever."""
    path: ClassVar[str]
    """Where clients `POST` it."""
    id_prefix: ClassVar[str]
    """An answer's id is this, a hyphen and the request's id."""
    accepted: ClassVar[frozenset[str]]
    """The fields of a body that engines may see. Others are ignored, as OpenAI ignores unknown
    ones, and so is every field by which a client could say who it is or where its cache lies. A
    list of what is allowed also holds for fields that vLLM has yet to invent."""

    in_batches: ClassVar[bool] = False
    """Whether a batch may have it: its answer can be one JSON object."""
    errors: ClassVar[ErrorShape] = OPENAI
    """How its errors look."""
    uses_adapter: ClassVar[bool] = True
    """Whether the weights of an adapter matter to it: if not, none is loaded for it."""
    pools: ClassVar[bool] = False
    """Whether its prompts are computed a few at a time, for nothing is generated from them: engines
    hold no more of it than one step computes (`pooling`)."""
    max_numbers: ClassVar[int] = 0
    """How many numbers a body may hold in arrays, such as a prompt's tokens, beside
    `shape.MAX_VALUES` other values."""

    # --- gateway ---------------------------------------------------------------------------------

    @abstractmethod
    def parse(self, body: bytes) -> Call:
        """Read a body, cheaply: this loop carries everybody's streams.

        Raises:
            InvalidRequest: not UTF-8, not JSON, or a field that the gateway needs is wrong.
        """

    def estimate(self, call: Call, prompt_tokens: int, max_model_len: int) -> Estimate:
        """What to reserve. `prompt_tokens` is what a body of its size usually has; `max_model_len`
        in tokens, 0 where it is not known.

        Raises:
            ContextLengthExceeded: its prompts say themselves that they are too long.
        """
        length = prompt_tokens_of(call, prompt_tokens, max_model_len)
        return Estimate(length, ask_of(call, length, max_model_len), grows(call))

    def bound(self, call: Call, reserved_tokens: int | None) -> int | None:
        """What each choice may generate at most by what was reserved; None: the call or the stream
        sees to it."""
        return bound_of(call, reserved_tokens)

    @abstractmethod
    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        """What writes the answer. `id` is the request's; `created` a unix time in seconds;
        `revision` that of the engine (`ModelInfo.revision`), empty where it is not known."""

    # --- agent -----------------------------------------------------------------------------------

    def read(self, body: bytes, max_tokens: int | None) -> dict[str, Any]:
        """The body that a frame carries, with each choice bounded by `max_tokens`.

        Raises:
            InvalidRequest: it is not a JSON object.
        """
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
        return fields if max_tokens is None else fields | {"max_tokens": max_tokens}

    def choices(self, body: dict[str, Any]) -> int:
        """How many texts the body asks for; at least 1, whatever it holds."""
        n = body.get("n")
        return max(1, n) if isinstance(n, int) else 1

    def max_tokens(self, body: dict[str, Any]) -> int | None:
        """How many tokens each of them may have, as far as the body says so by a number."""
        for name in ("max_completion_tokens", "max_tokens"):
            if isinstance(wanted := body.get(name), int):
                return max(0, wanted)
        return None

    # --- engine ----------------------------------------------------------------------------------

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """The fields of `body` that an engine may see; `body` is left as it is.

        Raises:
            InvalidRequest: it has a shape that no engine takes, asks for what none does, or for too
                much of it.
        """
        return {name: value for name, value in body.items() if name in self.accepted}

    @abstractmethod
    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """The prompt in what `allowed` returned, for the synthetic engine.

        Raises:
            InvalidRequest: it has a shape that only real engines take.
        """

    def conform(self, choice: dict[str, Any]) -> None:
        """Make a choice of vLLM's, of a chunk or of a whole answer, what clients are answered. The
        choice is changed; unless an operation says otherwise it stays as it is."""
        return

    def answer_id(self, request_id: str) -> str:
        """The id that the answer and each of its chunks show."""
        return f"{self.id_prefix}-{request_id}"
