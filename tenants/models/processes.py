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


class GatewayProcess(models.Model):
    url = models.CharField(max_length=255, unique=True)
    heartbeat_at = models.DateTimeField()
    demand = models.JSONField(default=dict, db_default={})
    """What it sees that is asked of each pool: `inference.gateway.fleet.demand.Demand`."""

    objects = GatewayProcessQuerySet.as_manager()

    class Meta:
        ordering = ["url"]
        verbose_name_plural = "gateway processes"

    def __str__(self) -> str:
        return self.url
