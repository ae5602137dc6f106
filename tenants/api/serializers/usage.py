"""Prices and sums of usage."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError as InvalidFields
from django.db import models
from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import get_error_detail

from tenants.api.serializers.strict import StrictMixin
from tenants.models import Adapter, BaseModel, Price, Tenant
from tenants.models.usage.prices import MAX_PRICE
from tenants.permissions import Caller


class OwnAdapter(serializers.SlugRelatedField[Adapter]):
    """The name of an adapter of the tenant that the request is about."""

    default_error_messages = {
        "does_not_exist": "The adapter `{value}` does not exist.",
        "whose": "Name the adapter's tenant with the query parameter `tenant`.",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(slug_field="name", queryset=Adapter.objects.all(), **options)

    def get_queryset(self) -> models.QuerySet[Adapter]:
        caller: Caller | None = self.context["caller"]
        if caller is None:
            self.fail("whose")
        return caller.tenant.adapters.all()


class PriceSerializer(StrictMixin, serializers.ModelSerializer[Price]):
    """A price, in whole micro-units (millionths) of the currency per million tokens."""

    tenant = serializers.SlugRelatedField[Tenant](
        slug_field="slug",
        source="adapter.tenant",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="Tenant of the adapter. null: the price is for a base model.",
    )
    base_model = serializers.SlugRelatedField[BaseModel](
        slug_field="name",
        queryset=BaseModel.objects.all(),
        required=False,
        allow_null=True,
        error_messages={"does_not_exist": "The base model `{value}` does not exist."},
    )
    adapter = OwnAdapter(required=False, allow_null=True)
    starts_at = serializers.DateTimeField(required=False, help_text="Default: now.")
    prompt = serializers.IntegerField(
        min_value=0,
        max_value=MAX_PRICE,
        help_text="Price of prompt tokens that were not in the cache.",
    )
    cached_prompt = serializers.IntegerField(min_value=0, max_value=MAX_PRICE)
    output = serializers.IntegerField(min_value=0, max_value=MAX_PRICE)
    currency = serializers.SerializerMethodField()

    class Meta:
        model = Price
        fields = [
            "id", "tenant", "base_model", "adapter", "tier", "starts_at", "prompt",
            "cached_prompt", "output", "currency", "created_at",
        ]  # fmt: skip
        validators: list[Any] = []  # uniqueness is checked by the database

    def get_currency(self, price: Price) -> str:
        return settings.CURRENCY

    def validate_starts_at(self, at: datetime) -> datetime:
        if at < timezone.now():
            raise ValidationError(
                f"{at.isoformat()} is in the past, for which usage has already been billed."
            )
        return at

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("starts_at", timezone.now())
        try:
            Price(**attrs).clean()
        except InvalidFields as error:
            raise ValidationError(get_error_detail(error)) from error
        return attrs


class LineSerializer(serializers.Serializer[Any]):
    """One sum. Of the grouping fields after `start` it has only those requested by `by`."""

    absent = {"key", "key_name", "member", "adapter", "model", "base_model"}
    start = serializers.DateTimeField(
        help_text="Start of the bucket, or of the period if that is later."
    )
    key = serializers.IntegerField(required=False)
    key_name = serializers.CharField(
        required=False, allow_null=True, help_text="null: the key has been deleted."
    )
    member = serializers.CharField(
        required=False,
        allow_null=True,
        help_text=(
            "Username of the key's creator. null: there is none, or the user has been deleted."
        ),
    )
    adapter = serializers.CharField(
        required=False, allow_null=True, help_text="null: the base model without an adapter."
    )
    model = serializers.CharField(required=False)
    base_model = serializers.CharField(required=False)
    requests = serializers.IntegerField()


class UsageLineSerializer(LineSerializer):
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Prompt tokens that were in the cache.")
    completion_tokens = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField(help_text="Completion tokens used for reasoning.")


class CostLineSerializer(LineSerializer):
    cost = serializers.DecimalField(
        max_digits=38, decimal_places=12, help_text="Exact decimal amount in the currency."
    )
    currency = serializers.CharField()
