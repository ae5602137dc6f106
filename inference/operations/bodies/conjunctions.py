"""Which schemas of a document apply to the same value, and what types and literals they leave.

A *part* is one schema with its JSON pointer; a *conjunction* is a tuple of parts that all apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from inference.operations.bodies.keywords import (
    REFUSED,
    TYPES,
    UnsupportedSchema,
    canonical,
    check_literal,
    constrains,
)
from inference.operations.bodies.references import step_into, steps_in

MAX_WORK = 20_000
"""Most steps to rewrite one schema, about as many as the parts of its result: 0.1 s of a core.
Without it, `allOf` of many `anyOf` would have all combinations."""
CHARS_PER_STEP = 16
"""Text costs one step for so many characters, because a result may repeat it."""

_ANYWHERE = ("$dynamicRef", "$recursiveRef", "if", "not")
"""Keywords in REFUSED that are about values of all types."""


class SchemaPart(NamedTuple):
    """A schema and where it is."""

    at: str
    schema: Mapping[str, Any]

    def get(self, keyword: str, kind: type[Any]) -> Any:
        """The keyword's value, empty if it is missing.

        Raises:
            UnsupportedSchema: it has another type.
        """
        value = self.schema.get(keyword, kind())
        if not isinstance(value, kind):
            name = {"dict": "an object", "list": "an array", "str": "a string"}[kind.__name__]
            raise UnsupportedSchema(f"{self.at}/{keyword}", f"must be {name}")
        return value

    def inner(self, keyword: str, key: str | int = "") -> Given:
        """The schema in the keyword's value, or in its entry `key`."""
        value = self.schema[keyword]
        if key == "":
            return f"{self.at}/{keyword}", value
        return f"{self.at}/{keyword}/{step_of(str(key))}", value[key]


Parts = tuple[SchemaPart, ...]
Given = tuple[str, Any]
"""What should be a schema, and where it is."""


def step_of(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def refuse(part: SchemaPart, keyword: str) -> UnsupportedSchema:
    """The error for a keyword in REFUSED."""
    return UnsupportedSchema(f"{part.at}/{keyword}", f"is not supported: {REFUSED[keyword]}")


class SchemaDocument:
    """One root schema, and the steps that its rewriting may still take."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._left = MAX_WORK
        self._literals: dict[str, dict[str, Any]] = {}

    def spend(self, steps: int, at: str) -> None:
        """Count steps.

        Raises:
            UnsupportedSchema: they are too many.
        """
        self._left -= steps
        if self._left < 0:
            raise UnsupportedSchema(at, "makes the schema too complex: simplify or split it")

    def spend_text(self, text: str, at: str) -> None:
        """As `spend`, for text that the result repeats."""
        self.spend(1 + len(text) // CHARS_PER_STEP, at)

    def conjunction(self, given: Iterable[Given], known: Parts = ()) -> tuple[Parts, bool] | None:
        """The parts that `given` adds to the known ones, with all that `$ref` and `allOf` add, and
        whether there was a `$ref`; None if they allow no value.

        Raises:
            UnsupportedSchema: something in them is no schema or is not supported.
        """
        seen, parts, refers = {part.at for part in known}, list(known), False
        rest = list(given)[::-1]
        self.spend(len(known), "")
        while rest:
            at, schema = rest.pop()
            self.spend(1, at)
            if schema is False:
                return None
            if schema is True or at in seen:
                continue
            if not isinstance(schema, dict):
                raise UnsupportedSchema(at, "must be a schema, which is an object or a boolean")
            part = SchemaPart(at, schema)
            if _is_never(part):
                return None
            seen.add(at)
            parts.append(part)
            rest += [part.inner("allOf", i) for i in range(len(part.get("allOf", list)))][::-1]
            if "$ref" in schema:
                refers = True
                rest.append(self._target(part))
        return tuple(parts), refers

    def _target(self, part: SchemaPart) -> Given:
        """The schema to which a `$ref` refers, with a pointer that is the same for all ways to
        write the reference."""
        reference, at = part.get("$ref", str), f"{part.at}/$ref"
        self.spend_text(reference, at)
        if reference != "#" and not reference.startswith("#/"):
            raise UnsupportedSchema(
                at, "must refer to a part of the same schema, as `#/$defs/name` does"
            )
        found, pointer = self.root, ""
        for step in steps_in(reference):
            self.spend(1, at)
            if pointer and isinstance(found, dict) and isinstance(found.get("$id"), str):
                raise _nested_id(pointer)
            found = step_into(found, step)
            pointer += f"/{step_of(step)}"
        if found is None:
            raise UnsupportedSchema(at, "refers to nothing")
        return pointer, found

    def literals(self, parts: Parts) -> dict[str, Any] | None:
        """The values that `enum` and `const` leave, by their canonical texts; None without any.

        Raises:
            UnsupportedSchema: one of them can't be enforced.
        """
        found: dict[str, Any] | None = None
        for part in parts:
            for keyword in ("enum", "const"):
                if keyword in part.schema:
                    own = self._own_literals(part, keyword)
                    both = own if found is None else {k: found[k] for k in found if k in own}
                    self.spend(len(own), part.at)
                    found = both
        return found

    def _own_literals(self, part: SchemaPart, keyword: str) -> dict[str, Any]:
        at = f"{part.at}/{keyword}"
        if at not in self._literals:
            values = part.get("enum", list) if keyword == "enum" else [part.schema["const"]]
            check_literal(values, at)
            self._literals[at] = {canonical(value): value for value in values}
        return self._literals[at]


def _is_never(part: SchemaPart) -> bool:
    """Whether the part allows no value, by keywords that are about all values.

    Raises:
        UnsupportedSchema: one of these keywords is not supported.
    """
    if part.at and isinstance(part.schema.get("$id"), str):
        raise _nested_id(part.at)
    denied = part.schema.get("not")
    if denied is True or denied == {}:
        return True
    for keyword in _ANYWHERE:
        if constrains(part.schema, keyword):
            raise refuse(part, keyword)
    return False


def _nested_id(at: str) -> UnsupportedSchema:
    return UnsupportedSchema(f"{at}/$id", "is supported only at the root of a schema")


def types_of(parts: Parts) -> set[str] | None:
    """The types that `type` leaves, `integer` only without `number`; None if there is no `type`.

    Raises:
        UnsupportedSchema: a type is unknown.
    """
    found: set[str] | None = None
    for part in parts:
        if "type" in part.schema:
            own = _own_types(part)
            found = own if found is None else found & own
    return found - {"integer"} if found and "number" in found else found


def _own_types(part: SchemaPart) -> set[str]:
    given = part.schema["type"]
    names = given if isinstance(given, list) else [given]
    for name in names:
        if name not in TYPES and name != "integer":
            raise UnsupportedSchema(f"{part.at}/type", f"`{name}` is not a type")
    return {*names, "integer"} if "number" in names else set(names)
