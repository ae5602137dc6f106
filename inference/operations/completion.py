"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.operations.bodies.beginnings import MAX_CHARS, Beginnings
from inference.operations.bodies.fields import OF_ANSWERS, SAMPLING
from inference.operations.estimate import MAX_TOKENS
from inference.operations.openai import ARRAY, NULL, Fields, OpenAIOperation, top_of
from inference.operations.operation import PlainPrompt

MAX_ASKED_BYTES = 1 << 16
"""By a longer prompt no route chooses: it would have to be decoded for that alone."""
COMPLETION_TOKENS = 16
"""Most tokens that a completion without `max_tokens` generates; the default of OpenAI and vLLM."""


class _CompletionFields(Fields):
    prompt: msgspec.Raw = NULL
    logprobs: msgspec.Raw = NULL


class CompletionOperation(OpenAIOperation[_CompletionFields]):
    """Continues prompts, which are text or tokens."""

    name = "completion"
    path = "/v1/completions"
    id_prefix = "cmpl"
    span_name = "text_completion"
    whole_object = chunk_object = "text_completion"
    decoder = msgspec.json.Decoder(_CompletionFields)
    accepted = SAMPLING | OF_ANSWERS | {"add_special_tokens", "prompt", "suffix"}
    max_numbers = MAX_TOKENS

    def check_prompt(self, fields: _CompletionFields) -> None:
        """There must be a prompt; its shape is checked by the engine."""
        if bytes(fields.prompt) == b"null":
            raise InvalidRequest("You must provide a prompt parameter.", param="prompt")

    def wanted_tokens(self, fields: _CompletionFields) -> int | None:
        """`max_tokens`, else COMPLETION_TOKENS."""
        return COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens

    def prompts(self, fields: _CompletionFields) -> tuple[int, int]:
        """A list of texts or of token lists is several prompts. Correct for every prompt that an
        engine accepts."""
        array = ARRAY.match(fields.prompt)
        if array is None:
            return 1, 0
        if array[1] == b'"':
            return len(msgspec.json.decode(array.string, type=list[msgspec.Raw])), 0
        parts = bytes(array.string)
        return max(1, parts.count(b"[") - 1), parts.count(b",") + 1

    def beginnings(self, fields: _CompletionFields) -> Beginnings:
        """The beginnings of one text or list of tokens, as written in JSON, without its quotes or
        brackets."""
        beginnings = Beginnings()
        array = ARRAY.match(fields.prompt)
        if array is None or array[1] not in (b'"', b"["):
            text = memoryview(fields.prompt)[1:-1][:MAX_CHARS]
            beginnings.add(str(text, "latin-1"))
            beginnings.mark()
            if len(memoryview(fields.prompt)) <= MAX_ASKED_BYTES:
                beginnings.ask(_texts(fields.prompt))
        return beginnings

    def logprobs(self, fields: _CompletionFields) -> int:
        """The token itself and `logprobs` others."""
        return 0 if bytes(fields.logprobs).strip() == b"null" else 1 + top_of(fields.logprobs)

    def opening(self) -> None:
        """None: a stream begins with its first text."""
        return

    def delta(self, text: str) -> dict[str, Any]:
        """More text."""
        return {"text": text}

    def end(self) -> dict[str, Any]:
        """An empty text."""
        return {"text": ""}

    def choice(self, text: str) -> dict[str, Any]:
        """The text."""
        return {"text": text}

    def max_tokens(self, body: dict[str, Any]) -> int | None:
        """`max_tokens`, else COMPLETION_TOKENS."""
        wanted = super().max_tokens(body)
        return COMPLETION_TOKENS if wanted is None else wanted

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Checks that the prompt consists of texts or tokens."""
        kept = super().allowed(body)
        _check_prompt(body.get("prompt"))
        if kept.get("suffix") == "":
            del kept["suffix"]
        return kept

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """The text, or tokens as numbers; the answer repeats the text."""
        prompt = fields["prompt"]
        if isinstance(prompt, str):
            return PlainPrompt(prompt, prompt)
        if _are_tokens(prompt):
            # The synthetic engine counts four characters as a token.
            return PlainPrompt("".join(f"{token:>4}" for token in prompt), f"{len(prompt)} tokens")
        raise InvalidRequest(
            "The synthetic engine supports only one prompt per request.", param="prompt"
        )


def _texts(prompt: msgspec.Raw) -> list[str]:
    """The prompt if it is one text; one with half of a character is refused by the engine."""
    try:
        return [msgspec.json.decode(prompt, type=str)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def _check_prompt(prompt: Any) -> None:
    if prompt is None:
        raise InvalidRequest("You must provide a prompt parameter.", param="prompt")
    if not isinstance(prompt, str | list):
        raise InvalidRequest("`prompt` must be a string or an array.", param="prompt")
    if not prompt:
        raise InvalidRequest("`prompt` must not be empty.", param="prompt")
    if isinstance(prompt, list) and not (_are_texts(prompt) or _are_tokens(prompt)):
        if not all(isinstance(part, list) and _are_tokens(part) for part in prompt):
            raise InvalidRequest(
                "`prompt` must be an array of strings, of tokens (integers of at least 0) "
                "or of arrays of tokens.",
                param="prompt",
            )


def _are_texts(parts: list[Any]) -> bool:
    return all(isinstance(part, str) for part in parts)


def _are_tokens(parts: list[Any]) -> bool:
    return all(type(part) is int and part >= 0 for part in parts)


COMPLETION = CompletionOperation()
