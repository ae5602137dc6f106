"""Filtering and keyset pagination, shared by all lists.

A URL names a position in a list by the last row before it, so every page costs the same, however
far down it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse

PAGE = 50
"""Rows per page."""
MAX_DIGITS = 18
"""Digits of a row id in a URL; a bigint holds every such number."""

Row = TypeVar("Row", bound=Model)
Rows = TypeVar("Rows", bound=QuerySet[Any])


@lru_cache(maxsize=10_000)
def address(page: str, *of: str) -> str:
    """As Django's `reverse`, for lists with hundreds of links."""
    return reverse(page, args=of)


def words_of(request: HttpRequest, name: str = "q") -> str:
    """The search words in the URL; NUL characters are dropped, as PostgreSQL text has none."""
    return request.GET.get(name, "").replace("\0", "").strip()


def id_in_url(request: HttpRequest, name: str) -> int | None:
    """The id of the row after which a page begins; None on the first page."""
    text = request.GET.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def older_page_of(
    request: HttpRequest, found: QuerySet[Row], rows: int = PAGE, *, by: str = "pk"
) -> tuple[list[Row], Row | None]:
    """As `page_of`, in a list sorted by this number, falling: the rows below the one that `before`
    in the URL names."""
    if (before := id_in_url(request, "before")) is not None:
        found = found.filter(**{f"{by}__lt": before})
    return page_of(found, rows)


def older_than(found: Rows, row: Model, time: str) -> Rows:
    """The rows below this one in a list sorted by this time and then by id, both falling."""
    at = getattr(row, time)
    return found.filter(Q(**{f"{time}__lt": at}) | Q(**{time: at, "pk__lt": row.pk}))


def page_of(found: QuerySet[Row], rows: int = PAGE) -> tuple[list[Row], Row | None]:
    """The first `rows` rows, and the last of them if more follow."""
    page = list(found[: rows + 1])
    return page[:rows], page[rows - 1] if len(page) > rows else None
