"""The gateway processes that are alive, for the agents, which dial every one of them.

Gateways write these rows themselves, without the models: `tenants.directory.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import ExpressionWrapper, Q
from django.db.models.functions import Now

from tenants.naming import ALIVE_S

LOST_FOR = timedelta(hours=1)
"""How long a lost gateway is listed: it may have come back under another address."""


class GatewayProcessQuerySet(models.QuerySet["GatewayProcess"]):
    def alive(self) -> GatewayProcessQuerySet:
        """Processes with a recent heartbeat, by the database's clock."""
        return self.filter(heartbeat_at__gt=Now() - timedelta(seconds=ALIVE_S))

    def alive_and_lost(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """`url` and `heartbeat_at` of the processes that are alive, and of those that went silent
        within LOST_FOR without having announced that they stop."""
        lately = Q(heartbeat_at__gt=Now() - timedelta(seconds=ALIVE_S))
        found = self.filter(heartbeat_at__gt=Now() - LOST_FOR)
        annotated = found.annotate(is_alive=ExpressionWrapper(lately, models.BooleanField()))
        rows = list(annotated.values("url", "heartbeat_at", "is_alive"))
        return [row for row in rows if row["is_alive"]], [
            row for row in rows if not row["is_alive"]
        ]

    def engines_of(self) -> dict[str, int]:
        """How many engines take new work, by the digest of their revision. Because each engine
        connects to every gateway, it is the maximum over the gateways."""
        most: dict[str, int] = {}
        for engines in self.alive().values_list("engines", flat=True):
            for digest, count in engines.items():
                most[digest] = max(count, most.get(digest, 0))
        return most


class GatewayProcess(models.Model):
    url = models.CharField(max_length=255, unique=True)
    heartbeat_at = models.DateTimeField()
    demand = models.JSONField(default=dict, db_default={})
    """The demand on each pool that it sees: `inference.gateway.fleet.demand.Demand`."""
    engines = models.JSONField(default=dict, db_default={})
    """How many connected engines take new work, by the digest of their revision."""

    objects = GatewayProcessQuerySet.as_manager()

    class Meta:
        ordering = ["url"]
        verbose_name_plural = "gateway processes"

    def __str__(self) -> str:
        return self.url
