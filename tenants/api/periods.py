"""Query parameters of endpoints for figures: bucket of time, groups, start and end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import ValidationError

from tenants.api.openai.views import EARLIEST, LATEST
from tenants.utc import DAY, HOUR, MINUTE


@dataclass(frozen=True, slots=True)
class PeriodBucket:
    """A length over which figures are summed: the longest period that can be divided into such
    buckets, the default period, and the unit of which start and end are multiples."""

    longest: timedelta
    usual: timedelta
    unit: timedelta = HOUR
    since_midnight: bool = False
    """Whether the default period begins at midnight (UTC)."""


@dataclass(frozen=True, slots=True)
class PeriodQuestion:
    """A query for figures from `start` to `end`, in buckets and groups."""

    bucket: str
    by: list[str]
    columns: list[str]
    """The columns of the groups."""
    start: datetime
    end: datetime

    @classmethod
    def read(
        cls,
        params: Mapping[str, str],
        buckets: Mapping[str, PeriodBucket],
        usual: str,
        groups: Mapping[str, Sequence[str]],
    ) -> PeriodQuestion:
        """Parse the query parameters. `usual` is the bucket if none is given; `groups` maps each
        group to its columns.

        Raises:
            ValidationError: a parameter is invalid; it names the parameter and what is allowed.
        """
        name = params.get("bucket", usual)
        if name not in buckets:
            raise ValidationError({"bucket": f"{name[:64]!r} is not one of {', '.join(buckets)}."})
        bucket = buckets[name]
        end = (
            _whole(params, "end", bucket.unit) or _floor(timezone.now(), bucket.unit) + bucket.unit
        )
        start = _whole(params, "start", bucket.unit)
        if start is None:
            start = end - bucket.usual
            start = _floor(start, DAY) if bucket.since_midnight else start
        if start >= end:
            raise ValidationError({"end": f"{shown(end)} is not after the start, {shown(start)}."})
        if end - start > bucket.longest:
            raise ValidationError(
                {
                    "start": (
                        f"The period from {shown(start)} to {shown(end)} has "
                        f"{_days(end - start)} days; with the bucket `{name}` at most "
                        f"{_days(bucket.longest)} are allowed."
                    )
                }
            )
        by = _groups(params, groups)
        columns = dict.fromkeys(column for group in by for column in groups[group])
        return cls(name, by, list(columns), start, end)


def moment(params: Mapping[str, str], name: str) -> datetime | None:
    """The time in a parameter, in UTC unless it has an offset; None if it is not given.

    Raises:
        ValidationError: it is not a time, or not from EARLIEST to LATEST.
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


def shown(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _groups(params: Mapping[str, str], known: Collection[str]) -> list[str]:
    by = list(dict.fromkeys(filter(None, params.get("by", "").split(","))))
    unknown = [group for group in by if group not in known]
    if unknown:
        raise ValidationError({"by": f"{unknown[0][:64]!r} is not one of {', '.join(known)}."})
    return by


def _whole(params: Mapping[str, str], name: str, unit: timedelta) -> datetime | None:
    at = moment(params, name)
    if at is not None and at != _floor(at, unit):
        of = "minute" if unit == MINUTE else "hour"
        raise ValidationError({name: f"{params[name][:64]} is not a whole {of}."})
    return at


def _floor(at: datetime, unit: timedelta) -> datetime:
    return at - (at - EARLIEST) % unit


def _days(period: timedelta) -> str:
    return f"{period / DAY:.4g}"
