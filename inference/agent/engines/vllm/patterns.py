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
_REPEAT = re.compile(r"[*+?{]")
_PATTERNS = ("grammar", "pattern", "regex")
_FREE = (None, "auto", "none")
"""Values of `tool_choice` with which no call has to follow a schema."""


def check_patterns(fields: dict[str, Any]) -> None:
    """See that the patterns in what an answer is held to are bearable.

    Raises:
        InvalidRequest: they aren't.
    """
    names = ["response_format", "structured_outputs"]
    if fields.get("tool_choice") not in _FREE:
        names.append("tools")
    for name in names:
        repeats = sum(len(_REPEAT.findall(pattern)) for pattern in _patterns(fields.get(name)))
        if repeats > MAX_REPEATS:
            raise InvalidRequest(
                f"`{name}` has {repeats} repetitions (`*`, `+`, `?`, `{{`) in its patterns: it can "
                f"have {MAX_REPEATS}.",
                param=name,
            )


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
