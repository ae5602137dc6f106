"""Serializer of the management API for alert rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError as Unacceptable
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from tenants.api.serializers.strict import Creator, StrictMixin
from tenants.models import AlertRule
from tenants.models.alerts import check_threshold

BOTH = ("metric", "threshold")


class AlertRuleSerializer(StrictMixin, serializers.ModelSerializer[AlertRule]):
    """What raises an alert of a tenant, and whether it is raised."""

    created_by = Creator()

    class Meta:
        model = AlertRule
        fields = [
            "id", "name", "metric", "threshold", "minutes", "min_requests", "created_by",
            "created_at", "raised_at",
        ]  # fmt: skip
        read_only_fields = ["created_at", "raised_at"]
        extra_kwargs = {
            "raised_at": {"help_text": "Since when its alert is raised. null: it is not."}
        }

    def validate(self, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """A share of requests is at most all of them; a patch may change either field."""
        try:
            check_threshold(*(attrs.get(name, getattr(self.instance, name, None)) for name in BOTH))
        except Unacceptable as error:
            raise ValidationError(error.message_dict) from error
        return attrs

    def update(self, instance: AlertRule, validated_data: Mapping[str, Any]) -> AlertRule:
        instance.change(**validated_data)
        return instance
