"""Filtering, sorting and keyset pagination, shared by all lists.

A URL names a position in a list by the last row before it, so every page costs the same, however
far down it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, QueryDict
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column header: `state` is aria-sort, `query` sorts by it, or reverses the order."""

    title: str
    numeric: bool
    state: str
    query: str


@dataclass(frozen=True, slots=True)
class Sort:
    """A column to sort by; another one, which is `unique`, breaks ties."""

    field: str
    descending: bool
    unique: str

    @classmethod
    def of(cls, text: str, fields: Collection[str], *, unique: str, usual: str = "") -> Sort:
        """Parse `weight` or `-weight`; anything that is not one of `fields` sorts by the `usual`
        one, which is the unique one unless given."""
        field = text.removeprefix("-")
        if field in fields:
            return cls(field, text.startswith("-"), unique)
        return cls(usual or unique, False, unique)

    def __str__(self) -> str:
        return f"-{self.field}" if self.descending else self.field

    def behind(self, rows: Rows, after: str) -> Rows:
        """The rows in this order, after the one whose unique column is `after`, if not empty."""
        named = rows.filter(**{self.unique: after}) if after else rows.none()
        last = named.values_list(self.field, flat=True).first()
        if last is not None:
            beyond = f"{self.field}__{'lt' if self.descending else 'gt'}"
            tie = {self.field: last, f"{self.unique}__gt": after}
            rows = rows.filter(Q(**{beyond: last}) | Q(**tie))
        return rows.order_by(f"{'-' if self.descending else ''}{self.field}", self.unique)

    def columns(
        self,
        titles: Mapping[str, str],
        query: QueryDict,
        *,
        numbers: Collection[str],
        times: Collection[str] = (),
    ) -> dict[str, Column]:
        """The headers by field. A first click on `numbers` shows the highest first, on `times` the
        latest; a second click reverses the order."""
        return {
            field: self._column(field, title, query, field in numbers, field in times)
            for field, title in titles.items()
        }

    def _column(
        self, field: str, title: str, query: QueryDict, numeric: bool, time: bool
    ) -> Column:
        here = field == self.field
        turned = Sort(field, not self.descending if here else numeric or time, self.unique)
        copy = query.copy()
        copy.pop("after", None)
        copy["sort"] = str(turned)
        state = ("descending" if self.descending else "ascending") if here else "none"
        return Column(title, numeric, state, f"?{copy.urlencode()}")
