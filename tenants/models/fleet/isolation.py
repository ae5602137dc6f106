"""Results of the isolation checks."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class IsolationCheckQuerySet(models.QuerySet["IsolationCheck"]):
    def latest_of_each(self) -> IsolationCheckQuerySet:
        """The last check of each base model, by its name."""
        return self.order_by("base_model", "-at", "-id").distinct("base_model")


class IsolationCheck(models.Model):
    """One run of `tenants.isolation` on one base model; written once.

    `passed` is null if the check could not be made, for the reasons in `findings`. `engines` are
    those that answered.
    """

    at = models.DateTimeField(db_default=Now())
    base_model = models.CharField(max_length=255)
    passed = models.BooleanField(null=True)
    findings = models.JSONField(default=list)
    engines = models.JSONField(default=list)
    revision = models.CharField(max_length=64, blank=True, db_default="")
    """The digest of the `PoolRevision` that gave all answers; empty if several did, or none."""

    objects = IsolationCheckQuerySet.as_manager()

    class Meta:
        ordering = ["-at"]
        indexes = [models.Index(fields=["base_model", "-at"], name="isolation_by_model")]

    def __str__(self) -> str:
        return f"{self.base_model} {self.at:%Y-%m-%d %H:%M}: {self.state}"

    @property
    def state(self) -> str:
        """`isolated`, `leaks` or `not checked`."""
        return "not checked" if self.passed is None else "isolated" if self.passed else "leaks"
