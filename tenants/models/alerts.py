"""Alert rules: what a tenant wants to be told of while its requests go wrong or are slow.

An alert is raised once, and resolved once after the rule was quiet for as long as its window, so a
figure that swings around the threshold is one alert. `tenants.notifications.alerts` measures.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from tenants.errors import TooManyRules
from tenants.models.accounts import Tenant, User

MAX_RULES = 20
MAX_MINUTES, MAX_PERCENT, MAX_MS = 60, 100.0, 600_000.0
MAX_REQUESTS = 1_000_000
TOO_MUCH = "Must be below 100 percent of the requests."
LEAST_QUIET = timedelta(minutes=5)


class Metric(models.TextChoices):
    """What a rule watches; `threshold` is in percent, or in milliseconds."""

    ERROR_SHARE = "error_share", "Requests that fail or are refused (%)"
    TTFT_P95 = "ttft_p95", "TTFT p95 (ms)"


class AlertEvent(models.TextChoices):
    RAISED = "raised"
    RESOLVED = "resolved"


class AlertRuleQuerySet(models.QuerySet["AlertRule"]):
    def add(self, tenant: Tenant, by: User | None, **fields: Any) -> AlertRule:
        """Create a rule.

        Raises:
            TooManyRules: there are MAX_RULES.
        """
        with transaction.atomic():
            Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # serializes the count
            if self.filter(tenant=tenant).count() >= MAX_RULES:
                raise TooManyRules
            return self.create(tenant=tenant, created_by=by, **fields)


class AlertRule(models.Model):
    """A figure of the tenant's requests in the last `minutes`, and the value that is too much. It
    is not judged from fewer than `min_requests`."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="alert_rules")
    name = models.CharField(max_length=60)
    metric = models.CharField(max_length=16, choices=Metric)
    threshold = models.FloatField(
        validators=[MinValueValidator(0.0), MaxValueValidator(MAX_MS)],
        help_text="The alert is raised above this: percent of requests, or milliseconds.",
    )
    minutes = models.PositiveSmallIntegerField(
        default=5,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_MINUTES)],
        help_text="How many minutes are looked at.",
    )
    min_requests = models.PositiveIntegerField(
        default=20,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_REQUESTS)],
        help_text="Fewer requests in these minutes raise no alert.",
    )
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    raised_at = models.DateTimeField(null=True, editable=False)
    """Since when its alert is raised; None: it is not."""
    exceeded_at = models.DateTimeField(null=True, editable=False)
    """When the figure was last above the threshold, while the alert is raised."""

    objects = AlertRuleQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(threshold__gte=0.0, threshold__lte=MAX_MS), name="alert_threshold"
            ),
            models.CheckConstraint(
                condition=Q(minutes__gte=1, minutes__lte=MAX_MINUTES), name="alert_minutes"
            ),
            models.CheckConstraint(
                condition=Q(raised_at__isnull=True, exceeded_at__isnull=True)
                | Q(raised_at__isnull=False, exceeded_at__isnull=False),
                name="alert_raised_and_exceeded",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        check_threshold(self.metric, self.threshold)

    @property
    def quiet(self) -> timedelta:
        """How long the figure has to be below the threshold before the alert is resolved."""
        return max(timedelta(minutes=self.minutes), LEAST_QUIET)

    def judge(self, value: float | None, now: datetime) -> AlertEvent | None:
        """Raise or resolve the alert for this value (None: too few requests); saves nothing."""
        if value is not None and value > self.threshold:
            self.exceeded_at = now
            if self.raised_at is None:
                self.raised_at = now
                return AlertEvent.RAISED
        elif self.exceeded_at is not None and now - self.exceeded_at >= self.quiet:
            self.raised_at = self.exceeded_at = None
            return AlertEvent.RESOLVED
        return None

    def change(self, **fields: Any) -> None:
        """Change it, and end its alert: the new rule is judged from the start."""
        for name, value in fields.items():
            setattr(self, name, value)
        self.raised_at = self.exceeded_at = None
        self.save(update_fields=[*fields, "raised_at", "exceeded_at"])


def check_threshold(metric: str, threshold: float | None) -> None:
    """Raises ValidationError for a share above all requests."""
    if metric == Metric.ERROR_SHARE and threshold is not None and threshold >= MAX_PERCENT:
        raise ValidationError({"threshold": TOO_MUCH})
