"""Operations that compute prompts and generate nothing: what a model says of texts as numbers.

An engine does these or generates, never both; so they are asked of a base model of their own. A
request may have many prompts. Its engine computes as many at a time as one step takes, so a long
list holds nobody up, and its place in the queue is that of one request. It is billed for the
prompts that were computed. Nothing of it leaves the engine before its end: one whose engine is lost
is computed again by another, and that attempt is its bill.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from inference.errors import InvalidRequest
from inference.link.wire import MAX_FRAME_BYTES
from inference.operations.call import Call
from inference.operations.estimate import MAX_TOKENS
from inference.operations.instant import Whole
from inference.operations.openai import ARRAY
from inference.operations.operation import Framing, Operation, PlainPrompt

MAX_INPUTS = 2048
"""Of one request, as OpenAI takes them."""
MAX_ANSWER_BYTES = MAX_FRAME_BYTES // 2
"""What one frame of the engine link takes (`Done.sendable`)."""

Text = str | list[int]
"""A prompt, or its tokens."""
Vector: TypeAlias = "array[float]"
"""Of 4 bytes each, and finite."""


class Told(NamedTuple):
    """What an answer says of itself; `created` is a unix time in seconds."""

    id: str
    created: int
    model: str
    prompt_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        """The field `usage`."""
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}


class PoolingOperation(Operation):
    """Its answer is one JSON object, which the engine makes whole."""

    pools = True
    max_numbers = MAX_TOKENS
    takes_tokens = False
    """Whether a text may be given as a list of its tokens."""

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Without fields that are null; its texts are looked at."""
        kept = {name: value for name, value in super().allowed(body).items() if value is not None}
        for path, text in self.texts(kept):
            _check_text(text, path, tokens=self.takes_tokens)
        return kept

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        """As the operation says."""
        return Whole()

    def choices(self, body: dict[str, Any]) -> int:
        """It is one request, whatever it has of prompts."""
        return 1

    def max_tokens(self, body: dict[str, Any]) -> int:
        """None are generated."""
        return 0

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """Nothing is generated from it."""
        return PlainPrompt("", "")

    @abstractmethod
    def texts(self, fields: dict[str, Any]) -> list[tuple[str, Text]]:
        """What the synthetic engine has to compute of what `allowed` returned, each with its path
        in the body.

        Raises:
            InvalidRequest: it has a shape that only real engines take.
        """

    @abstractmethod
    def plain_answer(self, fields: dict[str, Any], vectors: Sequence[Vector], told: Told) -> bytes:
        """The synthetic engine's answer, from the vectors of `texts`.

        Raises:
            InvalidRequest: it would be too long.
        """


def count_texts(given: msgspec.Raw, name: str) -> tuple[int, int]:
    """How many texts or lists of tokens a field of this name holds, and of how many tokens, 0 where
    they are text. Their shape is left to the engine: taken apart they would hold this loop up.

    Raises:
        InvalidRequest: there are too many, or none.
    """
    said = bytes(given).strip()
    if said in (b"null", b'""', b"[]"):
        raise InvalidRequest(f"`{name}` must not be empty.", param=name)
    listed = ARRAY.match(said)
    if listed is None:
        return 1, 0
    if listed[1] in b'"{':
        count, tokens = len(msgspec.json.decode(said, type=list[msgspec.Raw])), 0
    else:
        count, tokens = max(1, said.count(b"[") - 1), said.count(b",") + 1
    if count > MAX_INPUTS:
        raise InvalidRequest(
            f"`{name}` has {count} entries: it can have {MAX_INPUTS} at most.", param=name
        )
    return count, tokens


def _check_text(text: Any, path: str, *, tokens: bool) -> None:
    """See that there is one: a string, or with `tokens` maybe a list of those.

    Raises:
        InvalidRequest: it is something else, or empty.
    """
    if tokens and isinstance(text, list):
        if not all(type(token) is int and token >= 0 for token in text):
            raise InvalidRequest(
                f"`{path}` must be an array of tokens; a token is an integer from 0.", param=path
            )
    elif not isinstance(text, str):
        wanted = "a string or an array of tokens" if tokens else "a string"
        raise InvalidRequest(f"`{path}` must be {wanted}.", param=path)
    if not text:
        raise InvalidRequest(f"`{path}` must not be empty.", param=path)


def check_length(answer_bytes: int, instead: str) -> None:
    """See that an answer of this length can be sent.

    Raises:
        InvalidRequest: it can't; `instead` says what to do.
    """
    if answer_bytes > MAX_ANSWER_BYTES:
        raise InvalidRequest(
            f"The answer would have more than {MAX_ANSWER_BYTES} bytes: {instead}.", param="input"
        )
