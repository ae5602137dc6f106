"""Revisions of each base model that were seen on engines, which adapters passed on them, and how
requests fared there. `tenants.directory.pools` explains what they are for."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from tenants.errors import RevisionInRollout
from tenants.models.adapters import AdapterVersion, BaseModel


class Standing(models.TextChoices):
    """How a revision is used."""

    SERVING = "serving"
    WAITING = "waiting"
    """For a rollout. Takes over when no engine of a serving revision is connected."""
    WITHDRAWN = "withdrawn"
    """A rollout of it failed or was aborted: it gets no requests."""


class PoolRevision(models.Model):
    """A kind of engine: its weights of a base model, its software and its capabilities.

    `digest` is `ModelInfo.pool_digest`; `revision` the digest of weights, tokenizer and chat
    template, empty if engines do not report it. `modules` is as in `BaseModel`.
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
    standing = models.CharField(
        max_length=16,
        choices=Standing,
        default=Standing.SERVING,
        db_default=Standing.SERVING,
        help_text=(
            "`serving`: serves tenants. `waiting`: waits for a rollout, and takes over if "
            "no engine of a serving revision is connected. `withdrawn`: receives no "
            "requests."
        ),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()

    class Meta:
        ordering = ["-seen_at"]
        constraints = [
            models.UniqueConstraint(fields=["base_model", "digest"], name="pool_revision_unique"),
            models.CheckConstraint(
                condition=Q(standing__in=["serving", "waiting", "withdrawn"]),
                name="pool_revision_standing_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.base_model}@{self.digest[:12]}"

    @property
    def short(self) -> str:
        """The name by which people know it."""
        return self.digest[:12]

    def stand(self, standing: Standing) -> None:
        """Change its standing, immediately and for all tenants.

        Raises:
            RevisionInRollout: an open rollout of it decides its standing.
        """
        with transaction.atomic():
            BaseModel.objects.select_for_update().get(pk=self.base_model_id)
            if self.rollouts.filter(state__in=("running", "paused")).exists():
                raise RevisionInRollout
            self.standing = standing
            self.save(update_fields=["standing"])

    def cannot_take(self, version: AdapterVersion) -> str:
        """Why it cannot load an adapter version; empty if it can."""
        rank, targets = version.config.get("r", 0), version.config.get("target_modules", ())
        if rank > self.max_lora_rank:
            return (
                f"The adapter's rank is {rank}; this revision supports at most "
                f"{self.max_lora_rank}."
            )
        known = {path.rpartition(".")[2] for path in self.modules}
        if missing := [name for name in targets if name not in known]:
            return f"This revision lacks the modules {', '.join(missing)}."
        return ""


class Trial(models.Model):
    """The trial of an adapter version on a revision. The version is never sent to a revision on
    which it did not pass.

    `report` is the result of the probe, or why the version cannot be loaded there.
    """

    version = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="trials")
    revision = models.ForeignKey(PoolRevision, models.CASCADE, related_name="trials")
    passed = models.BooleanField()
    report = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(fields=["version", "revision"], name="trial_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.version} {'passed' if self.passed else 'failed'} on {self.revision}"

    @property
    def reason(self) -> str:
        """Why it failed; empty if that is unknown."""
        reason: str = self.report.get("reason", "")
        return reason


class RevisionMinute(models.Model):
    """How requests fared on a revision in one minute, over all gateways; counts attempts.

    Gateways add to it (`tenants.directory.registry`); `first_tokens` is as in
    `inference.gateway.measuring.traffic.Traffic`.
    """

    revision = models.ForeignKey(PoolRevision, models.CASCADE, related_name="minutes")
    minute = models.DateTimeField()
    requests = models.PositiveBigIntegerField(default=0)
    errors = models.PositiveBigIntegerField(default=0)
    first_tokens = ArrayField(models.BigIntegerField())

    class Meta:
        ordering = ["minute"]
        constraints = [
            models.UniqueConstraint(fields=["revision", "minute"], name="revision_minute_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.revision} {self.minute:%H:%M}: {self.requests}"
