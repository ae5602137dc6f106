"""What becomes of each keyword of JSON Schema, of 2020-12 and draft 7, and the values of keywords.

| keyword | becomes |
| --- | --- |
| `type`, `enum`, `const`, `$ref`, `$defs`, `definitions`, `anyOf` | enforced |
| `properties`, `required`, `additionalProperties`, `patternProperties`, `propertyNames`,
  `minProperties`, `maxProperties` | enforced, names only as far as they can't repeat |
| `items`, `prefixItems`, `additionalItems`, `minItems`, `maxItems` | enforced |
| `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum` | enforced |
| `minLength`, `maxLength`, `pattern`, `format` | enforced; `pattern` as in `expressions` |
| `allOf`, and whatever stands beside `$ref` or `anyOf` | merged into one schema |
| `oneOf` | `anyOf`, if its schemas exclude each other |
| `unevaluatedProperties`, `unevaluatedItems` | `additionalProperties` and `items`, if alone |
| REFUSED | refused |
| all others (`title`, `default`, `x-...`) | ignored, as the specification says |
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

REFUSED: Mapping[str, str] = {
    "$dynamicRef": "use `$ref`",
    "$recursiveRef": "use `$ref`",
    "contains": "describe the items with `items` or `prefixItems`",
    "dependencies": "describe the cases with `anyOf`",
    "dependentRequired": "describe the cases with `anyOf`",
    "dependentSchemas": "describe the cases with `anyOf`",
    "if": "describe the cases with `anyOf`",
    "multipleOf": "only 1 is; check the number in the answer",
    "not": "describe what is allowed",
    "uniqueItems": "check the items of the answer",
}
"""Keywords that no grammar enforces, with what to do instead."""

NO_EFFECT: Mapping[str, Any] = {
    "dependencies": {},
    "dependentRequired": {},
    "dependentSchemas": {},
    "minItems": 0,
    "minLength": 0,
    "minProperties": 0,
    "not": False,
    "patternProperties": {},
    "required": [],
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
    "uniqueItems": False,
}
"""Values with which a keyword allows everything."""

TYPES = ("null", "boolean", "number", "string", "array", "object")
"""Kinds of values that exclude each other; `integer` is a `number`."""

_OF_TYPE = {
    "number": "exclusiveMaximum exclusiveMinimum maximum minimum multipleOf",
    "string": "format maxLength minLength pattern",
    "array": "additionalItems contains items maxItems minItems prefixItems unevaluatedItems "
    "uniqueItems",
    "object": "additionalProperties dependencies dependentRequired dependentSchemas maxProperties "
    "minProperties patternProperties properties propertyNames required unevaluatedProperties",
}
TYPE_OF: Mapping[str, str] = {
    keyword: type_ for type_, keywords in _OF_TYPE.items() for keyword in keywords.split()
}
"""The type of values that a keyword is about; it allows all values of other types."""

_DATE = (
    r"[1-9]\d{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]\d|\d)"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
_HEX = "[0-9a-f]"
FORMATS: Mapping[str, str | None] = {
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": None,
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})+",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,4}}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": None,
    "json-pointer": None,
    "relative-json-pointer": None,
    "time": _TIME,
    "uri": None,
    "uri-reference": None,
    "uri-template": None,
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
}
"""Formats as patterns, or None for xgrammar's own. Its dates have a 30th of February, and its IPv4
addresses leading zeros. No date here is the 29th of February, because not all years have it."""

MAX_INTEGER = 10**18
MAX_NUMBER = 10**15
"""NumberBounds are at most as large, because xgrammar calculates with 64 bits."""
MAX_FRACTION = 10**9
"""Larger bounds are whole numbers: a float has no six decimal places beyond."""
_STEP = Decimal("0.000001")
"""Of numbers within bounds, xgrammar writes six decimal places."""


class UnsupportedSchema(Exception):
    """A schema that can't be enforced; `at` is the JSON pointer of the part that can't."""

    def __init__(self, at: str, reason: str) -> None:
        super().__init__(f"`{at or '/'}` {reason}")
        self.at, self.reason = at, reason


def constrains(schema: Mapping[str, Any], keyword: str) -> bool:
    """Whether the keyword is there and its value may forbid something."""
    if keyword not in schema:
        return False
    value = schema[keyword]
    if keyword == "if":
        return "then" in schema or "else" in schema
    return keyword not in NO_EFFECT or type(value) is not type(same := NO_EFFECT[keyword]) or (
        value != same
    )  # fmt: skip


def is_refused(schema: Mapping[str, Any], keyword: str) -> bool:
    """Whether a keyword in REFUSED is there, with a value that can't be enforced."""
    if keyword == "multipleOf" and keyword in schema:
        return not is_number(schema[keyword]) or schema[keyword] != 1
    return constrains(schema, keyword)


def is_number(value: Any) -> bool:
    """Whether it is a number of JSON that isn't infinite."""
    return type(value) is int or (type(value) is float and math.isfinite(value))


def type_of(value: Any) -> str:
    """The type in TYPES of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def is_integer(value: Any) -> bool:
    """Whether it is of the type `integer`, as 1 and 1.0 are."""
    return is_number(value) and value == int(value)


def canonical(value: Any) -> str:
    """A text that two values share if they are equal in JSON, as 1 and 1.0 are but 1 and true are
    not."""
    return json.dumps(_plain_numbers(value), sort_keys=True)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain_numbers(one) for name, one in value.items()}
    return int(value) if isinstance(value, float) and is_integer(value) else value


def check_literal(value: Any, at: str) -> None:
    """Check that xgrammar writes the value exactly.

    Raises:
        UnsupportedSchema: it doesn't.
    """
    for one in _scalars(value):
        if isinstance(one, str):
            check_text(one, at)
        elif type(one) is int and abs(one) >= 2**63:
            raise UnsupportedSchema(at, "has an integer that does not fit into 64 bits")
        elif type(one) is float and not math.isfinite(one):
            raise UnsupportedSchema(at, "has a number that is not finite")


def _scalars(value: Any) -> Iterator[Any]:
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            rest += value.values()
            rest += value
        else:
            yield value


def check_text(text: str, at: str) -> None:
    """Check that the text is valid Unicode.

    Raises:
        UnsupportedSchema: it has a half of a surrogate pair.
    """
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise UnsupportedSchema(at, "has a lone surrogate")


class NumberBounds:
    """The numbers or counts that several keywords allow together."""

    def __init__(self) -> None:
        self.low = Decimal("-Infinity")
        self.high = Decimal("Infinity")
        self._open_low = self._open_high = False
        self._at_low = self._at_high = ""

    def add(self, keyword: str, value: Any, at: str) -> None:
        """Add `minimum`, `exclusiveMaximum` and so on.

        Raises:
            UnsupportedSchema: the value is no number.
        """
        if not is_number(value):
            raise UnsupportedSchema(at, "must be a number")
        bound, is_open = Decimal(value), keyword.startswith("exclusive")
        if isinstance(value, float):
            bound = Decimal(repr(value))
        if keyword.endswith("inimum"):
            if (bound, is_open) > (self.low, self._open_low):
                self.low, self._open_low, self._at_low = bound, is_open, at
        elif (-bound, is_open) > (-self.high, self._open_high):
            self.high, self._open_high, self._at_high = bound, is_open, at

    def allow(self, value: Any) -> bool:
        """Whether they allow this number."""
        number = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
        above = self.low < number or (self.low == number and not self._open_low)
        below = number < self.high or (self.high == number and not self._open_high)
        return above and below

    def inclusive(self, *, whole: bool) -> dict[str, int | float] | None:
        """`minimum` and `maximum` for xgrammar, None if no number that it writes is allowed.

        Raises:
            UnsupportedSchema: they are too large.
        """
        most = MAX_INTEGER if whole else MAX_NUMBER
        for bound, at in ((self.low, self._at_low), (-self.high, self._at_high)):
            if bound > most:
                raise UnsupportedSchema(at, f"must be within ±{most}")
        found: dict[str, Decimal] = {}
        if self._at_low:
            found["minimum"] = _inward(self.low, most, whole=whole, is_open=self._open_low)
        if self._at_high:
            found["maximum"] = -_inward(-self.high, most, whole=whole, is_open=self._open_high)
        if len(found) == 2 and found["minimum"] > found["maximum"]:
            return None
        return {
            name: int(bound) if bound == bound.to_integral_value() else float(bound)
            for name, bound in found.items()
        }


def _inward(low: Decimal, most: int, *, whole: bool, is_open: bool) -> Decimal:
    """The smallest number on xgrammar's grid that a lower bound allows."""
    if low < -most:
        return Decimal(-most)
    step = Decimal(1) if whole or abs(low) > MAX_FRACTION else _STEP
    rounded = low.quantize(step, ROUND_FLOOR if is_open else ROUND_CEILING)
    return rounded + step if is_open else rounded


def count(value: Any, at: str) -> int:
    """The value of `minLength`, `maxItems` and so on.

    Raises:
        UnsupportedSchema: it is no whole number of at least 0.
    """
    if not is_integer(value) or value < 0:
        raise UnsupportedSchema(at, "must be an integer of at least 0")
    return int(value)
