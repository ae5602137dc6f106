"""How hard a grammar is to follow, seen from the patterns that a request holds its answer to.

vLLM asks the grammar in each step which tokens may come next, in the loop of the engine's core, and
everybody waits. Where repetitions follow each other (`(a*)*(a*)*...`) that takes time by the third
power of their number: 40 ms for a hundred, seconds for a few hundred.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from inference.errors import InvalidRequest

MAX_REPEATS = 100
"""In all patterns of a request together, those in literals counted in."""
MAX_COUNTS = 500
"""The sum of the highest counts (1000 of `{1,1000}`) in all patterns of a request. The time to make
a grammar of a schema's pattern grows by their squares: 0.25 s of a core for 500, 1 s for 1,000."""
_REPEAT = re.compile(r"[*+?{]")
_COUNTS = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?+\}")
_PATTERNS = ("grammar", "pattern", "regex")
_FREE = (None, "auto", "none")
"""Values of `tool_choice` with which no call has to follow a schema. Anthropic's API has them as
types of an object."""


def check_patterns(fields: dict[str, Any]) -> None:
    """See that the patterns in what an answer is held to are bearable.

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
                f"`{name}` has {repeats} repetitions (`*`, `+`, `?`, `{{`) in its patterns: it can "
                f"have {MAX_REPEATS}.",
                param=name,
            )
        counts = sum(map(_highest_counts, patterns))
        if counts > MAX_COUNTS:
            raise InvalidRequest(
                f"`{name}` repeats parts of its patterns up to {counts} times (`{{1,9}}`), added "
                f"up: it can be {MAX_COUNTS} times. A `maxLength` has no such bound.",
                param=name,
            )


def _is_free(choice: Any) -> bool:
    kind = choice.get("type") if isinstance(choice, dict) else choice
    return kind in _FREE


def _highest_counts(pattern: str) -> int:
    """The sum of them; what has too many digits to matter is cut."""
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
    """vLLM takes a schema as text too; what is none it refuses."""
    try:
        return msgspec.json.decode(text) if isinstance(text, str) else None
    except (msgspec.DecodeError, RecursionError):
        return None
