"""API keys, and what a key may grant to another."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from tenants.api.serializers.strict import MODEL_NAME, Creator, PatchMixin, StrictMixin
from tenants.models import ApiKey, Scope
from tenants.permissions import Caller


class KeySerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[ApiKey]):
    """A key without its text, which cannot be shown again."""

    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=Scope.choices), allow_empty=False, min_length=1
    )
    models = serializers.ListField(
        child=serializers.RegexField(
            rf"^{MODEL_NAME.pattern}\Z",
            error_messages={"invalid": "Not a valid model name. Leave out the version."},
        ),
        source="allowed_models",
        allow_null=True,
        allow_empty=False,
        min_length=1,
        max_length=1000,
        required=False,
        help_text="Models that this key may use, without versions. null: all.",
    )
    created_by = Creator()

    class Meta:
        model = ApiKey
        fields = [
            "id", "name", "prefix", "scopes", "models", "lane", "keeps_nothing", "expires_at",
            "last_used_at", "created_by", "created_at", "revoked_at",
        ]  # fmt: skip
        read_only_fields = ["prefix", "last_used_at", "created_at", "revoked_at"]

    def validate_scopes(self, scopes: list[str]) -> list[str]:
        caller: Caller = self.context["caller"]
        beyond = sorted(set(scopes) - caller.key_scopes)
        if beyond:
            raise ValidationError(
                f"You cannot grant scopes that you do not have: {', '.join(beyond)}."
            )
        return sorted(set(scopes))

    def validate_models(self, models: list[str] | None) -> list[str] | None:
        return None if models is None else sorted(set(models))

    def validate_expires_at(self, at: datetime | None) -> datetime | None:
        if at is not None and at <= timezone.now():
            raise ValidationError("The time must be in the future.")
        return at

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """A key that manages keys cannot give another key more models or a later expiry than it
        has, nor let it keep content if it keeps none itself."""
        key = self.context["caller"].key
        if key is not None:
            _require_within(key, {**_limits(self.instance), **attrs})
        return attrs


def _limits(key: Any) -> dict[str, Any]:
    names = ("allowed_models", "expires_at", "keeps_nothing")
    return {name: getattr(key, name) for name in names} if key else {}


def _require_within(key: ApiKey, attrs: dict[str, Any]) -> None:
    models, expires_at = attrs.get("allowed_models"), attrs.get("expires_at")
    if key.allowed_models is not None and not set(models or ["*"]) <= set(key.allowed_models):
        allowed = ", ".join(key.allowed_models)
        raise ValidationError(
            {"models": f"Must be among the models that your own key may use: {allowed}."}
        )
    if key.expires_at is not None and (expires_at is None or expires_at > key.expires_at):
        latest = key.expires_at.isoformat()
        raise ValidationError(
            {"expires_at": f"Must not be later than the expiry of your own key, {latest}."}
        )
    if key.keeps_nothing and not attrs.get("keeps_nothing"):
        raise ValidationError(
            {"keeps_nothing": "Must be true, because your own key has it set to true."}
        )


class NewKeySerializer(KeySerializer):
    """A key with its text, which is shown only once."""

    secret = serializers.CharField(
        read_only=True, help_text="The API key itself. It is shown only once."
    )

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "secret"]
