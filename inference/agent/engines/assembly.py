"""Assembles a whole answer from the chunks of a stream, as they come.

vLLM makes the objects of a whole answer at its end, all at once, and with log-probabilities these
are so many that all streams would stall meanwhile. So such an answer is requested as a stream, in
which each step costs little. So is one that must call a tool: of a call that is cut by the number
of tokens, a stream has the beginning, which vLLM leaves out of a whole answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import msgspec

from inference.operations.openai import OpenAIOperation

IDS = {"prompt_token_ids", "token_ids"}
"""Keys of ids: a chat has those of its prompt beside its choices, a completion in each."""

_ONCE = ("role", "name")
"""Fields of deltas that come whole."""

_encode = msgspec.json.Encoder().encode


class _Choice:
    """One choice as far as it came; log-probabilities are kept as pieces of JSON."""

    def __init__(self) -> None:
        self.text = ""
        self.message: dict[str, Any] = {}
        """What a chat's message has beside its text: reasoning and calls."""
        self.logprobs: dict[str, list[bytes]] = defaultdict(list)
        self.ended: dict[str, Any] = {"finish_reason": None}
        self.ids: dict[str, list[int]] = defaultdict(list)
        """Those of its tokens and of its prompt, if they are requested, by the answer's key."""

    def add(self, choice: dict[str, Any]) -> None:
        delta = dict(choice.get("delta") or {})
        self.text += choice.get("text") or delta.pop("content", None) or ""
        _extend(self.message, delta)
        for name, values in (choice.get("logprobs") or {}).items():
            if values:
                self.logprobs[name].append(_encode(values)[1:-1])
        if choice.get("finish_reason"):
            names = ("finish_reason", "stop_reason")
            self.ended = {name: choice[name] for name in names if name in choice}
        for name in IDS & choice.keys():
            self.ids[name] += choice[name]

    def whole(self, operation: OpenAIOperation[Any]) -> dict[str, Any]:
        """The choice of a whole answer."""
        choice = operation.choice(self.text)
        if self.message:
            choice["message"] |= self.message
        if "tool_calls" in self.message and not self.text:
            choice["message"]["content"] = None
        return choice | {"logprobs": self._whole_logprobs()} | self.ended | self.ids

    def _whole_logprobs(self) -> dict[str, msgspec.Raw] | None:
        return {
            name: msgspec.Raw(b"[" + b",".join(pieces) + b"]")
            for name, pieces in self.logprobs.items()
        } or None


def _extend(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta's texts to those of the message, and its calls, which are named by index."""
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault(name, [])
            for part in value:
                index = part.pop("index")
                calls += [{"function": {"arguments": ""}} for _ in range(index + 1 - len(calls))]
                _extend(calls[index]["function"], part.pop("function", {}))
                calls[index] |= {key: one for key, one in part.items() if one is not None}
        elif name in _ONCE:
            message[name] = value
        elif value:
            message[name] = message.get(name, "") + value


def whole_reason(reasons: Collection[str]) -> str:
    """The finish reason of the request as a whole: `length` if any of its choices was cut."""
    return "length" if "length" in reasons else min(reasons, default="stop")


class Assembly:
    """`add` each chunk, then `body` is the answer without the request's identity and usage."""

    def __init__(self, operation: OpenAIOperation[Any]) -> None:
        self._operation = operation
        self._choices: dict[int, _Choice] = defaultdict(_Choice)
        self._prompt: dict[str, list[int]] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        """A decoded chunk. Mutates its choices."""
        self._prompt |= {name: chunk[name] for name in IDS & chunk.keys()}
        for choice in chunk["choices"]:
            self._choices[choice["index"]].add(choice)

    def body(self) -> dict[str, Any]:
        """The answer's JSON, with parts that are encoded already."""
        choices = [
            {"index": index} | choice.whole(self._operation)
            for index, choice in sorted(self._choices.items())
        ]
        return {"object": self._operation.whole_object, "choices": choices} | self._prompt
