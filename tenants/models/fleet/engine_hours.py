"""How long engines were connected, which is what an installation pays for."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Func, Sum

SLOTS = 12
"""Slots of an hour, five minutes each."""


class _BitCount(Func):
    """How many bits of a `bit(12)` are set."""

    template = f"bit_count(%(expressions)s::bit({SLOTS}))"
    output_field = models.BigIntegerField()


class EngineHourQuerySet(models.QuerySet["EngineHour"]):
    def by_model(self, start: datetime, end: datetime) -> dict[str, float]:
        """Hours for which engines of each base model were connected, within the hours that begin
        at `start` or later, and before `end`."""
        found = self.filter(hour__gte=start, hour__lt=end).order_by().values("base_model")
        counted = found.annotate(count=Sum(_BitCount("slots")))
        return {row["base_model"]: row["count"] / SLOTS for row in counted}


class EngineHour(models.Model):
    """An engine in one hour of UTC. Each gateway that it is connected to sets the bits of the
    SLOTS in which it was connected, so that several gateways count it once
    (`tenants.directory.registry`)."""

    hour = models.DateTimeField()
    engine_id = models.CharField(max_length=255)
    base_model = models.CharField(max_length=255)
    slots = models.IntegerField()

    objects = EngineHourQuerySet.as_manager()

    class Meta:
        ordering = ["hour", "engine_id"]
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "engine_id", "base_model"], name="engine_hour_unique"
            )
        ]

    def __str__(self) -> str:
        return f"{self.engine_id} {self.hour:%Y-%m-%d %H}h"
