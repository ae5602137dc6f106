"""Limits of tenants, keys and adapters, as the operator and the tenant's admins set them."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from tenants.limits import ceilings
from tenants.limits.ceilings import FIELDS, Figures, Sets
from tenants.models.accounts import Tenant
from tenants.models.adapters import Adapter
from tenants.models.keys import ApiKey

MAX_LIMIT = 10**12
"""Keeps all sums exact in the doubles of Redis's scripts."""


def _limit(help_text: str) -> models.BigIntegerField[int | None, int | None]:
    return models.BigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_LIMIT)],
        help_text=help_text,
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

    def clean(self) -> None:
        """Says in a form what the database would refuse (`migrations/0005_limit_notices.py`)."""
        for name, owned in (("key", self.key), ("adapter", self.adapter)):
            if owned is not None and owned.tenant_id != self.tenant_id:
                raise ValidationError({name: f"This is not the tenant's {name}."})

    @property
    def figures(self) -> Figures:
        return {name: getattr(self, name) for name in FIELDS}


@dataclass(frozen=True)
class LimitScope:
    """What a set of limits is for: a tenant as a whole, one of its keys or one of its adapters.

    Without a tenant it is the platform's default.
    """

    tenant: Tenant | None = None
    key: ApiKey | None = None
    adapter: Adapter | None = None

    @property
    def whole(self) -> bool:
        return self.key is None and self.adapter is None

    def sets(self) -> Sets:
        """What each author set here, for a tenant as a whole with the platform's default."""
        rows = LimitSet.objects.filter(tenant=self.tenant, key=self.key, adapter=self.adapter)
        if self.whole:
            rows |= LimitSet.objects.filter(tenant=None)
        return {row.author if row.tenant_id else ceilings.DEFAULT: row.figures for row in rows}

    def ceiling(self) -> Figures:
        """What the tenant's own limits cannot go beyond here; its keys' and adapters' neither
        beyond what the tenant as a whole may have."""
        here = ceilings.ceiling(self.sets())
        if self.whole:
            return here
        return ceilings.least(here, LimitScope(self.tenant).ceiling())

    def store(self, author: LimitSet.Author, figures: Figures) -> None:
        """Set these fields; the author's others stay as they are."""
        LimitSet.objects.update_or_create(
            tenant=self.tenant,
            key=self.key,
            adapter=self.adapter,
            author=author,
            defaults=dict(figures),
        )
