"""Serializers of the management API for metrics and the list of requests."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.gateway.measuring.measures import DURATION_S
from tenants.api.serializers.annotations import ScoreSerializer
from tenants.billing.money import amount
from tenants.listing import ListEntry
from tenants.models.usage.listed import Outcome

OR_NULL: dict[str, Any] = {"read_only": True, "allow_null": True}
"""Options of a field that is null if one of the objects on the way to it is None."""
BOUNDS = ", ".join(f"{bound:g}" for bound in DURATION_S)


class MetricsLineSerializer(serializers.Serializer[Any]):
    """The figures of one group. Of the grouping fields after `start` it has only those requested by
    `by`."""

    absent = {
        "key", "key_name", "adapter", "version", "base_model", "outcome", "code", "limit_kind",
        "limit_scope",
    }  # fmt: skip
    start = serializers.DateTimeField(help_text="Start of the bucket.")
    key = serializers.IntegerField(required=False)
    key_name = serializers.CharField(
        required=False, allow_null=True, help_text="null: the key has been deleted."
    )
    adapter = serializers.CharField(
        required=False,
        allow_null=True,
        help_text="null: the base model without an adapter, or unknown.",
    )
    version = serializers.IntegerField(
        required=False,
        allow_null=True,
        help_text="null: the base model without an adapter, unknown, or a deleted version.",
    )
    base_model = serializers.CharField(
        required=False,
        allow_null=True,
        help_text="null: unknown, because the request was refused before its model was resolved.",
    )
    outcome = serializers.CharField(
        required=False, help_text="`completed`, `cancelled`, `refused` or `failed`."
    )
    code = serializers.CharField(required=False, help_text="The finish reason or the error code.")
    limit_kind = serializers.CharField(
        required=False,
        allow_null=True,
        help_text="Kind of the limit that refused the requests. null: none did.",
    )
    limit_scope = serializers.CharField(
        required=False,
        allow_null=True,
        help_text="Scope of that limit: `tenant`, `key` or `adapter`.",
    )
    requests = serializers.IntegerField()
    completed = serializers.IntegerField()
    cancelled = serializers.IntegerField()
    refused = serializers.IntegerField()
    failed = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Prompt tokens that were in the cache.")
    output_tokens = serializers.IntegerField()
    conformed = serializers.IntegerField(
        help_text="Answers that follow the JSON schema, or the tools, of their request."
    )
    malformed = serializers.IntegerField(help_text="Answers that do not.")
    unchecked = serializers.IntegerField(
        help_text="Answers that should, but were cut, or were too large or took too long to check."
    )
    cost = serializers.DecimalField(
        max_digits=38,
        decimal_places=12,
        help_text="As observed by gateways. Billed costs are at `/api/v1/costs`.",
    )
    currency = serializers.CharField()
    output_tokens_per_s = serializers.FloatField(
        allow_null=True, help_text="Average speed of an answer after its first token."
    )
    ttft_p50_s = serializers.FloatField(allow_null=True)
    ttft_p95_s = serializers.FloatField(allow_null=True)
    total_p50_s = serializers.FloatField(allow_null=True)
    total_p95_s = serializers.FloatField(allow_null=True)
    first_tokens = serializers.ListField(
        child=serializers.IntegerField(),
        help_text=(
            "Histogram of times to first token: the number of requests in each bucket. "
            f"The upper bounds are {BOUNDS} seconds; the last bucket has none. Histograms "
            "can be added up, percentiles cannot."
        ),
    )
    totals = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="The same histogram of the total times of completed requests.",
    )


class TextOrNull(serializers.CharField):
    """A text in an answer; null if it is empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**OR_NULL, **options)

    def to_representation(self, value: str) -> Any:
        return super().to_representation(value) or None


class RequestSerializer(serializers.Serializer[ListEntry]):
    """One request. Figures from an engine are null if it never reached one."""

    id = serializers.CharField(
        source="event.id", help_text="The value of `x-request-id` without `req_`."
    )
    started_at = serializers.DateTimeField(source="event.started_at")
    outcome = serializers.ChoiceField(choices=Outcome.values)
    status = serializers.IntegerField(help_text="HTTP status. 499: the client disconnected.")
    code = serializers.CharField(help_text="The finish reason or the error code.")
    message = TextOrNull(help_text="The error message that the client received.")
    limit_kind = TextOrNull(
        source="error.limit_kind",
        help_text="Kind of the limit that refused the request. null: none did.",
    )
    limit_scope = TextOrNull(
        source="error.limit_scope", help_text="Scope of that limit: `tenant`, `key` or `adapter`."
    )
    key = serializers.IntegerField(source="event.key_id")
    model = TextOrNull(
        source="event.model",
        help_text="The model's name as the request had it, or the one that its route chose. null: "
        "it was not read.",
    )
    route = TextOrNull(
        source="billed.route", help_text="Name of the route that chose the model, if one did."
    )
    adapter = TextOrNull(source="event.adapter")
    base_model = TextOrNull(source="event.base_model")
    engine = TextOrNull(source="billed.engine_id")
    overflow = serializers.BooleanField(
        source="billed.overflow",
        help_text="Whether an overflow engine ran it, whose server is outside this installation.",
        **OR_NULL,
    )
    prompt_tokens = serializers.IntegerField(source="billed.prompt_tokens", **OR_NULL)
    cached_tokens = serializers.IntegerField(source="billed.cached_tokens", **OR_NULL)
    output_tokens = serializers.IntegerField(source="billed.completion_tokens", **OR_NULL)
    is_estimated = serializers.BooleanField(
        source="billed.is_estimated",
        help_text="Whether the tokens are an estimate: the engine's server did not say them.",
        **OR_NULL,
    )
    cost = serializers.SerializerMethodField()
    currency = serializers.SerializerMethodField()
    ttft_s = serializers.FloatField(source="billed.ttft_s", **OR_NULL)
    total_s = serializers.FloatField(source="event.total_s")
    trace_id = TextOrNull(
        source="event.trace_id", help_text="Id of the request's OpenTelemetry trace, if it has one."
    )
    tags = serializers.ListField(child=serializers.CharField())
    scores = serializers.SerializerMethodField()

    @extend_schema_field(ScoreSerializer(many=True))
    def get_scores(self, entry: ListEntry) -> Any:
        scores = self.context["scores"].get(entry.event.id, [])
        return ScoreSerializer(scores, many=True).data

    @extend_schema_field(serializers.DecimalField(max_digits=38, decimal_places=12))
    def get_cost(self, entry: ListEntry) -> str:
        return amount(entry.billed.cost if entry.billed else 0)

    @extend_schema_field(serializers.CharField())
    def get_currency(self, entry: ListEntry) -> str:
        return str(settings.CURRENCY)


class AttemptSerializer(serializers.Serializer[Any]):
    """One attempt of a request on an engine. The highest attempt is billed: its tokens include
    those of lower ones that it continued from. If the engine died the times are unknown: they are
    0."""

    attempt = serializers.IntegerField(
        help_text=(
            "Increasing number: from 1 at the first gateway; from a higher thousand after "
            "another gateway continued the request, and in batches."
        )
    )
    engine = serializers.CharField(source="engine_id")
    finish_reason = serializers.CharField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Prompt tokens that were in the cache.")
    output_tokens = serializers.IntegerField(source="completion_tokens")
    inherited_tokens = serializers.IntegerField(
        help_text="Output tokens that lower attempts generated."
    )
    given_s = serializers.FloatField(
        help_text=(
            "Seconds from the gateway's admission of the request until it was dispatched "
            "to the engine. The other times start there."
        )
    )
    queue_s = serializers.FloatField(help_text="Seconds in the engine's queue.")
    load_s = serializers.FloatField(help_text="Seconds until the adapter was loaded.")
    ttft_s = serializers.FloatField(
        allow_null=True,
        help_text=(
            "Time to first token. Like `total_s`, of the whole request if the attempt "
            "inherited tokens."
        ),
    )
    total_s = serializers.FloatField()


class OneRequestSerializer(RequestSerializer):
    """One request with its attempts."""

    attempts = serializers.SerializerMethodField(
        help_text="In order, the billed attempt last. Empty if no engine received the request."
    )

    @extend_schema_field(AttemptSerializer(many=True))
    def get_attempts(self, entry: ListEntry) -> Any:
        tried = entry.billed.attempts() if entry.billed else []
        return AttemptSerializer(tried, many=True).data


class RequestsSerializer(serializers.Serializer[Any]):
    """One page of the list."""

    next = serializers.URLField(
        allow_null=True,
        help_text=(
            "URL of the next page, null at the end. Earlier pages may also have fewer "
            "than `limit` results or none, because each page searches only a limited "
            "number of requests."
        ),
    )
    results = RequestSerializer(many=True)
