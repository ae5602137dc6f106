"""Which gateway processes are alive, for the agents that dial every one of them."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now

ALIVE_FOR = timedelta(seconds=10)
FORGOTTEN_AFTER = timedelta(days=1)


class GatewayProcessQuerySet(models.QuerySet["GatewayProcess"]):
    def beat(self, url: str) -> None:
        """Say that the gateway at this base URL is alive; the database's clock counts."""
        self.filter(heartbeat_at__lt=Now() - FORGOTTEN_AFTER).delete()
        self.bulk_create(
            [self.model(url=url, heartbeat_at=Now())],
            update_conflicts=True,
            unique_fields=["url"],
            update_fields=["heartbeat_at"],
        )

    def alive(self) -> GatewayProcessQuerySet:
        return self.filter(heartbeat_at__gt=Now() - ALIVE_FOR)

    def forget(self, url: str) -> None:
        """The gateway at this base URL has stopped."""
        self.filter(url=url).delete()


class GatewayProcess(models.Model):
    url = models.CharField(max_length=255, unique=True)
    heartbeat_at = models.DateTimeField()

    objects = GatewayProcessQuerySet.as_manager()

    class Meta:
        ordering = ["url"]
        verbose_name_plural = "gateway processes"

    def __str__(self) -> str:
        return self.url
