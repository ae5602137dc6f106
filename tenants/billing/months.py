"""The months of UTC, by which the ledger is summed and budgets are kept."""

from __future__ import annotations

from datetime import datetime, timedelta

HOUR, MONTH = "hour", "month"
"""How long a sum of the ledger is, as its rows say."""


def month_start(at: datetime) -> datetime:
    """When the month of UTC began that `at`, a time of UTC, lies in."""
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def month_end(at: datetime) -> datetime:
    """When the next month of UTC begins."""
    return month_start(month_start(at) + timedelta(days=31))
