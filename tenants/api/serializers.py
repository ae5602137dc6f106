"""Serializers of the management API. A body with an unknown field is refused, naming the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError as InvalidFields
from django.db import models
from django.http import QueryDict
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.fields import get_error_detail

from tenants.adapters.quota import Storage
from tenants.billing import decisions
from tenants.models import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    BaseModel,
    EngineCredential,
    Invitation,
    Membership,
    Price,
    QuarantinedEntry,
    Role,
    Scope,
    Tenant,
    User,
)
from tenants.models.adapters import DEFAULTS
from tenants.models.usage.prices import MAX_PRICE
from tenants.permissions import Caller

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
                name: told
                for name, value in given.items()
                if (told := _ill_typed(fields[name], value))
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


class Maker(serializers.SlugRelatedField[User]):
    """The username of the user who made an object."""

    def __init__(self, **options: Any) -> None:
        options |= {"slug_field": "username", "read_only": True, "allow_null": True}
        super().__init__(
            help_text=(
                "Username of the creator. null: an API key, or a user who has been deleted."
            ),
            **options,
        )


class TenantSerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[Tenant]):
    """A customer. Only operators set its status, weight and quota."""

    class Meta:
        model = Tenant
        fields = [
            "slug", "name", "status", "weight", "max_stored_bytes", "max_versions", "created_at",
        ]  # fmt: skip

    def validate_slug(self, slug: str) -> str:
        if self.instance is not None and slug != self.instance.slug:
            raise ValidationError("The slug cannot be changed, because adapter names contain it.")
        return slug


class StorageSerializer(serializers.Serializer[Storage]):
    """What a tenant stores, and its quota."""

    stored_bytes = serializers.IntegerField(help_text="Total size of adapter files.")
    max_stored_bytes = serializers.IntegerField()
    versions = serializers.IntegerField(help_text="Number of versions, in any state.")
    max_versions = serializers.IntegerField()


class OneTenantSerializer(TenantSerializer):
    """A tenant, and what it stores."""

    storage = serializers.SerializerMethodField()

    class Meta(TenantSerializer.Meta):
        fields = [*TenantSerializer.Meta.fields, "storage"]

    @extend_schema_field(StorageSerializer)
    def get_storage(self, tenant: Tenant) -> dict[str, int]:
        return StorageSerializer(Storage.of(tenant)).data


class MemberSerializer(StrictMixin, serializers.ModelSerializer[Membership]):
    """A member of a tenant."""

    # Never looked up: a caller must not learn usernames of other tenants' members.
    username = serializers.SlugRelatedField[User](
        slug_field="username", source="user", read_only=True, help_text="Username of the member."
    )

    class Meta:
        model = Membership
        fields = ["id", "username", "role", "created_at"]

    def validate_role(self, role: str) -> Role:
        return Role(role)


class InvitationSerializer(StrictMixin, serializers.ModelSerializer[Invitation]):
    """An invitation without its link, which cannot be shown again."""

    created_by = Maker()

    class Meta:
        model = Invitation
        fields = ["id", "role", "note", "created_by", "created_at", "expires_at"]
        read_only_fields = ["created_at", "expires_at"]


class NewInvitationSerializer(InvitationSerializer):
    """An invitation with its link, which is shown only once."""

    url = serializers.URLField(
        read_only=True, help_text="The invitation link to send. It is shown only once."
    )

    class Meta(InvitationSerializer.Meta):
        fields = [*InvitationSerializer.Meta.fields, "url"]


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
    created_by = Maker()

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
    created_by = Maker()

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
        said = decisions.said(entry)
        return said.account.tenant_id if said else None

    def get_key_id(self, entry: QuarantinedEntry) -> int | None:
        said = decisions.said(entry)
        return said.account.key_id if said else None


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


class AdapterSerializer(PatchMixin, StrictMixin, serializers.ModelSerializer[Adapter]):
    """A LoRA adapter and its aliases."""

    base_model = serializers.SlugRelatedField[BaseModel](slug_field="name", read_only=True)
    created_by = Maker()
    aliases = AliasSerializer(many=True, read_only=True)

    class Meta:
        model = Adapter
        fields = ["name", "base_model", "pinned", "aliases", "created_by", "created_at"]
        read_only_fields = ["name", "created_at"]


class VersionSerializer(serializers.ModelSerializer[AdapterVersion]):
    """An uploaded version, of which only the state and the results of checks change."""

    adapter = serializers.SlugRelatedField[Adapter](slug_field="name", read_only=True)
    aliases = serializers.SerializerMethodField()
    trained_on = serializers.CharField(help_text="The base model that adapter_config.json names.")
    config = serializers.DictField(help_text="Content of adapter_config.json.")
    report = serializers.DictField(help_text="Results of the checks and of the probe.")
    created_by = Maker()

    class Meta:
        model = AdapterVersion
        fields = [
            "adapter", "number", "digest", "state", "aliases", "size_bytes", "trained_on", "config",
            "report", "created_by", "created_at",
        ]  # fmt: skip

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_aliases(self, version: AdapterVersion) -> list[str]:
        return [alias.name for alias in version.aliases.all()]


class PromotionSerializer(StrictMixin, serializers.Serializer[Any]):
    """The version that an alias is to point at."""

    version = serializers.IntegerField(min_value=1, help_text="Number of a ready version.")


class EngineSerializer(serializers.Serializer[Any]):
    """An engine that is connected to a gateway.

    Figures over all tenants are only shown to operators. `resident_adapters` are the caller's own;
    operators see all.
    """

    absent = {
        "credential", "revision", "pool_revision", "engine_version", "operations", "parsers",
        "running", "waiting", "queued", "kv_usage", "prompt_tokens", "cached_tokens",
        "completion_tokens", "failures", "last_failure", "refused_suspects",
    }  # fmt: skip
    id = serializers.CharField()
    credential = serializers.CharField(
        required=False, help_text="Credential with which the engine is connected."
    )
    kind = serializers.CharField(help_text="The implementation: `vllm` or `synthetic`.")
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
    operations = serializers.ListField(child=serializers.CharField(), required=False)
    parsers = serializers.DictField(
        child=serializers.CharField(),
        required=False,
        help_text="vLLM's parsers by purpose, `tool` or `reasoning`.",
    )
    connected_at = serializers.DateTimeField()
    draining = serializers.BooleanField()
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


class EnginesSerializer(serializers.Serializer[Any]):
    """All connected engines."""

    absent = {"silent_gateways"}
    count = serializers.IntegerField(min_value=0)
    results = EngineSerializer(many=True)
    silent_gateways = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text=(
            "Only for operators: gateways that did not answer, whose engines are missing "
            "from the list."
        ),
    )


class OwnAdapter(serializers.SlugRelatedField[Adapter]):
    """The name of an adapter of the tenant that the request is about."""

    default_error_messages = {
        "does_not_exist": "The adapter `{value}` does not exist.",
        "whose": "Name the adapter's tenant with the query parameter `tenant`.",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(slug_field="name", queryset=Adapter.objects.all(), **options)

    def get_queryset(self) -> models.QuerySet[Adapter]:
        caller: Caller | None = self.context["caller"]
        if caller is None:
            self.fail("whose")
        return caller.tenant.adapters.all()


class PriceSerializer(StrictMixin, serializers.ModelSerializer[Price]):
    """A price, in whole micro-units (millionths) of the currency per million tokens."""

    tenant = serializers.SlugRelatedField[Tenant](
        slug_field="slug",
        source="adapter.tenant",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="Tenant of the adapter. null: the price is for a base model.",
    )
    base_model = serializers.SlugRelatedField[BaseModel](
        slug_field="name",
        queryset=BaseModel.objects.all(),
        required=False,
        allow_null=True,
        error_messages={"does_not_exist": "The base model `{value}` does not exist."},
    )
    adapter = OwnAdapter(required=False, allow_null=True)
    starts_at = serializers.DateTimeField(required=False, help_text="Default: now.")
    prompt = serializers.IntegerField(
        min_value=0,
        max_value=MAX_PRICE,
        help_text="Price of prompt tokens that were not in the cache.",
    )
    cached_prompt = serializers.IntegerField(min_value=0, max_value=MAX_PRICE)
    output = serializers.IntegerField(min_value=0, max_value=MAX_PRICE)
    currency = serializers.SerializerMethodField()

    class Meta:
        model = Price
        fields = [
            "id", "tenant", "base_model", "adapter", "tier", "starts_at", "prompt",
            "cached_prompt", "output", "currency", "created_at",
        ]  # fmt: skip
        validators: list[Any] = []  # uniqueness is checked by the database

    def get_currency(self, price: Price) -> str:
        return settings.CURRENCY

    def validate_starts_at(self, at: datetime) -> datetime:
        if at < timezone.now():
            raise ValidationError(
                f"{at.isoformat()} is in the past, for which usage has already been billed."
            )
        return at

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("starts_at", timezone.now())
        try:
            Price(**attrs).clean()
        except InvalidFields as error:
            raise ValidationError(get_error_detail(error)) from error
        return attrs


class LineSerializer(serializers.Serializer[Any]):
    """One sum. Of the grouping fields after `start` it has only those requested by `by`."""

    absent = {"key", "key_name", "member", "adapter", "model", "base_model"}
    start = serializers.DateTimeField(
        help_text="Start of the bucket, or of the period if that is later."
    )
    key = serializers.IntegerField(required=False)
    key_name = serializers.CharField(
        required=False, allow_null=True, help_text="null: the key has been deleted."
    )
    member = serializers.CharField(
        required=False,
        allow_null=True,
        help_text=(
            "Username of the key's creator. null: there is none, or the user has been deleted."
        ),
    )
    adapter = serializers.CharField(
        required=False, allow_null=True, help_text="null: the base model without an adapter."
    )
    model = serializers.CharField(required=False)
    base_model = serializers.CharField(required=False)
    requests = serializers.IntegerField()


class UsageLineSerializer(LineSerializer):
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Prompt tokens that were in the cache.")
    completion_tokens = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField(help_text="Completion tokens used for reasoning.")


class CostLineSerializer(LineSerializer):
    cost = serializers.DecimalField(
        max_digits=38, decimal_places=12, help_text="Exact decimal amount in the currency."
    )
    currency = serializers.CharField()
