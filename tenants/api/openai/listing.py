"""Pages of lists under `/v1/` as in OpenAI's API: `after` is the last id of the page before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

from inference.errors import InvalidRequest
from tenants.api.openai.views import Query

M = TypeVar("M", bound=Model)

PARAMETERS = ("after", "limit", "order")


def page(
    found: QuerySet[M],
    query: Query,
    shown: Callable[[M], dict[str, Any]],
    *,
    most: int,
    order: str = "desc",
) -> dict[str, Any]:
    """The page of these rows that the query selects, at most `most` of them. Rows have the columns
    `created_at` and `id`; the newest comes first unless the query's `order` is `asc`; the argument
    is its default.

    Raises:
        InvalidRequest: a parameter is invalid.
    """
    rising = (query.choices("order", ("asc", "desc")) or [order]) == ["asc"]
    found = found.order_by(*(("created_at", "pk") if rising else ("-created_at", "-pk")))
    if (after := query.word("after")) is not None:
        last: Any = found.filter(pk=after).first()
        if last is None:
            raise InvalidRequest("`after` is not the id of an object in this list.", param="after")
        beyond = "gt" if rising else "lt"
        found = found.filter(
            Q(**{f"created_at__{beyond}": last.created_at})
            | Q(**{"created_at": last.created_at, f"pk__{beyond}": last.pk})
        )
    limit = query.integer("limit", 1, most) or min(most, 20)
    rows = [*found[: limit + 1]]
    data = [shown(row) for row in rows[:limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(rows) > limit,
    }
