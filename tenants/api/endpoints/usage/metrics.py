"""How a tenant's requests ended, and how long they took, by time and in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from inference.gateway.measuring.sums import percentile_s
from tenants.api.filters import MetricsFilter
from tenants.api.periods import PeriodBucket, PeriodQuestion, shown
from tenants.api.permissions import TenantView
from tenants.api.serializers.history import MetricsLineSerializer
from tenants.billing.money import amount
from tenants.models import AdapterVersion, RequestHour, RequestMinute, TotalHour, TotalMinute
from tenants.models.usage.outcomes import BY_OUTCOME, STRUCTURES
from tenants.permissions import Permission
from tenants.utc import DAY, HOUR, MINUTE

COUNTS = (
    "requests", *BY_OUTCOME, "prompt_tokens", "cached_tokens", "output_tokens", *STRUCTURES,
)  # fmt: skip
DETAILS = {"key", "adapter", "version", "base_model"}
"""Groups and filters that totals do not have."""
GROUPS: Mapping[str, Sequence[str]] = {
    "key": ["key"],
    "adapter": ["adapter"],
    "version": ["adapter", "version"],
    "base_model": ["base_model"],
    "outcome": ["outcome"],
    "code": ["code"],
    "limit": ["limit_kind", "limit_scope"],
}

Row = dict[str, Any]


BUCKETS = {
    "minute": PeriodBucket(DAY, HOUR, MINUTE),
    "hour": PeriodBucket(31 * DAY, DAY),
    "day": PeriodBucket(366 * DAY, 30 * DAY),
    "all": PeriodBucket(366 * DAY, DAY),
}
STEPS = {"minute": MINUTE, "hour": HOUR, "day": DAY, "all": None}

PARAMETERS = [
    OpenApiParameter(
        "bucket",
        str,
        enum=list(BUCKETS),
        default="hour",
        description=(
            "Width of the figures, in UTC. `all`: the whole period. Minutes are available "
            "for two days."
        ),
    ),
    OpenApiParameter(
        "by", str, description=f"Comma-separated fields to group by: {', '.join(GROUPS)}."
    ),
    OpenApiParameter(
        "start",
        datetime,
        description=(
            "Start of the period, a whole hour, or a whole minute if `bucket` is `minute`. "
            "Default: before the end one hour for minutes, 30 days for days, else one "
            "day."
        ),
    ),
    OpenApiParameter(
        "end", datetime, description="Exclusive end of the period, likewise. Default: now."
    ),
]


class Metrics(TenantView, GenericAPIView[Any]):
    """Figures of a tenant's requests, in pages."""

    needs = {"list": Permission.READ_OWN_USAGE}
    parameters = [parameter.name for parameter in PARAMETERS]
    queryset = RequestHour.objects.none()
    filterset_class = MetricsFilter
    serializer_class = MetricsLineSerializer
    action = "list"

    @extend_schema(
        parameters=PARAMETERS,
        responses={200: MetricsLineSerializer(many=True)},
        operation_id="metrics_list",
    )
    def get(self, request: Request) -> Response:
        """Requests by outcome (refusals included), tokens and times, as gateways saw them. A
        gateway that is killed loses its last seconds; bills are at `/api/v1/costs`."""
        asked = PeriodQuestion.read(request.query_params, BUCKETS, "hour", GROUPS)
        found: Any = self.filter_queryset(self._figures(asked, request))
        step = STEPS[asked.bucket]
        by = [*(["start"] if step else []), *asked.columns]
        page = self.paginate_queryset(found.between(asked.start, asked.end).figures(*by, step=step))
        assert page is not None
        return self.get_paginated_response(self._lines(asked, page))

    def _figures(self, asked: PeriodQuestion, request: Request) -> models.QuerySet[Any]:
        """The smallest table that has all groups and filters of the query."""
        minutely, tenant = asked.bucket == "minute", self.caller.tenant
        if not self.caller.sees_all_sums:
            details = RequestMinute if minutely else RequestHour
            own = tenant.keys.filter(created_by=self.caller.user)
            return details.objects.filter(tenant=tenant, key__in=own)
        if DETAILS.isdisjoint([*asked.by, *request.query_params]):
            totals = TotalMinute if minutely else TotalHour
            return totals.objects.filter(tenant=tenant)
        details = RequestMinute if minutely else RequestHour
        return details.objects.filter(tenant=tenant)

    def _lines(self, asked: PeriodQuestion, rows: Sequence[Row]) -> list[Row]:
        keys = {row["key"] for row in rows if "key" in row}
        names = dict(self.caller.tenant.keys.filter(pk__in=keys).values_list("pk", "name"))
        versions = {row["version"] for row in rows if row.get("version")}
        numbers = dict(AdapterVersion.objects.filter(pk__in=versions).values_list("pk", "number"))
        return [self._line(asked, row, names, numbers) for row in rows]

    def _line(
        self, asked: PeriodQuestion, row: Row, names: Mapping[int, str], numbers: Mapping[int, int]
    ) -> Row:
        first_tokens, totals = row["first_tokens"], row["totals"]
        line: Row = {"start": shown(row.get("start", asked.start))}
        line |= {name: row[name] or None for name in asked.columns}
        if "key" in line:
            line["key_name"] = names.get(row["key"])
        if "version" in line:
            line["version"] = numbers.get(row["version"])
        return line | {
            **{name: row[name] for name in COUNTS},
            "cost": amount(int(row["cost"])),
            "currency": settings.CURRENCY,
            "output_tokens_per_s": row["decode_tokens"] / row["decode_s"]
            if row["decode_s"]
            else None,
            "ttft_p50_s": percentile_s(first_tokens, 0.5),
            "ttft_p95_s": percentile_s(first_tokens, 0.95),
            "total_p50_s": percentile_s(totals, 0.5),
            "total_p95_s": percentile_s(totals, 0.95),
            "first_tokens": first_tokens,
            "totals": totals,
        }
