"""Decides whether the schemas of a `oneOf` exclude each other, so that `anyOf` means the same.

Two exclude each other if they allow different types or literals, if they are objects that a common
property with different literals tells apart (then that property becomes required), or if one
requires a property that the other forbids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from inference.operations.bodies.conjunctions import (
    Given,
    Parts,
    SchemaDocument,
    SchemaPart,
    types_of,
)
from inference.operations.bodies.keywords import TYPES, UnsupportedSchema, type_of

ADVICE = (
    "has schemas that may allow the same value: use `anyOf`, or give their objects a required "
    "property with a different `const` in each"
)


class _Profile(NamedTuple):
    """What a schema is known to allow at most; `tags` are the literals of its properties."""

    types: set[str]
    literals: set[str] | None
    tags: dict[str, set[str]]
    required: set[str]
    only: set[str] | None
    """The only names of properties, if it forbids others."""


def excluding_properties(
    document: SchemaDocument, part: SchemaPart, keyword: str
) -> list[list[str]]:
    """For each schema of a `oneOf` the properties that must be required for it to exclude the
    others. For an `anyOf`: none.

    Raises:
        UnsupportedSchema: two of them may allow the same value.
    """
    count = len(part.schema[keyword])
    required: list[list[str]] = [[] for _ in range(count)]
    if keyword == "anyOf":
        return required
    document.spend(count * count // 8, part.at)
    profiles = [_profile(document, part.inner(keyword, i)) for i in range(count)]
    for i, j in combinations(range(count), 2):
        first, second = profiles[i], profiles[j]
        if first is None or second is None:
            continue
        tag = _tag(first, second)
        if tag is None:
            raise UnsupportedSchema(f"{part.at}/{keyword}", ADVICE)
        for names in (required[i], required[j]):
            if tag and tag not in names:
                names.append(tag)
    return required


def _tag(first: _Profile, second: _Profile) -> str | None:
    """The property that tells them apart, empty if none is needed, None if they may overlap."""
    common = first.types & second.types
    if not common:
        return ""
    if first.literals is not None and second.literals is not None:
        return None if first.literals & second.literals else ""
    if common != {"object"}:
        return None
    if any(
        one.only is not None and other.required - one.only
        for one, other in ((first, second), (second, first))
    ):
        return ""
    tags = (
        name for name, values in first.tags.items() if not values & second.tags.get(name, values)
    )
    return next(tags, None)


def _profile(document: SchemaDocument, given: Given) -> _Profile | None:
    """None for a schema that allows no value."""
    found = document.conjunction([given])
    if found is None:
        return None
    parts, _ = found
    types = types_of(parts)
    allowed = set(TYPES) if types is None else {_plain(name) for name in types}
    for part, keyword in alternatives_in(parts):
        allowed &= _types_in(document, part, keyword)
    literals = document.literals(parts)
    if literals is not None:
        allowed &= {type_of(value) for value in literals.values()}
    return _Profile(
        allowed,
        None if literals is None else set(literals),
        dict(_tags(document, parts)),
        {name for part in parts for name in part.get("required", list)},
        _only(parts),
    )


def alternatives_in(parts: Parts) -> Iterator[tuple[SchemaPart, str]]:
    """The parts with `anyOf` or `oneOf`, and that keyword.

    Raises:
        UnsupportedSchema: its value is no list, or is empty.
    """
    for part in parts:
        for keyword in ("anyOf", "oneOf"):
            if keyword in part.schema:
                if not part.get(keyword, list):
                    raise UnsupportedSchema(f"{part.at}/{keyword}", "must have at least one schema")
                yield part, keyword


def _types_in(document: SchemaDocument, part: SchemaPart, keyword: str) -> set[str]:
    """The types that the schemas of an `anyOf` or `oneOf` allow."""
    found: set[str] = set()
    for i in range(len(part.schema[keyword])):
        conjunction = document.conjunction([part.inner(keyword, i)])
        if conjunction is not None:
            types = types_of(conjunction[0])
            found |= set(TYPES) if types is None else {_plain(name) for name in types}
    return found


def _plain(name: str) -> str:
    return "number" if name == "integer" else name


def _tags(document: SchemaDocument, parts: Parts) -> Iterator[tuple[str, set[str]]]:
    for part in parts:
        for name in part.get("properties", dict):
            found = document.conjunction([part.inner("properties", name)])
            literals: Any = None if found is None else document.literals(found[0])
            if literals is not None:
                yield name, set(literals)


def _only(parts: Parts) -> set[str] | None:
    for part in parts:
        if part.schema.get("additionalProperties") is False and not part.schema.get(
            "patternProperties"
        ):
            return set(part.get("properties", dict))
    return None
