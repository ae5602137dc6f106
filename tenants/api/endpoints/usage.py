"""What a tenant used and what it cost, summed from the sums of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from django.conf import settings
from django.db import models
from django.http import QueryDict, StreamingHttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.filters import UsageFilter
from tenants.api.openai.views import EARLIEST, LATEST
from tenants.api.permissions import TenantView
from tenants.api.serializers import CostLineSerializer, UsageLineSerializer
from tenants.api.tables import CHUNK_ROWS, CSV, CsvRenderer, download
from tenants.billing.money import amount
from tenants.models import UsageSum, User
from tenants.models.usage import TOKENS, UsageSumQuerySet
from tenants.permissions import Permission

LONGEST = {
    "hour": timedelta(days=92),
    "day": timedelta(days=1100),
    "month": timedelta(days=3660),
    "all": timedelta(days=3660),
}
"""The buckets of time, and how long a period can be cut into them."""
GROUPS: Mapping[str, Sequence[str]] = {
    "key": ["key", "key_name"],
    "member": ["member"],
    "adapter": ["adapter"],
    "model": ["model"],
    "base_model": ["base_model"],
}
"""What sums can be grouped by, and the columns that each gives."""
USAGE = ["requests", *TOKENS]
COST = ["requests", "cost", "currency"]
DEFAULT_PERIOD = timedelta(days=30)

Row = dict[str, Any]

PARAMETERS = [
    OpenApiParameter(
        "bucket", str, enum=list(LONGEST), default="day", description="In UTC; `all` is one sum."
    ),
    OpenApiParameter(
        "by", str, description=f"What else to sum by, with commas between: {', '.join(GROUPS)}."
    ),
    OpenApiParameter(
        "start", datetime, description="A whole hour; default: 30 days before the end."
    ),
    OpenApiParameter(
        "end", datetime, description="A whole hour, which is not part of it; default: now."
    ),
]


@dataclass(frozen=True)
class Question:
    """What is asked for: sums over `start` to `end`, in buckets and groups."""

    bucket: str
    by: Sequence[str]
    start: datetime
    end: datetime

    @classmethod
    def read(cls, params: QueryDict) -> Question:
        """The question in a query string.

        Raises:
            ValidationError: a parameter is not as it has to be; it says which and how.
        """
        bucket = params.get("bucket", "day")
        if bucket not in LONGEST:
            raise ValidationError(
                {"bucket": f"{bucket[:64]!r} is not one of {', '.join(LONGEST)}."}
            )
        end = _hour(params, "end") or _next_hour(timezone.now())
        start = _hour(params, "start") or (end - DEFAULT_PERIOD).replace(hour=0)
        if start >= end:
            raise ValidationError({"end": f"{shown(end)} is not after the start, {shown(start)}."})
        if end - start > LONGEST[bucket]:
            raise ValidationError(
                {
                    "start": f"From {shown(start)} to {shown(end)} it is {(end - start).days} "
                    f"days; with the bucket `{bucket}` it can be {LONGEST[bucket].days}."
                }
            )
        return cls(bucket, groups(params), start, end)

    @property
    def columns(self) -> list[str]:
        return ["start", *(column for group in self.by for column in GROUPS[group])]

    def answer(self, usage: UsageSumQuerySet) -> models.QuerySet[UsageSum, Row]:
        """A row for each group; one if there are none, for it is all of one tenant."""
        by = [*([] if self.bucket == "all" else [self.bucket]), *self.by]
        return usage.sums(by or ["tenant"], self.start, self.end)


def groups(params: Mapping[str, str], known: Collection[str] = GROUPS) -> list[str]:
    """What `by` names.

    Raises:
        ValidationError: it names what is not known.
    """
    by = list(dict.fromkeys(filter(None, params.get("by", "").split(","))))
    unknown = [group for group in by if group not in known]
    if unknown:
        raise ValidationError({"by": f"{unknown[0][:64]!r} is not one of {', '.join(known)}."})
    return by


def moment(params: Mapping[str, str], name: str) -> datetime | None:
    """The time that a parameter names; without an offset it is UTC's.

    Raises:
        ValidationError: it is no time, or of another age.
    """
    text = params.get(name)
    if not text:
        return None
    try:
        given = parse_datetime(text)
    except ValueError:
        given = None
    if given is None:
        raise ValidationError({name: f"{text[:64]!r} is not a time such as 2026-05-01T12:00:00Z."})
    if not EARLIEST.year <= given.year < LATEST.year:
        raise ValidationError(
            {name: f"{text[:64]} is not between {shown(EARLIEST)} and {shown(LATEST)}."}
        )
    return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)


def _hour(params: Mapping[str, str], name: str) -> datetime | None:
    """The whole hour that a parameter names.

    Raises:
        ValidationError: it is no time, no whole hour, or of another age.
    """
    at = moment(params, name)
    if at is not None and at != at.replace(minute=0, second=0, microsecond=0):
        raise ValidationError(
            {name: f"{params[name][:64]} is not a whole hour: sums are kept by the hour."}
        )
    return at


def _next_hour(now: datetime) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def shown(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


class Sums(TenantView, GenericAPIView[UsageSum]):
    """Sums of a tenant's ledger in pages, or all of them as CSV."""

    needs = {"list": Permission.READ_OWN_USAGE}
    parameters = ["format", *(parameter.name for parameter in PARAMETERS)]
    renderer_classes = [JSONRenderer, CsvRenderer]
    queryset = UsageSum.objects.none()
    filterset_class = UsageFilter
    action = "list"
    name = ""
    figures: Sequence[str] = []

    def get_queryset(self) -> models.QuerySet[UsageSum]:
        return self.caller.usage()

    def answer(self, request: Request) -> Response | StreamingHttpResponse:
        asked = Question.read(request.query_params)
        usage = self.filter_queryset(self.get_queryset())
        assert isinstance(usage, UsageSumQuerySet)
        rows = asked.answer(usage)
        assert request.accepted_renderer is not None
        if request.accepted_renderer.format == CsvRenderer.format:
            return self._download(asked, rows)
        page = self.paginate_queryset(rows)
        assert page is not None
        columns = [*asked.columns, *self.figures]
        return self.get_paginated_response(
            [{name: row[name] for name in columns} for row in self._complete(asked, page)]
        )

    def _download(
        self, asked: Question, rows: models.QuerySet[UsageSum, Row]
    ) -> StreamingHttpResponse:
        columns = [*asked.columns, *self.figures]
        period = f"{asked.start:%Y%m%dT%H}-{asked.end:%Y%m%dT%H}"
        return download(
            f"{self.name}-{self.caller.tenant}-{period}.csv",
            columns,
            ([row[name] for name in columns] for row in self._chunked(asked, rows)),
        )

    def _chunked(self, asked: Question, rows: models.QuerySet[UsageSum, Row]) -> Iterator[Row]:
        """Completed a chunk at a time, from a cursor on the server."""
        source = rows.iterator(chunk_size=CHUNK_ROWS)
        while chunk := list(islice(source, CHUNK_ROWS)):
            yield from self._complete(asked, chunk)

    def _complete(self, asked: Question, rows: Iterable[Row]) -> list[Row]:
        """The sums with everything that any column shows."""
        rows = list(rows)
        keys = {row["key"] for row in rows} if "key" in asked.by else set()
        names = dict(self.caller.tenant.keys.filter(pk__in=keys).values_list("pk", "name"))
        makers = User.objects.in_bulk({row["member"] for row in rows if "member" in row})
        return [self._completed(asked, row, names, makers) for row in rows]

    def _completed(
        self, asked: Question, row: Row, names: Mapping[int, str], makers: Mapping[int, User]
    ) -> Row:
        made: Row = {
            "start": shown(max(asked.start, row.get(asked.bucket, asked.start))),
            "cost": amount(int(row["cost"])),
            "currency": settings.CURRENCY,
        }
        if "key" in row:
            made["key_name"] = names.get(row["key"])  # a key may be gone, its bill stays
        if "member" in row:
            maker = makers.get(row["member"])
            made["member"] = maker.username if maker else None
        if "adapter" in row:
            made["adapter"] = row["adapter"] or None
        return row | made


class Usage(Sums):
    name = "usage"
    figures = USAGE
    serializer_class = UsageLineSerializer

    @extend_schema(
        parameters=PARAMETERS,
        responses={(200, "application/json"): UsageLineSerializer(many=True), (200, CSV): str},
        operation_id="usage_list",
    )
    def get(self, request: Request) -> Response | StreamingHttpResponse:
        """Requests and tokens, in pages or as CSV (`?format=csv`, `Accept: text/csv`)."""
        return self.answer(request)


class Costs(Sums):
    name = "costs"
    figures = COST
    serializer_class = CostLineSerializer

    @extend_schema(
        parameters=PARAMETERS,
        responses={(200, "application/json"): CostLineSerializer(many=True), (200, CSV): str},
        operation_id="costs_list",
    )
    def get(self, request: Request) -> Response | StreamingHttpResponse:
        """What it cost, exactly, in pages or as CSV (`?format=csv`, `Accept: text/csv`)."""
        return self.answer(request)
