"""Operations that an engine answers from its tokenizer alone: nothing is generated or billed.

They take the path of every request, so the same keys, models, request limits, queue and idempotency
apply. The queue charges them what computing their text would cost; otherwise a tenant could
monopolize an engine's tokenizer. They use nothing of token limits and budgets.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol

from inference.errors import InferenceError, InvalidRequest
from inference.interfaces.limiter import ReservationRequest
from inference.link.accounts import Usage
from inference.operations.estimate import Estimate, with_prompt
from inference.operations.operation import Call, Framing, Operation, PlainPrompt

MAX_TEXT = 1 << 20
"""Most characters tokenized at once: more than any context holds; some seconds of a core."""

NOTHING = ReservationRequest(0, 0, 0)


class PlainTokenizer(Protocol):
    """The tokenizer of an engine without a model: the synthetic one."""

    @property
    def max_model_len(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str:
        """Raises InvalidRequest: one of them is no token."""
        ...


class InstantOperation(Operation):
    """Its answer is one JSON object, which the engine writes in full."""

    uses_adapter = False
    id_prefix: ClassVar[str] = ""

    def estimate(self, call: Call, prompt_tokens: int, max_model_len: int) -> Estimate:
        """Nothing is reserved but the request itself."""
        workload = with_prompt(call.workload, prompt_tokens, max_model_len)
        return Estimate(workload, NOTHING, False)

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        """See `Operation`."""
        return WholeAnswer()

    @abstractmethod
    def plain_answer(self, fields: dict[str, Any], tokenizer: PlainTokenizer) -> dict[str, Any]:
        """The answer to what `allowed` returned, for the synthetic engine.

        Raises:
            InvalidRequest: it has a shape that only real engines take.
        """

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """Nothing is generated from it."""
        return PlainPrompt("", "")


class WholeAnswer(Framing):
    """Passes on the engine's answer unchanged."""

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
        """See `Framing`."""
        return text.encode()

    def response(self, response: bytes, limited: InferenceError | None) -> bytes:
        """See `Framing`."""
        return response


def check_text(chars: int, param: str) -> None:
    """Check that text of this length may be tokenized.

    Raises:
        InvalidRequest: it is too long.
    """
    if chars > MAX_TEXT:
        message = f"`{param}` has {chars} characters: it can have at most {MAX_TEXT}."
        raise InvalidRequest(message, param=param)
