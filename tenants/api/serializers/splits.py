"""Splits of aliases, with the figures of their guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError as InvalidFields
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import get_error_detail

from inference.splitting import StickyBy
from tenants.api.serializers.strict import Creator, StrictMixin
from tenants.models import AdapterVersion, Split
from tenants.models.evals import EvalStatus
from tenants.models.splits import (
    FIELDS,
    HEADER,
    MAX_SECONDS,
    MAX_STEPS,
    MAX_WEIGHT,
    NUMBERS,
    GuardKind,
    check_guards,
    check_weights,
)
from tenants.splits.judge import GuardVerdict


class GuardSerializer(StrictMixin, serializers.Serializer[Any]):
    """What is compared between the two versions."""

    kind = serializers.ChoiceField(
        choices=GuardKind.choices,
        help_text="`errors`: requests that failed, not through a fault of their own. `cuts`: "
        "answers that ended at their maximum length. `slow`: first tokens after `seconds`. "
        "`structure`: answers that do not follow the JSON schema or the tools of their request. "
        "`score`: the mean of a score that requests are given.",
    )
    margin = serializers.FloatField(
        required=False,
        min_value=0.0,
        max_value=1.0,
        help_text="How much worse the candidate may be: a share of requests, or of a score's "
        "range. 0.02 by default.",
    )
    seconds = serializers.FloatField(
        required=False, min_value=0.01, max_value=MAX_SECONDS, help_text="Only of `slow`."
    )
    name = serializers.CharField(required=False, help_text="Only of `score`: its name.")
    low = serializers.FloatField(
        required=False, help_text="Only of `score`: the worst value, 0 by default."
    )
    high = serializers.FloatField(
        required=False, help_text="Only of `score`: the best value, 1 by default."
    )


class SplitArmSerializer(serializers.Serializer[Any]):
    """One version's requests that count for a guard."""

    requests = serializers.IntegerField()
    mean = serializers.FloatField(
        allow_null=True, help_text="A share, or the mean score. null: no requests."
    )


class GuardFiguresSerializer(serializers.Serializer[Any]):
    """What a guard has found."""

    id = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    margin = serializers.FloatField()
    verdict = serializers.ChoiceField(choices=[one.value for one in GuardVerdict])
    difference = serializers.FloatField(
        help_text="Positive if the candidate is worse; of a score, a share of its range."
    )
    low = serializers.FloatField(help_text="Lower end of the difference's interval.")
    high = serializers.FloatField(help_text="Upper end of the difference's interval.")
    stable = SplitArmSerializer()
    candidate = SplitArmSerializer()


class SplitFiguresSerializer(serializers.Serializer[Any]):
    """What was found until `at`."""

    at = serializers.DateTimeField(allow_null=True, help_text="null: nothing yet.")
    requests = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="Requests of the stable version, and of the candidate.",
    )
    guards = GuardFiguresSerializer(many=True)


class ShownGuardSerializer(serializers.Serializer[Any]):
    """A guard; fields that its kind lacks are null."""

    kind = serializers.ChoiceField(choices=GuardKind.choices)
    margin = serializers.FloatField()
    seconds = serializers.FloatField(allow_null=True)
    name = serializers.CharField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)


class SplitEvalSerializer(serializers.Serializer[Any]):
    """The run of the eval that the alias requires, which was started for the split."""

    id = serializers.CharField()
    eval = serializers.CharField(source="eval_id")
    status = serializers.ChoiceField(choices=EvalStatus.choices)


class SplitSerializer(serializers.ModelSerializer[Split]):
    """Requests of an alias, of which a share gets the candidate."""

    adapter = serializers.SlugRelatedField[Any](slug_field="name", read_only=True)
    stable = serializers.SlugRelatedField[AdapterVersion](slug_field="number", read_only=True)
    candidate = serializers.SlugRelatedField[AdapterVersion](slug_field="number", read_only=True)
    weights = serializers.ListField(child=serializers.IntegerField())
    guards = serializers.SerializerMethodField()
    figures = SplitFiguresSerializer()
    shadow_key = serializers.IntegerField(
        source="shadow_key_id",
        allow_null=True,
        help_text="Id of the key to which copies are billed; null if it is no shadow.",
    )
    eval_run = SplitEvalSerializer(allow_null=True)
    created_by = Creator()

    class Meta:
        model = Split
        fields = [
            "id", "adapter", "alias", "stable", "candidate", "state", "reason", "weight", "weights",
            "min_requests", "max_requests", "max_hours", "sticky", "header", "guards", "rolls_back",
            "promotes", "shadow_key", "figures", "eval_run", "created_by", "created_at", "ended_at",
        ]  # fmt: skip

    @extend_schema_field(ShownGuardSerializer(many=True))
    def get_guards(self, split: Split) -> list[dict[str, Any]]:
        return [
            dict.fromkeys(NUMBERS) | {"name": None} | {"kind": str(guard.kind)}
            | {name: getattr(guard, name) for name in FIELDS[guard.kind]}
            for guard in split.parsed_guards
        ]  # fmt: skip


class SplitPlanSerializer(StrictMixin, serializers.ModelSerializer[Split]):
    """A split to start."""

    version = serializers.IntegerField(
        min_value=1, help_text="Number of the candidate, a ready version."
    )
    weights = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=99),
        required=False,
        min_length=1,
        max_length=MAX_STEPS,
        help_text="Percent of the keys that get the candidate, in increasing order.",
    )
    sticky = serializers.ChoiceField(
        choices=[one.value for one in StickyBy],
        required=False,
        help_text="What requests that get the same version have in common.",
    )
    header = serializers.RegexField(
        HEADER,
        required=False,
        allow_blank=True,
        help_text="Name of the header with the key, if `sticky` is `header`.",
    )
    guards = GuardSerializer(many=True, required=False, allow_empty=False)
    shadow_key = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        help_text="Id of a key: the candidate gets copies of requests, which are billed to it and "
        "whose answers nobody sees.",
    )

    class Meta:
        model = Split
        fields = [
            "version", "weights", "min_requests", "max_requests", "max_hours", "sticky", "header",
            "guards", "rolls_back", "promotes", "shadow_key",
        ]  # fmt: skip

    def validate_weights(self, weights: list[int]) -> list[int]:
        _require(check_weights, weights)
        return weights

    def validate_guards(self, guards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        _require(check_guards, guards)
        return guards


class SplitWeightSerializer(StrictMixin, serializers.Serializer[Any]):
    """A weight, which need not be in the plan. 0 gives the candidate nothing."""

    weight = serializers.IntegerField(min_value=0, max_value=MAX_WEIGHT)


def _require(check: Callable[[Any], None], given: Any) -> None:
    try:
        check(given)
    except InvalidFields as error:
        raise ValidationError(get_error_detail(error)) from error
