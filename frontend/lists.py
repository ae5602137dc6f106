"""What lists have in common: the words that filter them, and their pages.

An address names a place in a list by the last row before it: however far down it is, a page costs
the same.
"""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest

PAGE = 50
"""Rows."""
MAX_DIGITS = 18
"""Of a row's number in an address: a bigint holds them all."""

Row = TypeVar("Row", bound=Model)


def words_of(request: HttpRequest, name: str = "q") -> str:
    """What the address filters by; no text in PostgreSQL has a NUL."""
    return request.GET.get(name, "").replace("\0", "").strip()


def place_of(request: HttpRequest, name: str) -> int | None:
    """The number of the row that a page begins behind; None on the first page."""
    text = request.GET.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def page_of(found: QuerySet[Row], rows: int = PAGE) -> tuple[list[Row], Row | None]:
    """The first rows, and the last of these if others follow."""
    page = list(found[: rows + 1])
    return page[:rows], page[rows - 1] if len(page) > rows else None
