"""A tenant's usage and costs, from the sums of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.conf import settings
from django.db import models
from django.http import StreamingHttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.filters import UsageFilter
from tenants.api.periods import PeriodBucket, PeriodQuestion, shown
from tenants.api.permissions import TenantView
from tenants.api.serializers.usage import CostLineSerializer, UsageLineSerializer
from tenants.api.tables import CHUNK_ROWS, CSV, CsvRenderer, download
from tenants.billing.money import amount
from tenants.models import UsageSum, User
from tenants.models.usage.sums import TOKENS, UsageSumQuerySet
from tenants.permissions import Permission

BUCKETS = {
    name: PeriodBucket(timedelta(days=longest), timedelta(days=30), since_midnight=True)
    for name, longest in {"hour": 92, "day": 1100, "month": 3660, "all": 3660}.items()
}
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

Row = dict[str, Any]

PARAMETERS = [
    OpenApiParameter(
        "bucket",
        str,
        enum=list(BUCKETS),
        default="day",
        description="Width of the sums, in UTC. `all`: one sum over the whole period.",
    ),
    OpenApiParameter(
        "by", str, description=f"Comma-separated fields to group by: {', '.join(GROUPS)}."
    ),
    OpenApiParameter(
        "start",
        datetime,
        description="Start of the period, a whole hour. Default: 30 days before the end.",
    ),
    OpenApiParameter(
        "end", datetime, description="Exclusive end of the period, a whole hour. Default: now."
    ),
]


class UsageSums(TenantView, GenericAPIView[UsageSum]):
    """Sums of a tenant's ledger in pages, or all of them as CSV."""

    needs = {"list": Permission.READ_OWN_USAGE}
    parameters = ["format", *(parameter.name for parameter in PARAMETERS)]
    further_errors = [429]
    renderer_classes = [JSONRenderer, CsvRenderer]
    queryset = UsageSum.objects.none()
    filterset_class = UsageFilter
    action = "list"
    name = ""
    figures: Sequence[str] = []

    def get_queryset(self) -> models.QuerySet[UsageSum]:
        return self.caller.usage()

    def answer(self, request: Request) -> Response | StreamingHttpResponse:
        asked = PeriodQuestion.read(request.query_params, BUCKETS, "day", GROUPS)
        usage = self.filter_queryset(self.get_queryset())
        assert isinstance(usage, UsageSumQuerySet)
        by = [*([] if asked.bucket == "all" else [asked.bucket]), *asked.by]
        # Without groups there is one row, because all rows are of one tenant.
        rows = usage.sums(by or ["tenant"], asked.start, asked.end)
        assert request.accepted_renderer is not None
        if request.accepted_renderer.format == CsvRenderer.format:
            return self._download(asked, rows)
        page = self.paginate_queryset(rows)
        assert page is not None
        columns = ["start", *asked.columns, *self.figures]
        return self.get_paginated_response(
            [{name: row[name] for name in columns} for row in self._complete(asked, page)]
        )

    def _download(
        self, asked: PeriodQuestion, rows: models.QuerySet[UsageSum, Row]
    ) -> StreamingHttpResponse:
        columns = ["start", *asked.columns, *self.figures]
        period = f"{asked.start:%Y%m%dT%H}-{asked.end:%Y%m%dT%H}"
        return download(
            f"{self.name}-{self.caller.tenant}-{period}.csv",
            columns,
            ([row[name] for name in columns] for row in self._chunked(asked, rows)),
            owner=self.caller.tenant.slug,
        )

    def _chunked(
        self, asked: PeriodQuestion, rows: models.QuerySet[UsageSum, Row]
    ) -> Iterator[Row]:
        """Complete rows one chunk at a time, from a server-side cursor."""
        source = rows.iterator(chunk_size=CHUNK_ROWS)
        while chunk := list(islice(source, CHUNK_ROWS)):
            yield from self._complete(asked, chunk)

    def _complete(self, asked: PeriodQuestion, rows: Iterable[Row]) -> list[Row]:
        """Add to the sums the values of all other columns."""
        rows = list(rows)
        keys = {row["key"] for row in rows} if "key" in asked.by else set()
        names = dict(self.caller.tenant.keys.filter(pk__in=keys).values_list("pk", "name"))
        makers = User.objects.in_bulk({row["member"] for row in rows if "member" in row})
        return [self._completed(asked, row, names, makers) for row in rows]

    def _completed(
        self, asked: PeriodQuestion, row: Row, names: Mapping[int, str], makers: Mapping[int, User]
    ) -> Row:
        made: Row = {
            "start": shown(max(asked.start, row.get(asked.bucket, asked.start))),
            "cost": amount(int(row["cost"])),
            "currency": settings.CURRENCY,
        }
        if "key" in row:
            made["key_name"] = names.get(row["key"])  # the bill of a deleted key stays
        if "member" in row:
            maker = makers.get(row["member"])
            made["member"] = maker.username if maker else None
        if "adapter" in row:
            made["adapter"] = row["adapter"] or None
        return row | made


class UsageList(UsageSums):
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


class Costs(UsageSums):
    name = "costs"
    figures = COST
    serializer_class = CostLineSerializer

    @extend_schema(
        parameters=PARAMETERS,
        responses={(200, "application/json"): CostLineSerializer(many=True), (200, CSV): str},
        operation_id="costs_list",
    )
    def get(self, request: Request) -> Response | StreamingHttpResponse:
        """Exact costs, in pages or as CSV (`?format=csv`, `Accept: text/csv`)."""
        return self.answer(request)
