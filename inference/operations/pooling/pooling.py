"""Operations that compute prompts and generate nothing: embeddings and scores.

An engine either pools or generates, so these requests name a base model of their own. A request may
have many prompts. Its engine computes as many at a time as fit into one step, so a long list does
not delay other requests, and it takes one place in the queue. It is billed for the prompts that
were computed. Nothing leaves the engine before the request ends: if the engine is lost, another one
computes everything again, and only that attempt is billed.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from inference.errors import InvalidRequest
from inference.link.wire import MAX_FRAME_BYTES
from inference.operations.estimate import MAX_TOKENS
from inference.operations.instant import WholeAnswer
from inference.operations.openai import ARRAY
from inference.operations.operation import Call, Framing, Operation, PlainPrompt

MAX_INPUTS = 2048
"""Most inputs of one request; OpenAI's limit."""
MAX_ANSWER_BYTES = MAX_FRAME_BYTES // 2
"""The longest answer that `Done.sendable` lets into one frame of the engine link."""

UNSERVED_OF_VLLM: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "add_special_tokens": ((True,), "a text always has those of its model"),
    "embed_dtype": (("float32",), "numbers have 4 bytes"),
    "endianness": (("little", "native"), "numbers begin with their lowest byte"),
    "normalize": ((True,), "vectors always have length 1"),
    "padding": (("do_not_pad",), "texts are not padded"),
    "truncation_side": (("right",), "a text is cut at its end"),
    "use_activation": ((True,), "vectors and scores are always normalized"),
}
"""Fields of vLLM that would change an answer, each with the values that change nothing, and what is
so here."""

Text = str | list[int]
"""A prompt, or its tokens."""
Vector: TypeAlias = "array[float]"
"""Finite floats of 4 bytes each."""


class AnswerMetadata(NamedTuple):
    """The metadata of an answer; `created` is a unix time in seconds."""

    id: str
    created: int
    model: str
    prompt_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        """The field `usage`."""
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}


class PoolingOperation(Operation):
    """Its answer is one JSON object, which the engine writes in full."""

    pools = True
    max_numbers = MAX_TOKENS
    takes_tokens = False
    """Whether a text may be given as a list of its tokens."""

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`. Checks texts and UNSERVED_OF_VLLM; fields that are null are dropped."""
        for name, (harmless, instead) in UNSERVED_OF_VLLM.items():
            if (given := body.get(name)) is not None and given not in harmless:
                raise InvalidRequest(f"`{name}` is not supported: {instead}.", param=name)
        kept = {name: value for name, value in super().allowed(body).items() if value is not None}
        for path, text in self.texts(kept):
            _check_text(text, path, tokens=self.takes_tokens)
        return kept

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        """See `Operation`."""
        return WholeAnswer()

    def max_tokens(self, body: dict[str, Any]) -> int:
        """0: none are generated."""
        return 0

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """Nothing is generated from it."""
        return PlainPrompt("", "")

    @abstractmethod
    def texts(self, fields: dict[str, Any]) -> list[tuple[str, Text]]:
        """The texts in what `allowed` returned, each with its path in the body, for the synthetic
        engine to compute.

        Raises:
            InvalidRequest: it has a shape that only real engines accept.
        """

    @abstractmethod
    def plain_answer(
        self, fields: dict[str, Any], vectors: Sequence[Vector], metadata: AnswerMetadata
    ) -> bytes:
        """The synthetic engine's answer, from the vectors of `texts`.

        Raises:
            InvalidRequest: it would be too long.
        """


def count_texts(given: msgspec.Raw, name: str) -> tuple[int, int]:
    """The number of texts or lists of tokens in a field of this name, and of their tokens together,
    0 if they are text. The engine checks their shape: decoding them would block this loop.

    Raises:
        InvalidRequest: there are too many, or none.
    """
    text = bytes(given).strip()
    if text in (b"null", b'""', b"[]"):
        raise InvalidRequest(f"`{name}` must not be empty.", param=name)
    listed = ARRAY.match(text)
    if listed is None:
        return 1, 0
    if listed[1] in b'"{':
        count, tokens = len(msgspec.json.decode(text, type=list[msgspec.Raw])), 0
    else:
        count, tokens = max(1, text.count(b"[") - 1), text.count(b",") + 1
    if count > MAX_INPUTS:
        raise InvalidRequest(
            f"`{name}` has {count} entries: it can have at most {MAX_INPUTS}.", param=name
        )
    return count, tokens


def _check_text(text: Any, path: str, *, tokens: bool) -> None:
    """Check that it is a string or, with `tokens`, a list of tokens.

    Raises:
        InvalidRequest: it is something else, or empty.
    """
    if tokens and isinstance(text, list):
        if not all(type(token) is int and token >= 0 for token in text):
            raise InvalidRequest(
                f"`{path}` must be an array of tokens: integers of at least 0.", param=path
            )
    elif not isinstance(text, str):
        wanted = "a string or an array of tokens" if tokens else "a string"
        raise InvalidRequest(f"`{path}` must be {wanted}.", param=path)
    if not text:
        raise InvalidRequest(f"`{path}` must not be empty.", param=path)


def check_length(answer_bytes: int, instead: str) -> None:
    """Check that an answer of this length can be sent.

    Raises:
        InvalidRequest: it is too long; the message ends with `instead`, which says what to do.
    """
    if answer_bytes > MAX_ANSWER_BYTES:
        raise InvalidRequest(
            f"The answer would have more than {MAX_ANSWER_BYTES} bytes: {instead}.", param="input"
        )
