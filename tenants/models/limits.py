"""Limits of tenants, keys and adapters, as the operator and the tenant's admins set them."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from tenants.models.accounts import Tenant
from tenants.models.adapters import Adapter
from tenants.models.keys import ApiKey

FIELDS = (
    "requests_per_minute",
    "tokens_per_minute",
    "prompt_tokens_per_minute",
    "output_tokens_per_minute",
    "concurrent_streams",
    "tokens_per_day",
    "tokens_per_month",
    "cost_per_day",
    "cost_per_month",
)
"""As in `inference.grants.Limits`."""
MAX_LIMIT = 10**12
"""Keeps all sums exact in the doubles of Redis's scripts."""


def _limit(help_text: str) -> models.BigIntegerField[int | None, int | None]:
    return models.BigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(0)], help_text=help_text
    )


class LimitSet(models.Model):
    """The limits that one author set on one scope; null: none.

    The scope is a key, an adapter, else the tenant as a whole; without a tenant the row is the
    platform's default, which holds for every tenant where the operator set nothing else. In force
    is the lesser of the operator's (the ceiling) and the tenant's own.
    """

    class Author(models.TextChoices):
        OPERATOR = "operator"
        TENANT = "tenant"

    tenant = models.ForeignKey(
        Tenant, models.CASCADE, null=True, blank=True, related_name="limit_sets"
    )
    key = models.ForeignKey(
        ApiKey, models.CASCADE, null=True, blank=True, related_name="limit_sets"
    )
    adapter = models.ForeignKey(
        Adapter, models.CASCADE, null=True, blank=True, related_name="limit_sets"
    )
    author = models.CharField(max_length=16, choices=Author)
    requests_per_minute = _limit("Requests in any minute.")
    tokens_per_minute = _limit("Prompt and output tokens in any minute.")
    prompt_tokens_per_minute = _limit("Prompt tokens that were not in the cache, in any minute.")
    output_tokens_per_minute = _limit("Generated tokens in any minute.")
    concurrent_streams = _limit("Requests that run or wait at the same time.")
    tokens_per_day = _limit("Prompt and output tokens in a day of UTC.")
    tokens_per_month = _limit("Prompt and output tokens in a month of UTC.")
    cost_per_day = _limit("Micro-units of the currency in a day of UTC.")
    cost_per_month = _limit("Micro-units of the currency in a month of UTC.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "key", "adapter", "author"],
                nulls_distinct=False,
                name="limits_once_per_author",
            ),
            models.CheckConstraint(
                condition=Q(author__in=["operator", "tenant"]), name="limits_author_known"
            ),
            models.CheckConstraint(
                condition=Q(key__isnull=True) | Q(adapter__isnull=True), name="limits_of_one_scope"
            ),
            models.CheckConstraint(
                condition=Q(tenant__isnull=False)
                | Q(key__isnull=True, adapter__isnull=True, author="operator"),
                name="limits_default_is_the_operators",
            ),
            models.CheckConstraint(
                condition=Q(
                    *(
                        Q(**{f"{name}__isnull": True})
                        | Q(**{f"{name}__gte": 0, f"{name}__lte": MAX_LIMIT})
                        for name in FIELDS
                    )
                ),
                name="limits_in_bounds",
            ),
        ]

    def __str__(self) -> str:
        scope = self.key or self.adapter or self.tenant or "platform default"
        return f"{scope} ({self.author})"
