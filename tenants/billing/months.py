"""Days and months of UTC, by which the ledger is summed and budgets are kept."""

from __future__ import annotations

from datetime import datetime, timedelta

HOUR, DAY, MONTH = "hour", "day", "month"
"""How long a sum of the ledger is, as its rows say."""


def day_start(at: datetime) -> datetime:
    """When the day of UTC began that `at`, a time of UTC, lies in."""
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def day_end(at: datetime) -> datetime:
    """When the next day of UTC begins."""
    return day_start(at) + timedelta(days=1)


def month_start(at: datetime) -> datetime:
    """When the month of UTC began that `at`, a time of UTC, lies in."""
    return day_start(at.replace(day=1))


def month_end(at: datetime) -> datetime:
    """When the next month of UTC begins."""
    return month_start(month_start(at) + timedelta(days=31))
