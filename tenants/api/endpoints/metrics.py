"""What became of a tenant's requests, and how long they took, by time and in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.http import QueryDict
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from inference.gateway.measuring.sums import BUCKETS, percentile_s
from tenants.api.endpoints.usage import groups, moment, shown
from tenants.api.filters import MetricsFilter
from tenants.api.history_serializers import MetricsLineSerializer
from tenants.api.permissions import TenantView
from tenants.billing.money import amount
from tenants.models import AdapterVersion, RequestHour, RequestMinute, TotalHour, TotalMinute
from tenants.models.outcomes import BY_OUTCOME, EPOCH
from tenants.permissions import Permission

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
COUNTS = ("requests", *BY_OUTCOME, "prompt_tokens", "cached_tokens", "output_tokens")
DETAILS = {"key", "adapter", "version", "base_model"}
"""Groups and filters that totals know nothing of."""
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


@dataclass(frozen=True, slots=True)
class Bucket:
    """A length of time to sum over: what is asked for if nothing is said, and at most."""

    step: timedelta | None
    usual: timedelta
    longest: timedelta


STEPS: Mapping[str, Bucket] = {
    "minute": Bucket(MINUTE, HOUR, DAY),
    "hour": Bucket(HOUR, DAY, 31 * DAY),
    "day": Bucket(DAY, 30 * DAY, 366 * DAY),
    "all": Bucket(None, DAY, 366 * DAY),
}

PARAMETERS = [
    OpenApiParameter(
        "bucket",
        str,
        enum=list(STEPS),
        default="hour",
        description="In UTC; `all` is one sum. Minutes are known of two days.",
    ),
    OpenApiParameter(
        "by", str, description=f"What else to sum by, with commas between: {', '.join(GROUPS)}."
    ),
    OpenApiParameter(
        "start",
        datetime,
        description="A whole hour, or minute where these are the buckets; default: an hour before "
        "the end in minutes, 30 days in days, else a day.",
    ),
    OpenApiParameter("end", datetime, description="The same, not part of it; default: now."),
]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for: figures over `start` to `end`, in buckets and groups."""

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
        name = params.get("bucket", "hour")
        if name not in STEPS:
            raise ValidationError({"bucket": f"{name[:64]!r} is not one of {', '.join(STEPS)}."})
        bucket, unit = STEPS[name], MINUTE if name == "minute" else HOUR
        end = _whole(params, "end", unit) or _next(timezone.now(), unit)
        start = _whole(params, "start", unit) or end - bucket.usual
        if start >= end:
            raise ValidationError({"end": f"{shown(end)} is not after the start, {shown(start)}."})
        if end - start > bucket.longest:
            raise ValidationError(
                {
                    "start": f"From {shown(start)} to {shown(end)} it is more than "
                    f"{bucket.longest.days} days, which the bucket `{name}` takes at most."
                }
            )
        return cls(name, groups(params, GROUPS), start, end)

    @property
    def columns(self) -> list[str]:
        found = [column for group in self.by for column in GROUPS[group]]
        return list(dict.fromkeys(found))


def _next(now: datetime, unit: timedelta) -> datetime:
    return EPOCH + ((now - EPOCH) // unit + 1) * unit


def _whole(params: Mapping[str, str], name: str, unit: timedelta) -> datetime | None:
    at = moment(params, name)
    if at is not None and (at - EPOCH) % unit:
        of = "minute" if unit == MINUTE else "hour"
        raise ValidationError({name: f"{params[name][:64]} is not a whole {of}."})
    return at


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
        """Requests by outcome, refusals included, tokens and times, as gateways saw them. A gateway
        that is killed takes the last seconds with it; bills are at `/api/v1/costs`."""
        asked = Question.read(request.query_params)
        found: Any = self.filter_queryset(self._figures(asked, request))
        step = STEPS[asked.bucket].step
        by = [*(["start"] if step else []), *asked.columns]
        page = self.paginate_queryset(found.between(asked.start, asked.end).figures(*by, step=step))
        assert page is not None
        return self.get_paginated_response(self._lines(asked, page))

    def _figures(self, asked: Question, request: Request) -> models.QuerySet[Any]:
        """The smallest of what there is that knows of all that is asked for."""
        minutely, tenant = asked.bucket == "minute", self.caller.tenant
        if not self.caller.may(Permission.READ_USAGE):
            details = RequestMinute if minutely else RequestHour
            own = tenant.keys.filter(created_by=self.caller.user)
            return details.objects.filter(tenant=tenant, key__in=own)
        if DETAILS.isdisjoint([*asked.by, *request.query_params]):
            totals = TotalMinute if minutely else TotalHour
            return totals.objects.filter(tenant=tenant)
        details = RequestMinute if minutely else RequestHour
        return details.objects.filter(tenant=tenant)

    def _lines(self, asked: Question, rows: Sequence[Row]) -> list[Row]:
        keys = {row["key"] for row in rows if "key" in row}
        names = dict(self.caller.tenant.keys.filter(pk__in=keys).values_list("pk", "name"))
        versions = {row["version"] for row in rows if row.get("version")}
        numbers = dict(AdapterVersion.objects.filter(pk__in=versions).values_list("pk", "number"))
        return [self._line(asked, row, names, numbers) for row in rows]

    def _line(
        self, asked: Question, row: Row, names: Mapping[int, str], numbers: Mapping[int, int]
    ) -> Row:
        first_tokens, totals = (
            [row[f"{name}{at}"] for at in range(BUCKETS)] for name in ("first_tokens", "totals")
        )
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
