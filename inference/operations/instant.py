"""Operations that an engine answers from its tokenizer alone: nothing is generated or billed.

They go the way of every request, so they have the same keys, models, limits of requests, queue and
idempotency. In the queue they are charged what computing their text would cost: else a tenant could
have an engine's tokenizer for itself. Of the limits of tokens and of the budget they take nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from inference.errors import InferenceError, InvalidRequest
from inference.grants import Ask
from inference.link.wire import Usage
from inference.operations.call import Call
from inference.operations.estimate import Estimate, prompt_tokens_of
from inference.operations.operation import Framing, Operation, PlainPrompt

MAX_TEXT = 1 << 20
"""Characters that are made tokens at once: longer than any context, and some seconds of a core."""

NOTHING = Ask(0, 0, 0)


class PlainTokenizer(Protocol):
    """That of an engine without a model: the synthetic one."""

    @property
    def max_model_len(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str:
        """Raises InvalidRequest: one of them is none."""
        ...


class InstantOperation(Operation):
    """Its answer is one JSON object, which the engine makes whole."""

    uses_adapter = False
    id_prefix: ClassVar[str] = ""

    def estimate(self, call: Call, prompt_tokens: int, max_model_len: int) -> Estimate:
        """Nothing is reserved but the request itself."""
        return Estimate(prompt_tokens_of(call, prompt_tokens, max_model_len), NOTHING, False)

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        """As the operation says."""
        return Whole()

    @abstractmethod
    def plain_answer(self, fields: dict[str, Any], tokenizer: PlainTokenizer) -> dict[str, Any]:
        """The answer to what `allowed` returned, for the synthetic engine.

        Raises:
            InvalidRequest: it has a shape that only real engines take.
        """

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """Nothing is generated from it."""
        return PlainPrompt("", "")


class Whole(Framing):
    """What the engine says, as it says it."""

    def opening(self) -> bytes:
        """It never streams."""
        return b""

    def text(self, text: str) -> bytes:
        """It never streams."""
        return text.encode()

    def chunk(self, chunk: bytes) -> bytes:
        """It never streams."""
        return chunk

    def closing(self, finish_reason: str, limited: InferenceError | None = None) -> bytes:
        """It never streams."""
        return b""

    def ending(self, usage: Usage) -> bytes:
        """It never streams."""
        return b""

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: Usage,
        limited: InferenceError | None = None,
    ) -> bytes:
        """As the framing says."""
        return text.encode()

    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        """As the framing says."""
        return response


def check_text(chars: int, param: str) -> None:
    """See that so much text can be made tokens.

    Raises:
        InvalidRequest: it is too much.
    """
    if chars > MAX_TEXT:
        message = f"`{param}` has {chars} characters: it can have {MAX_TEXT} at most."
        raise InvalidRequest(message, param=param)
