"""Adapters, their versions and aliases."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from tenants.api.serializers.strict import Creator, PatchMixin, StrictMixin
from tenants.models import Adapter, AdapterVersion, Alias, BaseModel, PromotionGate


class AliasSerializer(serializers.ModelSerializer[Alias]):
    """A name that points at a version, given by its number."""

    version = serializers.SlugRelatedField[AdapterVersion](slug_field="number", read_only=True)
    previous = serializers.SlugRelatedField[AdapterVersion](
        slug_field="number",
        read_only=True,
        allow_null=True,
        help_text="The version that a roll back restores. null: there is none.",
    )

    class Meta:
        model = Alias
        fields = ["name", "version", "previous", "changed_at"]


class GateSerializer(serializers.ModelSerializer[PromotionGate]):
    """What a version must reach before the alias may point at it."""

    eval = serializers.CharField(source="eval_id", read_only=True, help_text="Id of the eval.")
    eval_name = serializers.CharField(source="eval.label", read_only=True)

    class Meta:
        model = PromotionGate
        fields = ["alias", "eval", "eval_name", "min_pass_rate", "created_at"]


class GateRequestSerializer(StrictMixin, serializers.Serializer[Any]):
    """What the alias is to require."""

    eval = serializers.CharField(max_length=32, help_text="Id of the eval.")
    min_pass_rate = serializers.FloatField(
        max_value=1.0,
        help_text="The share of rows that must pass in the last finished run of the eval on the "
        "version, above 0 and at most 1.",
    )


class AdapterSerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[Adapter]):
    """A LoRA adapter and its aliases."""

    base_model = serializers.SlugRelatedField[BaseModel](slug_field="name", read_only=True)
    created_by = Creator()
    aliases = AliasSerializer(many=True, read_only=True)
    gates = GateSerializer(many=True, read_only=True)

    class Meta:
        model = Adapter
        fields = [
            "name", "base_model", "pinned", "short_lived", "aliases", "gates", "created_by",
            "created_at",
        ]  # fmt: skip
        read_only_fields = ["name", "short_lived", "created_at"]


class VersionSerializer(serializers.ModelSerializer[AdapterVersion]):
    """An uploaded version, of which only the state and the results of checks change."""

    adapter = serializers.SlugRelatedField[Adapter](slug_field="name", read_only=True)
    aliases = serializers.SerializerMethodField()
    trained_on = serializers.CharField(help_text="The base model that adapter_config.json names.")
    converted = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()),
        help_text="What was changed for the engines, by file; the hub has the file as it was sent"
        " in `original/`.",
    )
    left_out = serializers.ListField(
        child=serializers.CharField(),
        help_text="Files that were sent with it and not read, by name.",
    )
    config = serializers.DictField(help_text="Content of adapter_config.json.")
    report = serializers.DictField(help_text="Results of the checks and of the probe.")
    created_by = Creator()
    expires_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="null: it does not expire."
    )

    class Meta:
        model = AdapterVersion
        fields = [
            "adapter", "number", "digest", "state", "aliases", "size_bytes", "trained_on",
            "converted", "left_out", "config", "report", "created_by", "created_at", "expires_at",
        ]  # fmt: skip

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_aliases(self, version: AdapterVersion) -> list[str]:
        return [alias.name for alias in version.aliases.all()]


class PromotionSerializer(StrictMixin, serializers.Serializer[Any]):
    """The version that an alias is to point at."""

    version = serializers.IntegerField(min_value=1, help_text="Number of a ready version.")
