"""Which limits are in force at a scope, of those that were set for it. Pure.

A scope is a tenant as a whole, one key or one adapter. What was set for it is told by author:
`operator`, `tenant`, and for a tenant as a whole also `default`, the platform's.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.grants import Limits

FIELDS = (
    "requests_per_minute",
    "tokens_per_minute",
    "prompt_tokens_per_minute",
    "output_tokens_per_minute",
    "concurrent_streams",
    "tokens_per_day",
    "tokens_per_month",
    "cost_per_day",
    "cost_per_month",
)
"""As in `inference.grants.Limits`."""
OPERATOR, TENANT, DEFAULT = "operator", "tenant", "default"

Figures = Mapping[str, int | None]
"""The limit of each field; one that is missing is none."""
Sets = Mapping[str, Figures]
"""The figures that each author set."""


def least(*several: Figures) -> dict[str, int | None]:
    """The smallest limit of each field; None where there is none."""
    return {
        field: min(
            (limit for figures in several if (limit := figures.get(field)) is not None),
            default=None,
        )
        for field in FIELDS
    }


def ceiling(sets: Sets) -> dict[str, int | None]:
    """What the tenant cannot go beyond: the operator's, else the platform's default."""
    operator, default = sets.get(OPERATOR, {}), sets.get(DEFAULT, {})
    return {
        field: default.get(field) if operator.get(field) is None else operator.get(field)
        for field in FIELDS
    }


def beyond(own: Figures, ceiling: Figures) -> dict[str, int]:
    """The ceiling of each of the tenant's own limits that is above it."""
    return {
        field: highest
        for field, limit in own.items()
        if limit is not None and (highest := ceiling.get(field)) is not None and limit > highest
    }


def in_force(sets: Sets) -> dict[str, int | None]:
    """The lesser of the ceiling and the tenant's own."""
    return least(ceiling(sets), sets.get(TENANT, {}))


def limits(counters: str, shown: str, sets: Sets | None) -> tuple[Limits, ...]:
    """What the token path has to hold; empty where nothing limits the scope."""
    figures = in_force(sets) if sets else {}
    if all(limit is None for limit in figures.values()):
        return ()
    return (Limits(counters, shown, **figures),)
