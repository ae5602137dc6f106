"""What all serializers share. A body with an unknown field is refused, naming the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from tenants.models import User

MODEL_NAME = re.compile(r"[^@\s\x00]{1,255}")


Field = serializers.Field[Any, Any, Any, Any]
JSON_TYPES: Mapping[type[Field], tuple[type, ...]] = {
    serializers.CharField: (str,),
    serializers.BooleanField: (bool,),
    serializers.IntegerField: (int, float),
    serializers.FloatField: (int, float),
}


class StrictMixin:
    """Refuses what the serializer would otherwise ignore (unknown and read-only fields) or convert
    contrary to the document (such as a number to a text). In forms every value is text."""

    def to_internal_value(self, data: Any) -> Any:
        fields: Mapping[str, Field] = self.fields  # type: ignore[attr-defined]
        given = data if isinstance(data, Mapping) else {}
        errors = {
            name: "This field is read-only." if name in fields else "Unknown field."
            for name in given
            if name not in fields or fields[name].read_only
        }
        if not errors and not isinstance(data, QueryDict):
            errors = {
                name: message
                for name, value in given.items()
                if (message := _ill_typed(fields[name], value))
            }
        if errors:
            raise ValidationError(errors)
        return super().to_internal_value(data)  # type: ignore[misc]


def _ill_typed(field: Field, value: Any) -> str:
    """The error message if the field would convert a value of another JSON type; else empty."""
    if isinstance(field, serializers.ListField) and isinstance(value, list):
        return next(filter(None, (_ill_typed(field.child, one) for one in value)), "")
    wrong = value is not None and any(
        isinstance(field, kind) and type(value) not in types for kind, types in JSON_TYPES.items()
    )
    return str(field.error_messages["invalid"]) if wrong else ""


class PatchMixin:
    """Writes only the changed columns: writing all of them would undo concurrent changes since the
    row was read, such as a revocation or a suspension."""

    def update(self, instance: Any, validated_data: Mapping[str, Any]) -> Any:
        for name, value in validated_data.items():
            setattr(instance, name, value)
        instance.save(update_fields=validated_data)
        return instance


class Creator(serializers.SlugRelatedField[User]):
    """The username of the user who made an object."""

    def __init__(self, **options: Any) -> None:
        options |= {"slug_field": "username", "read_only": True, "allow_null": True}
        super().__init__(
            help_text=(
                "Username of the creator. null: an API key, or a user who has been deleted."
            ),
            **options,
        )
