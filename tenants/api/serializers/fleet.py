"""Engines, their credentials, base models, and quarantined entries of engines' journals."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from tenants.api.serializers.strict import MODEL_NAME, Creator, PatchMixin, StrictMixin
from tenants.billing import decisions
from tenants.models import BaseModel, EngineCredential, IsolationCheck, QuarantinedEntry, User
from tenants.models.adapters import DEFAULTS


class CredentialSerializer(StrictMixin, serializers.ModelSerializer[EngineCredential]):
    """An engine's credential without its text, which cannot be shown again."""

    pools = serializers.ListField(
        child=serializers.RegexField(rf"^{MODEL_NAME.pattern}\Z"),
        allow_null=True,
        allow_empty=False,
        min_length=1,
        max_length=1000,
        required=False,
        help_text="Base models that the engine may serve. null: all.",
    )
    created_by = Creator()

    class Meta:
        model = EngineCredential
        fields = [
            "id", "name", "prefix", "pools", "created_by", "created_at", "last_seen_at",
            "revoked_at",
        ]  # fmt: skip
        read_only_fields = ["prefix", "created_at", "last_seen_at", "revoked_at"]
        validators: list[Any] = []  # uniqueness is checked by the database


class NewCredentialSerializer(CredentialSerializer):
    """A credential with its text, which is shown only once."""

    secret = serializers.CharField(
        read_only=True, help_text="The value of ENGINE_CREDENTIAL. It is shown only once."
    )

    class Meta(CredentialSerializer.Meta):
        fields = [*CredentialSerializer.Meta.fields, "secret"]


class QuarantinedSerializer(serializers.ModelSerializer[QuarantinedEntry]):
    """What an engine reported, cut to the size of the columns. Its content is not trusted."""

    credential = serializers.CharField(
        source="credential.name",
        default=None,
        allow_null=True,
        read_only=True,
        help_text=(
            "Credential of the engine that reported the entry. null: the engine has no "
            "credential of its own."
        ),
    )
    why = serializers.CharField(read_only=True, help_text="Human-readable reason.")
    tenant_id = serializers.SerializerMethodField(help_text="As stated in the entry.")
    key_id = serializers.SerializerMethodField(help_text="As stated in the entry.")
    decided_by = serializers.SlugRelatedField[User](
        slug_field="username",
        read_only=True,
        allow_null=True,
        help_text="Username of the operator who decided. null: undecided, or a deleted user.",
    )

    class Meta:
        model = QuarantinedEntry
        fields = [
            "id", "received_at", "credential", "engine_id", "journal", "request_id", "attempt",
            "tenant_id", "key_id", "prompt_tokens", "completion_tokens", "reason", "why", "detail",
            "status", "decided_at", "decided_by",
        ]  # fmt: skip
        read_only_fields = fields

    def get_tenant_id(self, entry: QuarantinedEntry) -> int | None:
        reported = decisions.reported_entry(entry)
        return reported.account.tenant_id if reported else None

    def get_key_id(self, entry: QuarantinedEntry) -> int | None:
        reported = decisions.reported_entry(entry)
        return reported.account.key_id if reported else None


class DefaultsSerializer(StrictMixin, serializers.Serializer[Any]):
    """Sampling parameters for requests that lack them, named as in OpenAI's API and vLLM."""

    absent = set(DEFAULTS)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        kinds: dict[type, Any] = {float: serializers.FloatField, int: serializers.IntegerField}
        return {
            name: kinds[kind](required=False, min_value=least, max_value=most)
            for name, (kind, least, most) in DEFAULTS.items()
        }

    def to_representation(self, instance: Any) -> Any:
        return dict(instance)


class BaseModelSerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[BaseModel]):
    """A model that engines serve and adapters are based on."""

    defaults = DefaultsSerializer(
        required=False, help_text="Default sampling parameters for requests that do not set them."
    )

    modules = serializers.DictField(
        child=serializers.ListField(child=serializers.IntegerField()),
        read_only=True,
        help_text="[out_features, in_features] of each module that an adapter can target.",
    )

    class Meta:
        model = BaseModel
        fields = [
            "name", "max_model_len", "max_lora_rank", "modules", "engine", "defaults",
            "serves_new", "created_at", "updated_at",
        ]  # fmt: skip
        read_only_fields = [
            "name", "max_model_len", "max_lora_rank", "engine", "created_at", "updated_at",
        ]  # fmt: skip


class EngineSerializer(serializers.Serializer[Any]):
    """An engine that is connected to a gateway.

    Figures over all tenants are only shown to operators. `resident_adapters` are the caller's own;
    operators see all.
    """

    absent = {
        "credential", "revision", "pool_revision", "engine_version", "degraded", "profile", "proof",
        "operations", "parsers",
        "running", "waiting", "queued", "kv_usage", "prompt_tokens", "cached_tokens",
        "completion_tokens", "failures", "last_failure", "refused_suspects",
    }  # fmt: skip
    id = serializers.CharField()
    credential = serializers.CharField(
        required=False, help_text="Credential with which the engine is connected."
    )
    kind = serializers.CharField(help_text="The implementation: `vllm`, `upstream` or `synthetic`.")
    overflow = serializers.BooleanField(
        help_text=(
            "Whether it sends prompts to a server outside of this installation, and takes only "
            "what the installation's own engines are too busy for."
        )
    )
    role = serializers.CharField(
        allow_blank=True,
        help_text=(
            "`prefill`: it only computes prompts, for engines whose role is `decode`. Empty: it "
            "does both by itself."
        ),
    )
    base_model = serializers.CharField()
    max_model_len = serializers.IntegerField()
    max_loras = serializers.IntegerField(help_text="Maximum number of adapters in one batch.")
    max_lora_rank = serializers.IntegerField()
    kv_tokens = serializers.IntegerField(help_text="Capacity of the KV cache.")
    revision = serializers.CharField(
        required=False, help_text="Digest of weights, tokenizer and chat template."
    )
    pool_revision = serializers.CharField(
        required=False,
        help_text=(
            "Digest of `revision`, the engine's version and its start options. Engines "
            "with the same digest can take over requests from each other."
        ),
    )
    engine_version = serializers.CharField(required=False)
    degraded = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="What the engine can't do with its memory or its release of vLLM.",
    )
    profile = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="Named profile that the engine was started with; empty if none.",
    )
    proof = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="Whether `manage.py check_profile` proved it on the engine's hardware.",
    )
    operations = serializers.ListField(child=serializers.CharField(), required=False)
    parsers = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        help_text="vLLM's parsers by purpose, `tool` or `reasoning`.",
    )
    connected_at = serializers.DateTimeField()
    draining = serializers.BooleanField()
    asleep = serializers.BooleanField(
        help_text="Whether it has given its device's memory back until the next request."
    )
    resident_adapters = serializers.ListField(child=serializers.CharField())
    running = serializers.IntegerField(required=False)
    waiting = serializers.IntegerField(required=False)
    queued = serializers.IntegerField(required=False)
    kv_usage = serializers.FloatField(
        required=False, help_text="Fraction of KV blocks in use, 0 to 1."
    )
    prompt_tokens = serializers.IntegerField(required=False)
    cached_tokens = serializers.IntegerField(required=False)
    completion_tokens = serializers.IntegerField(required=False)
    failures = serializers.IntegerField(
        required=False,
        help_text="How often the engine's core died or hung, counted across restarts.",
    )
    last_failure = serializers.CharField(
        required=False, help_text="The last failure: `died` or `hung`. Empty: none."
    )
    refused_suspects = serializers.IntegerField(
        required=False,
        help_text="Requests refused since the engine's start because they made engines fail twice.",
    )


class StartFailureSerializer(serializers.Serializer[Any]):
    """An engine's last failure to start."""

    engine = serializers.CharField()
    credential = serializers.CharField(help_text="The name of the credential that it has.")
    cause = serializers.CharField()
    at = serializers.FloatField(help_text="In seconds since 1970.")


class EnginesSerializer(serializers.Serializer[Any]):
    """All connected engines."""

    absent = {"silent_gateways", "start_failures"}
    count = serializers.IntegerField(min_value=0)
    results = EngineSerializer(many=True)
    start_failures = StartFailureSerializer(
        many=True,
        required=False,
        help_text="Only for operators: engines that could not start in the last hour.",
    )
    silent_gateways = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text=(
            "Only for operators: gateways that did not answer, whose engines are missing "
            "from the list."
        ),
    )


class IsolationCheckSerializer(serializers.ModelSerializer[IsolationCheck]):
    """The last check whether data of one tenant reaches another on a base model's engines."""

    passed = serializers.BooleanField(
        allow_null=True, help_text="null: it could not be made, for the reasons in `findings`."
    )
    findings = serializers.ListField(child=serializers.CharField())
    engines = serializers.ListField(
        child=serializers.CharField(), help_text="Engines that answered."
    )

    class Meta:
        model = IsolationCheck
        fields = ["base_model", "at", "passed", "findings", "engines", "revision"]
