"""`/v1/organization/usage/completions` and `/costs` as in OpenAI's API, for a tenant's key.

The organization is the tenant. Answers come from the hourly sums of the ledger: a period is widened
to whole hours, and each bucket states its start and end. Of OpenAI's dimensions the sums have the
key and the model; tenants have no projects, and users are not distinguished.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from inference.errors import InvalidRequest
from tenants.api.openai.views import Query, ends_early, keyed
from tenants.billing.money import amount
from tenants.models import ApiKey, Tenant, UsageSum
from tenants.permissions import TABLE, Permission
from tenants.utc import DAY, HOUR, day_start

READERS = TABLE[Permission.READ_USAGE][1]
CURSOR = re.compile(r"page_([0-9]{1,10})")
KEY_ID = re.compile(r"[0-9]{1,18}")
PERIOD = ["start_time", "end_time", "bucket_width", "limit", "page"]
USAGE_GROUPS = {"project_id": None, "user_id": None, "api_key_id": "key", "model": "model"}
COST_GROUPS = {"project_id": None, "user_id": None, "api_key_id": "key", "line_item": "model"}
"""Possible groups, and the sums' names for them; None: there is only one group, null."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class BucketWidth:
    """A width of buckets; `grain` is its name in the sums."""

    grain: str
    length: timedelta
    default_limit: int
    max_limit: int

    def floor(self, at: datetime) -> datetime:
        day = day_start(at)
        return day + (at - day) // self.length * self.length


WIDTHS = {"1h": BucketWidth("hour", HOUR, 24, 168), "1d": BucketWidth("day", DAY, 7, 31)}
COST_WIDTHS = {"1d": BucketWidth("day", DAY, 7, 180)}


@dataclass(frozen=True)
class OrganizationPage:
    """The buckets of one answer, all of full width except at the ends of the period."""

    width: BucketWidth
    start: datetime
    end: datetime
    limit: int

    @classmethod
    def asked(cls, query: Query, widths: Mapping[str, BucketWidth]) -> OrganizationPage:
        """Parse the query's parameters.

        Raises:
            InvalidRequest: a parameter is invalid.
        """
        names = query.choices("bucket_width", widths, "Usage is summed by the hour.") or ["1d"]
        if len(names) > 1:
            raise InvalidRequest("`bucket_width` must have only one value.", param="bucket_width")
        width = widths[names[0]]
        given, until = query.time("start_time"), query.time("end_time")
        if given is None:
            raise InvalidRequest(
                "`start_time` is required: a Unix time in seconds.", param="start_time"
            )
        end = until or timezone.now()
        if end <= given:
            raise ends_early(given, end)
        start, end = _floor_hour(given), _floor_hour(end + HOUR - timedelta(microseconds=1))
        limit = query.integer("limit", 1, width.max_limit) or width.default_limit
        return cls(width, _first_bucket(query, width, start, end), end, limit)

    def buckets(self) -> Iterator[tuple[datetime, datetime]]:
        """Start and end of each bucket."""
        start = self.start
        for _ in range(self.limit):
            if start >= self.end:
                return
            end = min(self.width.floor(start) + self.width.length, self.end)
            yield start, end
            start = end


def _floor_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _first_bucket(query: Query, width: BucketWidth, start: datetime, end: datetime) -> datetime:
    """The start of this page: that of the period, or the end of the page before."""
    text = query.word("page")
    if text is None:
        return start
    cursor = CURSOR.fullmatch(text)
    at = datetime.fromtimestamp(int(cursor[1]), UTC) if cursor else start
    if not start < at < end or at != width.floor(at):
        raise InvalidRequest("`page` is not a `next_page` of this query.", param="page")
    return at


def _key_ids(query: Query) -> list[int]:
    words = query.words("api_key_ids")
    for word in words:
        if not KEY_ID.fullmatch(word):
            raise InvalidRequest(f"`{word[:64]}` is not the id of an API key.", param="api_key_ids")
    return [int(word) for word in words]


def _answer(
    tenant: Tenant,
    query: Query,
    page: OrganizationPage,
    by: Sequence[str],
    result: Callable[[Row], Row],
) -> dict[str, Any]:
    """The page: the sums of each bucket, formatted by `result`; a bucket without usage has none."""
    buckets = list(page.buckets())
    last = buckets[-1][1]
    usage = UsageSum.objects.filter(tenant=tenant)
    if keys := _key_ids(query):
        usage = usage.filter(key__in=keys)
    if names := query.words("models") or query.words("line_items"):
        usage = usage.filter(model__in=names)
    found: defaultdict[datetime, list[Row]] = defaultdict(list)
    for row in usage.sums([page.width.grain, *by], page.start, last):
        found[row[page.width.grain]].append(result(row))
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": int(start.timestamp()),
                "end_time": int(end.timestamp()),
                "results": found[page.width.floor(start)],
            }
            for start, end in buckets
        ],
        "has_more": last < page.end,
        "next_page": f"page_{int(last.timestamp())}" if last < page.end else None,
    }


def _columns(groups: Sequence[str], names: Mapping[str, str | None]) -> list[str]:
    """The sums' names for the groups."""
    return [name for group in groups if (name := names[group]) is not None]


def _key_id(row: Row) -> str | None:
    return str(row["key"]) if "key" in row else None


@keyed(READERS)
def completions(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    """Tokens and requests by time and, if requested, by key and model."""
    query = Query(request.GET, [*PERIOD, "group_by", "api_key_ids", "models"])
    groups = query.choices("group_by", USAGE_GROUPS, "Usage is not summed by other fields.")
    page, by = OrganizationPage.asked(query, WIDTHS), _columns(groups, USAGE_GROUPS)
    return _answer(key.tenant, query, page, by, _completions_result)


def _completions_result(row: Row) -> Row:
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": row["prompt_tokens"],
        "input_cached_tokens": row["cached_tokens"],
        "input_uncached_tokens": row["prompt_tokens"] - row["cached_tokens"],
        "input_audio_tokens": 0,
        "output_tokens": row["completion_tokens"],
        "output_audio_tokens": 0,
        "num_model_requests": row["requests"],
        "project_id": None,
        "user_id": None,
        "api_key_id": _key_id(row),
        "model": row.get("model"),
        "batch": None,
        "service_tier": None,
    }


@keyed(READERS)
def costs(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    """Costs by day and, if requested, by key and line item, which is the model."""
    query = Query(request.GET, [*PERIOD, "group_by", "api_key_ids", "line_items"])
    groups = query.choices("group_by", COST_GROUPS, "Usage is not summed by other fields.")
    page, by = OrganizationPage.asked(query, COST_WIDTHS), _columns(groups, COST_GROUPS)
    return _answer(key.tenant, query, page, by, _costs_result)


def _costs_result(row: Row) -> Row:
    # A number as in OpenAI's answer, with all of its digits: it is never converted to a float.
    value = msgspec.Raw(amount(int(row["cost"])).encode())
    return {
        "object": "organization.costs.result",
        "amount": {"value": value, "currency": settings.CURRENCY},
        "line_item": row.get("model"),
        "project_id": None,
        "api_key_id": _key_id(row),
    }
