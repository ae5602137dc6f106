"""Finds schemas that refer only to themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

ALTERNATIVES = ("anyOf", "oneOf", "allOf")
MAX_DIGITS = 9
"""Array indices in a `$ref` have fewer digits: Python refuses to convert thousands of them."""


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects in it, itself included."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            yield value
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def is_circular(root: dict[str, Any]) -> bool:
    """Whether a schema in it leads back to itself by `$ref` and ALTERNATIVES alone, so that it
    restricts no value."""
    done: set[int] = set()
    for start in objects_in(root):
        on_path: dict[int, Iterator[dict[str, Any]]] = {}
        path = [start]
        while path:
            here = path[-1]
            if id(here) in done:
                path.pop()
                continue
            if id(here) not in on_path:
                on_path[id(here)] = _same_value(here, root)
            if (following := next(on_path[id(here)], None)) is None:
                done.add(id(here))
                del on_path[id(here)]
                path.pop()
            elif id(following) in on_path:
                return True
            else:
                path.append(following)
    return False


def _same_value(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas to which this one applies the same value: its `$ref` and its alternatives."""
    if isinstance(reference := schema.get("$ref"), str):
        target = _resolved(reference, root)
        if isinstance(target, dict):
            yield target
    for name in ALTERNATIVES:
        if isinstance(several := schema.get(name), list):
            yield from (one for one in several if isinstance(one, dict))


def _resolved(reference: str, root: Any) -> Any:
    """The target of a reference within the same schema; None if there is none."""
    if reference.partition("#")[0]:
        return None
    found = root
    for step in steps_in(reference):
        found = step_into(found, step)
    return found


def steps_in(reference: str) -> list[str]:
    """The names and indices of a reference such as `#/$defs/a`."""
    steps = unquote(reference[1:]).split("/")[1:]
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]


def step_into(value: Any, step: str) -> Any:
    """The property or the item; None if there is none."""
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and len(step) < MAX_DIGITS:
        return value[int(step)] if int(step) < len(value) else None
    return None
