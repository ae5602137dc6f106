"""Serializers of the management API for metrics and the list of requests."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.gateway.measuring.measures import DURATION_S
from tenants.billing.money import amount
from tenants.listing import Entry
from tenants.models.usage.listed import Outcome

BOUNDS = ", ".join(f"{bound:g}" for bound in DURATION_S)


class MetricsLineSerializer(serializers.Serializer[Any]):
    """The figures of one group. Of the grouping fields after `start` it has only those requested by
    `by`."""

    absent = {
        "key", "key_name", "adapter", "version", "base_model", "outcome", "code", "limit_kind",
        "limit_scope",
    }  # fmt: skip
    start = serializers.DateTimeField(help_text="Of the bucket.")
    key = serializers.IntegerField(required=False)
    key_name = serializers.CharField(
        required=False, allow_null=True, help_text="null: the key was deleted."
    )
    adapter = serializers.CharField(
        required=False, allow_null=True, help_text="null: the base model itself, or not known."
    )
    version = serializers.IntegerField(
        required=False,
        allow_null=True,
        help_text="null: the base model itself, not known, or the version was deleted.",
    )
    base_model = serializers.CharField(
        required=False, allow_null=True, help_text="null: not known; it was refused before."
    )
    outcome = serializers.CharField(
        required=False, help_text="`completed`, `cancelled`, `refused` or `failed`."
    )
    code = serializers.CharField(required=False, help_text="The finish reason, or the error's.")
    limit_kind = serializers.CharField(
        required=False, allow_null=True, help_text="Of the limit that refused, if one did."
    )
    limit_scope = serializers.CharField(
        required=False, allow_null=True, help_text="`tenant`, `key` or `adapter`."
    )
    requests = serializers.IntegerField()
    completed = serializers.IntegerField()
    cancelled = serializers.IntegerField()
    refused = serializers.IntegerField()
    failed = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Of the prompt tokens.")
    output_tokens = serializers.IntegerField()
    cost = serializers.DecimalField(
        max_digits=38,
        decimal_places=12,
        help_text="As gateways saw it; what is billed is at `/api/v1/costs`.",
    )
    currency = serializers.CharField()
    output_tokens_per_s = serializers.FloatField(
        allow_null=True, help_text="Of an answer, after its first token."
    )
    ttft_p50_s = serializers.FloatField(allow_null=True)
    ttft_p95_s = serializers.FloatField(allow_null=True)
    total_p50_s = serializers.FloatField(allow_null=True)
    total_p95_s = serializers.FloatField(allow_null=True)
    first_tokens = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="How many requests had their first token within which time: of each bucket, whose"
        f" upper bounds are {BOUNDS} seconds, and one more. To be added up; percentiles aren't.",
    )
    totals = serializers.ListField(
        child=serializers.IntegerField(), help_text="The same of the whole time of completed ones."
    )


class RequestSerializer(serializers.Serializer[Entry]):
    """One request. Figures from an engine are null if it never reached one."""

    id = serializers.CharField(source="event.id", help_text="As `x-request-id` has it after req_.")
    started_at = serializers.DateTimeField(source="event.started_at")
    outcome = serializers.ChoiceField(choices=Outcome.values)
    status = serializers.IntegerField(help_text="Of HTTP; 499: the client went away.")
    code = serializers.CharField(help_text="The finish reason, or the error's code.")
    message = serializers.SerializerMethodField(help_text="The error's, as its client got it.")
    limit_kind = serializers.SerializerMethodField(help_text="Of the limit that refused it.")
    limit_scope = serializers.SerializerMethodField(help_text="`tenant`, `key` or `adapter`.")
    key = serializers.IntegerField(source="event.key_id")
    model = serializers.SerializerMethodField(help_text="As written; null: that was not read.")
    adapter = serializers.SerializerMethodField()
    base_model = serializers.SerializerMethodField()
    engine = serializers.SerializerMethodField()
    prompt_tokens = serializers.SerializerMethodField()
    cached_tokens = serializers.SerializerMethodField()
    output_tokens = serializers.SerializerMethodField()
    cost = serializers.SerializerMethodField()
    currency = serializers.SerializerMethodField()
    ttft_s = serializers.SerializerMethodField()
    total_s = serializers.FloatField(source="event.total_s")
    trace_id = serializers.SerializerMethodField(help_text="Of its OpenTelemetry trace, if traced.")

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_trace_id(self, entry: Entry) -> str | None:
        return entry.event.trace_id or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_message(self, entry: Entry) -> str | None:
        return entry.message or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_limit_kind(self, entry: Entry) -> str | None:
        return (entry.error and entry.error.limit_kind) or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_limit_scope(self, entry: Entry) -> str | None:
        return (entry.error and entry.error.limit_scope) or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_model(self, entry: Entry) -> str | None:
        return entry.event.model or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_adapter(self, entry: Entry) -> str | None:
        return entry.event.adapter or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_base_model(self, entry: Entry) -> str | None:
        return entry.event.base_model or None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_engine(self, entry: Entry) -> str | None:
        return entry.billed.engine_id if entry.billed else None

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_prompt_tokens(self, entry: Entry) -> int | None:
        return entry.billed.prompt_tokens if entry.billed else None

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_cached_tokens(self, entry: Entry) -> int | None:
        return entry.billed.cached_tokens if entry.billed else None

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_output_tokens(self, entry: Entry) -> int | None:
        return entry.billed.completion_tokens if entry.billed else None

    @extend_schema_field(serializers.DecimalField(max_digits=38, decimal_places=12))
    def get_cost(self, entry: Entry) -> str:
        return amount(entry.billed.cost if entry.billed else 0)

    @extend_schema_field(serializers.CharField())
    def get_currency(self, entry: Entry) -> str:
        return str(settings.CURRENCY)

    @extend_schema_field(serializers.FloatField(allow_null=True))
    def get_ttft_s(self, entry: Entry) -> float | None:
        return entry.billed.ttft_s if entry.billed else None


class AttemptSerializer(serializers.Serializer[Any]):
    """One attempt of a request on an engine. The highest attempt is billed: its tokens include
    those of lower ones that it continued from. If the engine died the times are unknown: they are
    0."""

    attempt = serializers.IntegerField(
        help_text="Rising: from 1 at the gateway that took it, from a higher thousand where "
        "another went on with it, and in batches."
    )
    engine = serializers.CharField(source="engine_id")
    finish_reason = serializers.CharField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Of the prompt tokens.")
    output_tokens = serializers.IntegerField(source="completion_tokens")
    inherited_tokens = serializers.IntegerField(
        help_text="Of the output tokens, those that lower attempts generated."
    )
    given_s = serializers.FloatField(
        help_text="From when the gateway took the request until the engine was given it; the other "
        "times count from there."
    )
    queue_s = serializers.FloatField(help_text="In the engine's queue.")
    load_s = serializers.FloatField(help_text="Until its adapter was loaded.")
    ttft_s = serializers.FloatField(
        allow_null=True, help_text="The whole request's where it inherited tokens, like `total_s`."
    )
    total_s = serializers.FloatField()


class OneRequestSerializer(RequestSerializer):
    """One request with its attempts."""

    attempts = serializers.SerializerMethodField(
        help_text="In order, the billed one last; none where no engine had it."
    )

    @extend_schema_field(AttemptSerializer(many=True))
    def get_attempts(self, entry: Entry) -> Any:
        tried = entry.billed.attempts() if entry.billed else []
        return AttemptSerializer(tried, many=True).data


class RequestsSerializer(serializers.Serializer[Any]):
    """One page of the list."""

    next = serializers.URLField(
        allow_null=True,
        help_text="The next page; null at the end. A page may have fewer than `limit`, or none, "
        "before that: where little matches, each looks through so many requests only.",
    )
    results = RequestSerializer(many=True)
