"""Assembles a whole answer from the chunks of a stream, as they come.

vLLM makes the objects of a whole answer at its end, all at once, and with log-probabilities these
are so many that all streams would stall meanwhile. So such an answer is requested as a stream, in
which each step costs little.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from inference.operations.openai import OpenAIOperation

IDS = {"prompt_token_ids", "token_ids"}
"""Keys of ids: a chat has those of its prompt beside its choices, a completion in each."""

_encode = msgspec.json.Encoder().encode


class _Choice:
    """One text and its log-probabilities, which are kept as pieces of JSON."""

    def __init__(self) -> None:
        self.text = ""
        self.logprobs: dict[str, list[bytes]] = defaultdict(list)
        self.finish_reason: str | None = None
        self.ids: dict[str, list[int]] = defaultdict(list)
        """Those of its tokens and of its prompt, if they are requested, by the answer's key."""

    def add(self, choice: dict[str, Any]) -> None:
        self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        for name, values in (choice.get("logprobs") or {}).items():
            if values:
                self.logprobs[name].append(_encode(values)[1:-1])
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        for name in IDS & choice.keys():
            self.ids[name] += choice[name]

    def whole_logprobs(self) -> dict[str, msgspec.Raw] | None:
        return {
            name: msgspec.Raw(b"[" + b",".join(pieces) + b"]")
            for name, pieces in self.logprobs.items()
        } or None


class Assembly:
    """`add` each chunk, then `body` is the answer without the request's identity and usage."""

    def __init__(self, operation: OpenAIOperation[Any]) -> None:
        self._operation = operation
        self._choices: dict[int, _Choice] = defaultdict(_Choice)
        self._prompt: dict[str, list[int]] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        """A decoded chunk."""
        self._prompt |= {name: chunk[name] for name in IDS & chunk.keys()}
        for choice in chunk["choices"]:
            self._choices[choice["index"]].add(choice)

    def body(self) -> dict[str, Any]:
        """The answer's JSON, with parts that are encoded already."""
        choices = [
            {"index": index}
            | self._operation.choice(choice.text)
            | {"logprobs": choice.whole_logprobs(), "finish_reason": choice.finish_reason}
            | choice.ids
            for index, choice in sorted(self._choices.items())
        ]
        for choice in choices:
            self._operation.conform(choice)
        return {"object": self._operation.whole_object, "choices": choices} | self._prompt
