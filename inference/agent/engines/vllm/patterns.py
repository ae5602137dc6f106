"""Bounds the cost of following a grammar, by the patterns that constrain a request's answer.

In each step vLLM asks the grammar which tokens may come next, in the loop of the engine's core,
while all requests wait. If repetitions follow each other (`(a*)*(a*)*...`), that takes time cubic
in their number: 40 ms for a hundred, seconds for a few hundred.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from inference.errors import InvalidRequest

MAX_REPEATS = 100
"""In all patterns of a request together, counting those in literals too."""
MAX_COUNTS = 500
"""The sum of the highest counts (1000 of `{1,1000}`) in all patterns of a request. The time to
compile a schema's pattern grows with their square: 0.25 s of a core for 500, 1 s for 1,000."""
_REPEAT = re.compile(r"[*+?{]")
_COUNTS = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?+\}")
_PATTERNS = ("grammar", "pattern", "regex")
_FREE = (None, "auto", "none")
"""Values of `tool_choice` with which no call has to follow a schema. Anthropic's API has them as
types of an object."""


def check_patterns(fields: dict[str, Any]) -> None:
    """Check that the patterns that constrain an answer are within the bounds.

    Raises:
        InvalidRequest: they aren't.
    """
    names = ["response_format", "structured_outputs", "output_config"]
    if not _is_free(fields.get("tool_choice")):
        names.append("tools")
    for name in names:
        patterns = list(_patterns(fields.get(name)))
        repeats = sum(len(_REPEAT.findall(pattern)) for pattern in patterns)
        if repeats > MAX_REPEATS:
            raise InvalidRequest(
                f"`{name}` has {repeats} repetitions (`*`, `+`, `?`, `{{`) in its "
                f"patterns: it can have at most {MAX_REPEATS}.",
                param=name,
            )
        counts = sum(map(_highest_counts, patterns))
        if counts > MAX_COUNTS:
            raise InvalidRequest(
                f"The repetition counts (`{{1,9}}`) in the patterns of `{name}` add up to "
                f"{counts}: at most {MAX_COUNTS} are allowed. This limit does not apply to "
                "`maxLength`.",
                param=name,
            )


def _is_free(choice: Any) -> bool:
    kind = choice.get("type") if isinstance(choice, dict) else choice
    return kind in _FREE


def _highest_counts(pattern: str) -> int:
    """The sum of a pattern's highest counts; numbers with more than nine digits are cut."""
    found = (max(counts, key=_count) for counts in _COUNTS.findall(pattern))
    return sum(map(_count, found))


def _count(digits: str) -> int:
    return int(digits.lstrip("0")[:9] or 0)


def _patterns(given: Any) -> Iterator[str]:
    rest = [given]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            yield from (value[name] for name in _PATTERNS if isinstance(value.get(name), str))
            if isinstance(of_names := value.get("patternProperties"), dict):
                yield from of_names
            rest += value.values()
            rest.append(_schema_in(value.get("json")))


def _schema_in(text: Any) -> Any:
    """A schema given as text, which vLLM accepts too; None for other values."""
    try:
        return msgspec.json.decode(text) if isinstance(text, str) else None
    except (msgspec.DecodeError, RecursionError):
        return None
