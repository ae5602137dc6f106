"""What a model answered, read from what its engine sent: text, chunks, or a whole response."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class AnsweredChoice:
    """One choice of an answer. `calls` has the tool calls by their place, each with `name` and
    `arguments`."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)

    def add(self, choice: Mapping[str, Any]) -> None:
        """Add a choice of a chunk, or of a whole response."""
        message = choice.get("delta") or choice.get("message") or {}
        self.reasoning += message.get("reasoning") or ""
        self.text += message.get("content") or choice.get("text") or ""
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        for place, call in enumerate(message.get("tool_calls") or ()):
            known = self.calls.setdefault(call.get("index", place), {})
            for name, value in (call.get("function") or {}).items():
                known[name] = known.get(name, "") + (value or "")


def choices_of(parts: Iterable[str | bytes]) -> list[AnsweredChoice]:
    """The choices in these chunks, or in one whole response, by their index.

    Raises:
        ValueError, TypeError, AttributeError: a part is no answer with choices.
    """
    found: dict[int, AnsweredChoice] = {}
    for part in parts:
        for place, choice in enumerate(json.loads(part).get("choices", ())):
            found.setdefault(choice.get("index", place), AnsweredChoice()).add(choice)
    return [choice for _, choice in sorted(found.items())]
