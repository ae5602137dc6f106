"""Derives the limits in force at a scope from the limits that were set for it. Pure functions.

A scope is a whole tenant, one key or one adapter. Its limits are given by author: `operator`,
`tenant`, and for a whole tenant also `default`, the platform's.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.interfaces.directory import Limits
from tenants.limits.kinds import KINDS, Kinds

OPERATOR, TENANT, DEFAULT = "operator", "tenant", "default"

Figures = Mapping[str, int | None]
"""The limit of each kind, by the kind's name; a missing one means no limit."""
Sets = Mapping[str, Figures]
"""The figures that each author has set."""


def least(*several: Figures, kinds: Kinds = KINDS) -> dict[str, int | None]:
    """The smallest limit of each kind; None if there is no limit."""
    return {
        name: min(
            (limit for figures in several if (limit := figures.get(name)) is not None),
            default=None,
        )
        for name in kinds
    }


def ceiling(sets: Sets, kinds: Kinds = KINDS) -> dict[str, int | None]:
    """The limits that the tenant cannot exceed: the operator's, else the platform's default."""
    operator, default = sets.get(OPERATOR, {}), sets.get(DEFAULT, {})
    return {
        name: default.get(name) if operator.get(name) is None else operator.get(name)
        for name in kinds
    }


def beyond(own: Figures, ceiling: Figures) -> dict[str, int]:
    """The ceilings that the tenant's own limits exceed, by kind."""
    return {
        name: highest
        for name, limit in own.items()
        if limit is not None and (highest := ceiling.get(name)) is not None and limit > highest
    }


def in_force(sets: Sets, kinds: Kinds = KINDS) -> dict[str, int | None]:
    """The lesser of the ceiling and the tenant's own limit, for each kind."""
    return least(ceiling(sets, kinds), sets.get(TENANT, {}), kinds=kinds)


def limits(
    scope_id: str, shown: str, sets: Sets | None, kinds: Kinds = KINDS
) -> tuple[Limits, ...]:
    """The limits that the token path enforces; empty if nothing limits the scope."""
    figures = in_force(sets, kinds) if sets else {}
    values = {name: limit for name, limit in figures.items() if limit is not None}
    return (Limits(scope_id, shown, values),) if values else ()
