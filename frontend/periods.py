"""The periods that pages look back. The same name means the same time on every page, so that their
sums can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenants.models.usage.outcomes import EPOCH
from tenants.utc import DAY, HOUR, month_start


@dataclass(frozen=True, slots=True)
class Period:
    """A time of this length that ends with the present minute, hour or day; `step` is that of a
    line over it, and `unit` what it consists of as a whole. Both divide a day of UTC."""

    name: str
    title: str
    length: timedelta
    step: timedelta
    unit: timedelta

    @property
    def minutely(self) -> bool:
        """Whether it needs figures per minute; otherwise those per hour are enough."""
        return self.step < HOUR

    def end(self, now: datetime) -> datetime:
        """The end of the present unit."""
        return EPOCH + ((now - EPOCH) // self.unit + 1) * self.unit

    def start(self, now: datetime) -> datetime:
        """Its beginning."""
        return self.end(now) - self.length


_ALL = (
    Period("1h", "1 hour", HOUR, timedelta(minutes=2), timedelta(minutes=2)),
    Period("24h", "24 hours", DAY, HOUR, HOUR),
    Period("7d", "7 days", 7 * DAY, 6 * HOUR, DAY),
    Period("30d", "30 days", 30 * DAY, DAY, DAY),
)
PERIODS: Mapping[str, Period] = {one.name: one for one in _ALL}
USUAL = PERIODS["24h"]


def pace_of_month(used: float, now: datetime) -> float:
    """What is used in a second, on average of this month so far, which counts as a day at least."""
    return used / max(now - month_start(now), DAY).total_seconds()
