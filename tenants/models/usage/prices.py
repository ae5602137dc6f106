"""Prices: what tokens cost, from when on."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Case, Exists, F, OuterRef, Q, Value, When
from django.utils import timezone

from tenants.errors import PriceInForce

MAX_PRICE = 10**12
"""A million units of the currency per million tokens."""


class PriceQuerySet(models.QuerySet["Price"]):
    def shown(self) -> PriceQuerySet:
        """Prices of base models and of adapters that still exist."""
        return self.filter(Q(base_model__isnull=False) | Q(adapter__name__isnull=False))

    def at(self, now: datetime, *states: str) -> PriceQuerySet:
        """The prices of `shown`, with `state`: `scheduled`, `in force`, or `past` if a later one
        has begun. If `states` are given, only those in one of them.
        """
        same = Q(base_model=OuterRef("base_model")) | Q(adapter=OuterRef("adapter"))
        same &= Q(tier=OuterRef("tier"))
        begun = Price.objects.filter(same, starts_at__lte=now, starts_at__gt=OuterRef("starts_at"))
        state = Case(
            When(starts_at__gt=now, then=Value("scheduled")),
            When(Exists(begun), then=Value("past")),
            default=Value("in force"),
        )
        found = self.shown().annotate(state=state)
        return found.filter(state__in=states) if states else found


class Tier(models.TextChoices):
    """What a price applies to."""

    STANDARD = "standard"
    BATCH = "batch"
    """Lines of batches; without such a price the standard one applies."""
    TRAINING = "training"
    """Tokens that a fine-tuning job trained on, of a base model: `prompt` alone."""
    OVERFLOW = "overflow"
    """What overflow engines answer, of a base model; without such a price the standard one
    applies."""


OF_BASE_MODELS = {
    Tier.TRAINING: "Training has the price of the base model.",
    Tier.OVERFLOW: "Overflow engines have no adapters: set the price of the base model.",
}
"""The tiers of which adapters have no price, and the message for who sets one."""


class Price(models.Model):
    """What tokens of a base model, or of one adapter, cost from `starts_at` on.

    In whole micro-units of the currency per million tokens. An adapter's prices take precedence
    over its base model's. A price that has been in force is never changed: a later one replaces it.
    It outlives its adapter, for requests that are still to be billed.
    """

    base_model = models.ForeignKey(
        "tenants.BaseModel", models.CASCADE, null=True, blank=True, related_name="prices"
    )
    adapter = models.ForeignKey(
        "tenants.Adapter",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="prices",
        db_constraint=False,
    )
    tier = models.CharField(
        max_length=8,
        choices=Tier,
        default=Tier.STANDARD,
        db_default=Tier.STANDARD,
        help_text=(
            "`batch`: for requests of batches, which otherwise cost the standard price. "
            "`training`: for the tokens that fine-tuning jobs on a base model train on, by "
            "`prompt`; the other two are 0. `overflow`: for requests for a base model that "
            "overflow engines answer, which otherwise cost the standard price."
        ),
    )
    starts_at = models.DateTimeField()
    prompt = models.BigIntegerField(help_text="Prompt tokens that were not in the cache.")
    cached_prompt = models.BigIntegerField()
    output = models.BigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    objects = PriceQuerySet.as_manager()

    class Meta:
        ordering = ["-starts_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["base_model", "adapter", "tier", "starts_at"],
                nulls_distinct=False,
                name="price_unique",
            ),
            models.CheckConstraint(
                condition=Q(tier__in=["standard", "batch", "training", "overflow"]),
                name="price_tier_known",
            ),
            models.CheckConstraint(
                condition=Q(base_model__isnull=False, adapter__isnull=True)
                | Q(base_model__isnull=True, adapter__isnull=False),
                name="price_of_one_thing",
            ),
            models.CheckConstraint(
                condition=Q(prompt__gte=0, cached_prompt__gte=0, output__gte=0)
                & Q(prompt__lte=MAX_PRICE, cached_prompt__lte=MAX_PRICE, output__lte=MAX_PRICE),
                name="price_in_bounds",
            ),
            models.CheckConstraint(
                condition=Q(cached_prompt__lte=F("prompt")), name="price_cached_not_dearer"
            ),
            models.CheckConstraint(
                condition=~Q(tier="training")
                | Q(base_model__isnull=False, cached_prompt=0, output=0),
                name="price_of_training",
            ),
            models.CheckConstraint(
                condition=~Q(tier="overflow") | Q(base_model__isnull=False),
                name="price_of_overflow",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter or self.base_model} from {self.starts_at:%Y-%m-%d}"

    def clean(self) -> None:
        """Report violated constraints as form errors."""
        if (self.base_model_id is None) == (self.adapter_id is None):
            raise ValidationError("A price must be for either a base model or an adapter.")
        for name in ("prompt", "cached_prompt", "output"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_PRICE:
                raise ValidationError({name: f"{value} is not from 0 to {MAX_PRICE}."})
        if (self.cached_prompt or 0) > (self.prompt or 0):
            dearer = f"{self.cached_prompt} is more than the price of uncached prompt tokens."
            raise ValidationError({"cached_prompt": dearer})
        if self.adapter_id is not None and self.tier in OF_BASE_MODELS:
            raise ValidationError({"adapter": OF_BASE_MODELS[Tier(self.tier)]})
        if self.tier == Tier.TRAINING:
            self._check_training()

    def _check_training(self) -> None:
        for name in ("cached_prompt", "output"):
            if getattr(self, name):
                message = f"{getattr(self, name)} is not 0: training has the prompt price alone."
                raise ValidationError({name: message})

    def preceding(self) -> Price | None:
        """The price of the same tokens until this one starts, as gateways find it; None if they are
        free until then."""
        base = self.adapter.base_model if self.adapter else self.base_model
        whose = Q(base_model=base)
        if self.adapter:
            whose |= Q(adapter=self.adapter)
        tiers = {self.tier} if self.tier == Tier.TRAINING else {self.tier, Tier.STANDARD}
        found = Price.objects.filter(whose, tier__in=tiers)
        found = found.filter(starts_at__lte=self.starts_at).exclude(pk=self.pk)
        # The adapter's own first, and "batch" and "overflow" before "standard".
        return found.order_by(F("adapter").asc(nulls_last=True), "tier", "-starts_at").first()

    def withdraw(self) -> None:
        """Delete a price that is not in force yet.

        Raises:
            PriceInForce: it is, or was, in force.
        """
        deleted, _ = Price.objects.filter(pk=self.pk, starts_at__gt=timezone.now()).delete()
        if not deleted:
            raise PriceInForce
