"""The kinds of engine that were seen; `tenants.directory.pools` says what they are for."""

from __future__ import annotations

from django.db import models

from tenants.models.adapters import BaseModel


class PoolRevision(models.Model):
    """A kind of engine: which weights it has of a base model, what runs it and what it can do.

    `digest` is `ModelInfo.pool_digest`; `revision` the digest of weights, tokenizer and chat
    template, empty where engines don't say. `modules` is as in `BaseModel`.
    """

    base_model = models.ForeignKey(BaseModel, models.CASCADE, related_name="revisions")
    digest = models.CharField(max_length=64)
    revision = models.CharField(max_length=64, blank=True)
    engine = models.CharField(max_length=32)
    engine_version = models.CharField(max_length=64, blank=True)
    max_model_len = models.PositiveIntegerField()
    max_lora_rank = models.PositiveIntegerField()
    modules = models.JSONField(default=dict)
    operations = models.JSONField(default=list)
    parsers = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()

    class Meta:
        ordering = ["-seen_at"]
        constraints = [
            models.UniqueConstraint(fields=["base_model", "digest"], name="pool_revision_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.base_model}@{self.digest[:12]}"
