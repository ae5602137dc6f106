"""Which gateway processes are alive, for the agents that dial every one of them.

They say so themselves, without the models: `tenants.directory.registry`.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now

from tenants.directory.registry import ALIVE_S


class GatewayProcessQuerySet(models.QuerySet["GatewayProcess"]):
    def alive(self) -> GatewayProcessQuerySet:
        """Those heard of lately; the database's clock counts."""
        return self.filter(heartbeat_at__gt=Now() - timedelta(seconds=ALIVE_S))

    def engines_of(self) -> dict[str, int]:
        """How many engines take new work, by the digest of their revision: each connects to every
        gateway, so the most that any of them has."""
        most: dict[str, int] = {}
        for engines in self.alive().values_list("engines", flat=True):
            for digest, count in engines.items():
                most[digest] = max(count, most.get(digest, 0))
        return most


class GatewayProcess(models.Model):
    url = models.CharField(max_length=255, unique=True)
    heartbeat_at = models.DateTimeField()
    demand = models.JSONField(default=dict, db_default={})
    """What it sees that is asked of each pool: `inference.gateway.fleet.demand.Demand`."""
    engines = models.JSONField(default=dict, db_default={})
    """How many engines it has that take new work, by the digest of their revision."""

    objects = GatewayProcessQuerySet.as_manager()

    class Meta:
        ordering = ["url"]
        verbose_name_plural = "gateway processes"

    def __str__(self) -> str:
        return self.url
