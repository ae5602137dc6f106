"""Random requests of all that an engine takes, and of some that it must refuse; made of a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.labs.fuzz.kinds import CONSTRAINTS, FREE, KINDS

SPOILED = 0.15
"""Share of the requests that have a wrong value."""


@dataclass(frozen=True)
class Fuzz:
    """One request of the operation `kind`. `adapter` is a number, or None for the base model; it
    leaves after so many tokens if that is not None. Requests of one `salt` share a prefix cache."""

    kind: str
    body: dict[str, Any]
    adapter: int | None
    salt: str
    leaves_after: int | None


def made(seed: int, number: int, adapters: int, operations: Sequence[str]) -> Fuzz:
    """The request of that number for an engine with these operations; the same for the same seed,
    whatever else was made."""
    draw = random.Random(f"{seed}-{number}")
    kinds = [name for name in KINDS if name in operations]
    (name,) = draw.choices(kinds, [KINDS[name].weight for name in kinds])
    return Fuzz(
        name,
        {"model": "tiny"} | _body(draw, name),
        draw.choice((None, *range(adapters))),
        draw.choice(("shared", f"own-{number}")),
        draw.choice((*[None] * 6, 0, 1, 5)),
    )


def _body(draw: random.Random, kind: str) -> dict[str, Any]:
    fields = KINDS[kind].fields
    body = KINDS[kind].prompt(draw)
    for name, field in fields.items():
        if draw.random() < field.share and (not field.beside or body.get(field.beside)):
            body[name] = field.right(draw)
    if body.get("tool_choice") not in FREE:
        body = {name: value for name, value in body.items() if name not in CONSTRAINTS}
    wrong = [name for name, field in fields.items() if field.wrong]
    if wrong and draw.random() < SPOILED:
        name = draw.choice(wrong)
        body[name] = draw.choice(fields[name].wrong)
    return body
