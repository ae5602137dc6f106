"""Routes, with what their last fit gained."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.routes import MAX_OPTIONS
from tenants.api.serializers.strict import Creator, StrictMixin
from tenants.billing.money import amount
from tenants.models import Route
from tenants.models.routes import MAX_MODEL


@extend_schema_field(serializers.DecimalField(max_digits=38, decimal_places=12))
class MeanCost(serializers.Field[Any, Any, Any, Any]):
    """The mean of costs, exact to a pico-unit; a difference may be negative."""

    def to_representation(self, value: float) -> str:
        return f"{'-' if value < 0 else ''}{amount(round(abs(value)))}"


class RouteOptionSerializer(serializers.Serializer[Any]):
    """One option on all held-out rows."""

    model = serializers.CharField()
    run = serializers.CharField(help_text="The run of the eval whose answers these are.")
    quality = serializers.FloatField(help_text="Share of rows that passed.")
    cost = MeanCost(help_text="Mean cost of a row.")
    share = serializers.FloatField(help_text="Share of rows that the route gave it.")


class RouteDifferenceSerializer(serializers.Serializer[Any]):
    """A difference of the route, with its 95 % interval."""

    value = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()


class RouteCostDifferenceSerializer(serializers.Serializer[Any]):
    """A difference of the route's mean cost of a row, with its 95 % interval."""

    value = MeanCost()
    low = MeanCost()
    high = MeanCost()


class RouteReportSerializer(serializers.Serializer[Any]):
    """What the last fit gained, on rows that it was not fitted on."""

    options = RouteOptionSerializer(many=True)
    best = serializers.IntegerField(
        help_text="Place in `options` of the best single one, by the training rows."
    )
    training_rows = serializers.IntegerField()
    held_out_rows = serializers.IntegerField()
    left_out = serializers.IntegerField(help_text="Rows that lack an answer of an option.")
    threshold = serializers.FloatField(
        help_text="How much less likely than the best option the chosen one may be to pass; of a "
        "cascade, the mean log-probability from which the first option's answer stays."
    )
    quality = serializers.FloatField(help_text="Share of rows that passed with the route.")
    cost = MeanCost(help_text="Mean cost of a row with the route.")
    control_quality = serializers.FloatField(
        help_text="The same with the same shares of the options, assigned at random."
    )
    control_cost = MeanCost()
    choice_ms = serializers.FloatField(
        help_text="CPU time of a choice in milliseconds, which is all that the route itself costs. "
        "A cascade costs first answers that do not stay, which are in the costs."
    )
    quality_difference = RouteDifferenceSerializer(help_text="To the best single option.")
    cost_difference = RouteCostDifferenceSerializer(help_text="To the best single option.")
    control_difference = RouteDifferenceSerializer(help_text="Of the quality, to the control.")


class RouteSerializer(StrictMixin, serializers.ModelSerializer[Route]):
    """A name under which the cheapest sufficient of several models answers."""

    options = serializers.ListField(
        child=serializers.CharField(max_length=MAX_MODEL),
        min_length=2,
        max_length=MAX_OPTIONS,
        help_text="Base models or adapters, from the cheapest on.",
    )
    answers_if_off = serializers.CharField(
        read_only=True,
        help_text="The option that answers while it is off, and requests without a text.",
    )
    eval = serializers.CharField(
        source="eval_id", read_only=True, allow_null=True, help_text="What it was last fitted on."
    )
    is_being_fitted = serializers.BooleanField(read_only=True)
    report = serializers.SerializerMethodField()
    created_by = Creator()

    class Meta:
        model = Route
        fields = [
            "name", "options", "method", "margin", "is_on", "reason", "answers_if_off", "eval",
            "is_being_fitted", "fitted_at", "gains", "report", "created_by", "created_at",
        ]  # fmt: skip
        read_only_fields = ["is_on", "reason", "fitted_at", "gains", "created_at"]

    @extend_schema_field(RouteReportSerializer(allow_null=True))
    def get_report(self, route: Route) -> Any:
        if (report := route.report) is None:
            return None
        runs = report["runs"]
        options = [one | {"run": runs[one["model"]]} for one in report["options"]]
        return RouteReportSerializer(report | {"options": options}).data


class RouteFitRequestSerializer(StrictMixin, serializers.Serializer[Any]):
    """What to fit a route on."""

    eval = serializers.CharField(
        max_length=64,
        help_text="Id of an eval. Each option must have a completed run of it, on the same rows.",
    )
