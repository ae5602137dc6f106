"""Serializers of the management API for revisions of base models and their rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError as InvalidFields
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import get_error_detail

from tenants.api.serializers.strict import Creator, PatchMixin, StrictMixin
from tenants.models import PoolRevision, Rollout, RolloutTenant, Tenant
from tenants.models.fleet.rollouts import MAX_STEPS, check_steps
from tenants.rollouts import progress


class RevisionSerializer(StrictMixin, serializers.ModelSerializer[PoolRevision]):
    """A kind of engine of one base model: its weights, its software and how it was started."""

    base_model = serializers.SlugRelatedField[Any](slug_field="name", read_only=True)
    engines = serializers.SerializerMethodField(
        help_text="Number of engines that accept new requests."
    )
    tried = serializers.IntegerField(
        source="trials_passed",
        read_only=True,
        help_text="Adapter versions that passed their test on this revision.",
    )
    failed = serializers.IntegerField(
        source="trials_failed",
        read_only=True,
        help_text="Adapter versions that failed their test on this revision.",
    )
    parsers = serializers.DictField(
        child=serializers.CharField(),
        read_only=True,
        help_text="vLLM's parsers by purpose, `tool` or `reasoning`.",
    )
    operations = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta:
        model = PoolRevision
        fields = [
            "id", "base_model", "digest", "revision", "engine", "engine_version", "max_model_len",
            "max_lora_rank", "operations", "parsers", "standing", "engines", "tried", "failed",
            "created_at", "seen_at",
        ]  # fmt: skip
        read_only_fields = [name for name in fields if name != "standing"]

    @extend_schema_field(serializers.IntegerField(min_value=0))
    def get_engines(self, revision: PoolRevision) -> int:
        engines: Mapping[str, int] = self.context["engines"]
        return engines.get(revision.digest, 0)

    def update(self, instance: PoolRevision, validated_data: Mapping[str, Any]) -> PoolRevision:
        if "standing" in validated_data:
            instance.stand(validated_data["standing"])
        return instance


class SideSerializer(serializers.Serializer[Any]):
    """Recent results of requests."""

    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]
    error_percent = serializers.FloatField()
    ttft_p95_s = serializers.FloatField(
        allow_null=True,
        help_text=(
            "Upper bound of the 95th percentile of times to first token. null: too few requests."
        ),
    )


class ProgressSerializer(serializers.Serializer[Any]):
    """The progress of a rollout, by its last evaluation and present figures."""

    waits_for = serializers.CharField(
        help_text="What the next step is waiting for. Empty: nothing."
    )
    tenants = serializers.IntegerField()
    moved = serializers.IntegerField(help_text="Tenants on the new revision.")
    untried = serializers.IntegerField(
        help_text="Live adapters that must be tested before the next step."
    )
    behind = serializers.ListField(
        child=serializers.CharField(),
        help_text=(
            "Tenants that cannot move because an adapter failed on the new revision. "
            "Incomplete if there are many."
        ),
    )
    behind_count = serializers.IntegerField()
    old = SideSerializer(
        help_text="Results on the present revisions since one hour before the rollout."
    )
    new = SideSerializer(
        help_text="Results on the new revision at this weight, of at most the last 10 minutes."
    )


class RolloutSerializer(StrictMixin, serializers.ModelSerializer[Rollout]):
    """Tenants of a base model move to a new revision of it, by weight."""

    revision = serializers.PrimaryKeyRelatedField[PoolRevision](
        queryset=PoolRevision.objects.all(), help_text="Id of a revision in the state `waiting`."
    )
    base_model = serializers.SlugRelatedField[Any](slug_field="name", read_only=True)
    steps = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=100),
        required=False,
        min_length=1,
        max_length=MAX_STEPS,
        help_text="Weights in percent, in increasing order; the last is 100.",
    )
    created_by = Creator()
    progress = serializers.SerializerMethodField()

    class Meta:
        model = Rollout
        fields = [
            "id", "base_model", "revision", "state", "weight", "steps", "step_s", "min_requests",
            "max_error_percent", "max_ttft_ratio", "needs_isolation", "reason", "progress",
            "created_by", "created_at", "stepped_at", "ended_at",
        ]  # fmt: skip
        read_only_fields = ["state", "weight", "reason", "created_at", "stepped_at", "ended_at"]

    def validate_steps(self, steps: list[int]) -> list[int]:
        try:
            check_steps(steps)
        except InvalidFields as error:
            raise ValidationError(get_error_detail(error)) from error
        return steps

    @extend_schema_field(ProgressSerializer)
    def get_progress(self, rollout: Rollout) -> dict[str, Any]:
        return progress.report(rollout)

    def create(self, validated_data: dict[str, Any]) -> Rollout:
        return Rollout.objects.start(**validated_data)


class WeightSerializer(StrictMixin, serializers.Serializer[Any]):
    """A weight, which need not be in the plan."""

    weight = serializers.IntegerField(min_value=0, max_value=100)


class TurnSerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[RolloutTenant]):
    """A tenant that moves first, whatever the weight, or last, when the rollout is finished."""

    tenant = serializers.SlugRelatedField[Tenant](slug_field="slug", read_only=True)

    class Meta:
        model = RolloutTenant
        fields = ["tenant", "turn"]
