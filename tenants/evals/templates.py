"""Texts with places for a row's values: `{{ item.question }}`, `{{ sample.output_text }}`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from inference.errors import InvalidRequest

PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
PATH = re.compile(r"(item|sample)(\.[^.\s]+)*")
MAX_TEXT = 1 << 20
"""Characters of a text with its values; a value can be named many times."""


class TemplateFault(Exception):
    """A row lacks a value, or the text would be too long; the message says so."""


def check(text: str) -> None:
    """Raises InvalidRequest if a place names neither `item` nor `sample`."""
    for place in PLACE.findall(text):
        if not PATH.fullmatch(place):
            raise InvalidRequest(
                f"The template names {place[:80]!r}: a name begins with `item.` or `sample.`."
            )


def rendered(text: str, values: Mapping[str, Any]) -> str:
    """The text with the values; what is not a string is written as JSON.

    Raises:
        TemplateFault: a value is missing, or the text is longer than MAX_TEXT.
    """
    parts, size, end = list[str](), 0, 0
    for place in PLACE.finditer(text):
        parts += text[end : place.start()], _written(looked_up(place[1], values))
        end = place.end()
        size += len(parts[-1]) + len(parts[-2])
        if size > MAX_TEXT:
            raise TemplateFault(f"A text has more than {MAX_TEXT} characters.")
    return "".join((*parts, text[end:]))


def looked_up(path: str, values: Mapping[str, Any]) -> Any:
    """The value at a path such as `item.answers.0.text`.

    Raises:
        TemplateFault: there is none.
    """
    found: Any = values
    for part in path.split("."):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part[:9]) < len(found):
            found = found[int(part[:9])]
        else:
            raise TemplateFault(f"There is no `{path[:80]}`.")
    return found


def _written(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
