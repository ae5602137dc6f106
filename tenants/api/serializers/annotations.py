"""Serializers of the management API for tags and scores of requests."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as Unacceptable
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from tenants.api.serializers.strict import Creator, StrictMixin
from tenants.models import RequestScore, RequestTag
from tenants.models.annotations import MAX_COMMENT, MAX_NUMBER, WORD, ScoreValue

WORD_SCHEMA = {"type": "string", "pattern": f"^{WORD.pattern}$"}


@extend_schema_field(
    {
        "oneOf": [
            {"type": "number", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER},
            {"type": "boolean"},
            WORD_SCHEMA,
        ]
    }
)
class ScoreField(serializers.Field[Any, Any, Any, Any]):
    """A number, a boolean or a category."""

    def to_internal_value(self, data: Any) -> ScoreValue:
        try:
            return ScoreValue.of(data)
        except Unacceptable as error:
            raise ValidationError(error.messages) from error

    def to_representation(self, value: Any) -> Any:
        return value


class ScoreSerializer(StrictMixin, serializers.ModelSerializer[RequestScore]):
    """A score of a request."""

    value = ScoreField(help_text="A number, a boolean, or a category in the form of a name.")
    comment = serializers.CharField(
        required=False, allow_blank=True, max_length=MAX_COMMENT, trim_whitespace=False
    )
    created_by = Creator()

    class Meta:
        model = RequestScore
        fields = ["id", "name", "value", "comment", "source", "created_by", "created_at"]
        read_only_fields = ["source", "created_at"]
        extra_kwargs = {
            "source": {"help_text": "`evaluator`: an API key. One score of a name for each source."}
        }


class TagSerializer(StrictMixin, serializers.ModelSerializer[RequestTag]):
    """A tag of a request."""

    created_by = Creator()

    class Meta:
        model = RequestTag
        fields = ["name", "created_by", "created_at"]
        read_only_fields = ["created_at"]
