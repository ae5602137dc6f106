"""Limits of tenants, keys and adapters, as the operator and the tenant's admins set them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from tenants.limits import ceilings
from tenants.limits.ceilings import Figures, Sets
from tenants.limits.kinds import KINDS, TENANT_KINDS, Kinds, LimitKind
from tenants.models.accounts import Tenant
from tenants.models.adapters import Adapter
from tenants.models.keys import ApiKey

MAX_LIMIT = 10**12
"""Keeps all sums exact in Lua's doubles in the Redis script."""


def add_columns(model: type[models.Model], kinds: Iterable[LimitKind]) -> None:
    """Give a model a column for each of these kinds of limits; null: no limit."""
    for kind in kinds:
        column: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(
            null=True,
            blank=True,
            validators=[MinValueValidator(0), MaxValueValidator(MAX_LIMIT)],
            help_text=kind.help,
        )
        model.add_to_class(kind.name, column)


def in_bounds(kinds: Iterable[LimitKind]) -> models.CheckConstraint:
    """No column is below 0 or above MAX_LIMIT."""
    each = (
        Q(**{f"{kind.name}__isnull": True})
        | Q(**{f"{kind.name}__gte": 0, f"{kind.name}__lte": MAX_LIMIT})
        for kind in kinds
    )
    return models.CheckConstraint(condition=Q(*each), name="limits_in_bounds")


class LimitSet(models.Model):
    """The limits that one author set on one scope; null: no limit. `add_columns` adds the columns.

    The scope is a key, an adapter, or else the whole tenant; without a tenant the row is the
    platform's default, which applies to every tenant for which the operator set nothing else. The
    lesser of the operator's limit (the ceiling) and the tenant's own is in force.
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
            in_bounds(KINDS.values()),
            models.CheckConstraint(
                condition=Q(trained_tokens_per_day__isnull=True)
                | Q(
                    trained_tokens_per_day__gte=0,
                    trained_tokens_per_day__lte=MAX_LIMIT,
                    key=None,
                    adapter=None,
                ),
                name="limits_of_training",
            ),
        ]

    def __str__(self) -> str:
        scope = self.key or self.adapter or self.tenant or "platform default"
        return f"{scope} ({self.author})"

    def clean(self) -> None:
        """Report as a form error what the database would refuse (`sql/guards.sql`)."""
        for name, owned in (("key", self.key), ("adapter", self.adapter)):
            if owned is not None and owned.tenant_id != self.tenant_id:
                raise ValidationError({name: f"The {name} does not belong to the tenant."})

    @property
    def figures(self) -> Figures:
        return {name: getattr(self, name) for name in TENANT_KINDS}


add_columns(LimitSet, TENANT_KINDS.values())


@dataclass(frozen=True)
class LimitScope:
    """What a set of limits applies to: a whole tenant, one of its keys or one of its adapters.

    Without a tenant it is the platform's default.
    """

    tenant: Tenant | None = None
    key: ApiKey | None = None
    adapter: Adapter | None = None

    @property
    def whole(self) -> bool:
        return self.key is None and self.adapter is None

    @property
    def kinds(self) -> Kinds:
        """The kinds of limits that there are here."""
        return TENANT_KINDS if self.whole else KINDS

    @property
    def id(self) -> str:
        """As `interfaces.directory.Limits.scope_id`; only for the scopes of a tenant."""
        if self.key is not None:
            return f"k{self.key.counted_as}"
        if self.adapter is not None:
            return f"a{self.adapter.pk}"
        assert self.tenant is not None
        return f"t{self.tenant.pk}"

    def sets(self) -> Sets:
        """What each author set here; for a whole tenant also the platform's default."""
        rows = LimitSet.objects.filter(tenant=self.tenant, key=self.key, adapter=self.adapter)
        if self.whole:
            rows |= LimitSet.objects.filter(tenant=None)
        return {row.author if row.tenant_id else ceilings.DEFAULT: row.figures for row in rows}

    def ceiling(self) -> Figures:
        """The limits that the tenant's own cannot exceed here. Those of keys and adapters are also
        bounded by the ceiling of the whole tenant."""
        here = ceilings.ceiling(self.sets(), self.kinds)
        if self.whole:
            return here
        return ceilings.least(here, LimitScope(self.tenant).ceiling())

    def store(self, author: LimitSet.Author, figures: Figures) -> None:
        """Set these fields; the author's other fields stay as they are."""
        LimitSet.objects.update_or_create(
            tenant=self.tenant,
            key=self.key,
            adapter=self.adapter,
            author=author,
            defaults=dict(figures),
        )
