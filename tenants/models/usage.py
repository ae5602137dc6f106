"""The ledger: what each request cost."""

from __future__ import annotations

from django.db import models

from tenants.models.accounts import Tenant
from tenants.models.adapters import AdapterVersion
from tenants.models.keys import ApiKey


class UsageEvent(models.Model):
    """One request attempt, as the engine counted it. Written once under an id made by the server.

    Times are in seconds; `finish_reason` as answered, else `cancelled` or an error's code.
    """

    id = models.CharField(primary_key=True, max_length=64)
    started_at = models.DateTimeField()
    # Bills outlive what they are for: a tenant with usage stays, a key or version leaves a gap.
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="usage", db_index=False)
    key = models.ForeignKey(
        ApiKey, models.SET_NULL, null=True, related_name="usage", db_index=False
    )
    version = models.ForeignKey(
        AdapterVersion, models.SET_NULL, null=True, related_name="usage", db_index=False
    )
    model = models.CharField(max_length=255)
    base_model = models.CharField(max_length=255)
    engine_id = models.CharField(max_length=255)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    reasoning_tokens = models.PositiveIntegerField()
    finish_reason = models.CharField(max_length=64)
    queue_s = models.FloatField()
    load_s = models.FloatField()
    ttft_s = models.FloatField(null=True)
    total_s = models.FloatField()

    class Meta:
        ordering = ["-started_at"]
        indexes = [
            models.Index(fields=["tenant", "started_at"], name="usage_by_tenant"),
            models.Index(fields=["key", "started_at"], name="usage_by_key"),
            models.Index(fields=["version", "started_at"], name="usage_by_version"),
        ]

    def __str__(self) -> str:
        return self.id
