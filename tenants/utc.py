"""Hours, days and months in UTC, by which the ledger is summed and budgets are kept."""

from __future__ import annotations

from datetime import datetime, timedelta

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def day_start(at: datetime) -> datetime:
    """The start of the UTC day of `at`, which is in UTC."""
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def day_end(at: datetime) -> datetime:
    """The start of the next UTC day."""
    return day_start(at) + DAY


def month_start(at: datetime) -> datetime:
    """The start of the UTC month of `at`, which is in UTC."""
    return day_start(at.replace(day=1))


def month_end(at: datetime) -> datetime:
    """The start of the next UTC month."""
    return month_start(month_start(at) + 31 * DAY)
