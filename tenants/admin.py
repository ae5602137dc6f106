"""The stock Django admin, for operators. What the platform itself keeps is shown, not edited."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime
from django.contrib.auth.admin import UserAdmin
from django.db import models
from django.http import HttpRequest
from django.utils import timezone

from tenants.limits.kinds import KINDS
from tenants.models import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    AuditActor,
    AuditEntry,
    BaseModel,
    Conversation,
    EngineJournal,
    GatewayProcess,
    IdempotentAnswer,
    Invitation,
    IsolationCheck,
    LimitSet,
    Membership,
    Price,
    Scope,
    Tenant,
    UploadSession,
    UsageEvent,
    UsageMonth,
    UsageRollup,
    UsageSum,
    User,
)

if TYPE_CHECKING:
    TenantAdminBase = admin.ModelAdmin[Tenant]
    MembershipAdminBase = admin.ModelAdmin[Membership]
    KeyAdminBase = admin.ModelAdmin[ApiKey]
    KeyFormBase = forms.ModelForm[ApiKey]
    LimitsAdminBase = admin.ModelAdmin[LimitSet]
    PriceAdminBase = admin.ModelAdmin[Price]
    PriceFormBase = forms.ModelForm[Price]
    AnyAdmin = admin.ModelAdmin[models.Model]
else:
    TenantAdminBase = MembershipAdminBase = KeyAdminBase = admin.ModelAdmin
    LimitsAdminBase = PriceAdminBase = AnyAdmin = admin.ModelAdmin
    KeyFormBase = PriceFormBase = forms.ModelForm

admin.site.site_header = admin.site.site_title = "Lorikeet"
admin.site.register(User, UserAdmin)


@admin.register(Tenant)
class TenantAdmin(TenantAdminBase):
    list_display = ["slug", "name", "status", "weight", "created_at"]
    list_filter = ["status"]
    search_fields = ["slug", "name"]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        return ["slug", "created_at"] if obj else ["created_at"]  # adapters are named by the slug

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False  # suspend it: its bills remain


@admin.register(Membership)
class MembershipAdmin(MembershipAdminBase):
    list_display = ["user", "tenant", "role", "created_at"]
    list_filter = ["role"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__username", "tenant__slug"]
    autocomplete_fields = ["user", "tenant"]

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> list[str]:
        return ["user", "tenant"] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: Membership | None = None) -> bool:
        # One at a time, so that the last owner is seen.
        return obj is not None and not obj.is_last_owner()


class KeyForm(KeyFormBase):
    scopes = forms.MultipleChoiceField(choices=Scope.choices, widget=forms.CheckboxSelectMultiple)

    class Meta:
        model = ApiKey
        fields = ["tenant", "name", "scopes", "allowed_models", "lane", "expires_at"]

    def clean_allowed_models(self) -> list[str] | None:
        return self.cleaned_data["allowed_models"] or None


@admin.register(ApiKey)
class ApiKeyAdmin(KeyAdminBase):
    form = KeyForm
    list_display = [
        "name",
        "tenant",
        "prefix",
        "scopes",
        "lane",
        "last_used_at",
        "expires_at",
        "revoked_at",
    ]
    list_filter = [("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["tenant"]
    search_fields = ["name", "prefix", "tenant__slug"]
    autocomplete_fields = ["tenant"]
    actions = ["revoke"]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        shown = ["prefix", "created_by", "created_at", "last_used_at", "revoked_at"]
        return ["tenant", *shown] if obj else []

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            obj.save(update_fields=form.changed_data)  # it may have been revoked meanwhile
            return
        assert isinstance(request.user, User)
        obj.created_by = request.user
        text = obj.set_new_secret()
        obj.save()
        messages.warning(request, f"The key, shown this once: {text}")

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False  # revoke it: its usage keeps its name

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, keys: models.QuerySet[ApiKey]) -> None:
        for key in keys:
            key.revoke()
        messages.success(request, f"Revoked: {', '.join(map(str, keys))}")


@admin.register(LimitSet)
class LimitSetAdmin(LimitsAdminBase):
    list_display = ["__str__", "tenant", "key", "adapter", "author", *KINDS, "updated_at"]
    list_filter = ["author"]
    list_select_related = ["tenant", "key", "adapter__tenant"]
    search_fields = ["tenant__slug", "key__name", "key__prefix", "adapter__name"]
    autocomplete_fields = ["tenant", "key", "adapter"]

    def get_readonly_fields(self, request: HttpRequest, obj: LimitSet | None = None) -> list[str]:
        return ["tenant", "key", "adapter", "author"] if obj else []


class Shown(AnyAdmin):
    """Seen, not edited: the platform or the API writes it."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(BaseModel)
class BaseModelAdmin(Shown):
    list_display = ["name", "engine", "max_model_len", "max_lora_rank", "updated_at"]
    search_fields = ["name"]


@admin.register(Adapter)
class AdapterAdmin(Shown):
    list_display = ["name", "tenant", "base_model", "pinned", "created_by", "created_at"]
    list_filter = ["pinned"]
    readonly_fields = ["name", "tenant", "base_model", "created_by", "created_at"]
    list_select_related = ["tenant", "base_model", "created_by"]
    search_fields = ["name", "tenant__slug"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return AnyAdmin.has_change_permission(self, request, obj)  # to pin it


@admin.register(AdapterVersion)
class AdapterVersionAdmin(Shown):
    list_display = ["adapter", "number", "state", "digest", "size_bytes", "created_at"]
    list_filter = ["state"]
    list_select_related = ["adapter__tenant"]
    search_fields = ["adapter__name", "adapter__tenant__slug", "digest"]


@admin.register(UploadSession)
class UploadSessionAdmin(Shown):
    list_display = [
        "id", "tenant", "adapter_name", "file_name", "length_bytes", "created_at", "expires_at",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    search_fields = ["adapter_name", "tenant__slug"]


@admin.register(Alias)
class AliasAdmin(Shown):
    list_display = ["name", "version", "previous", "changed_at"]
    list_select_related = ["version__adapter__tenant", "previous__adapter__tenant"]
    search_fields = ["name", "adapter__name", "adapter__tenant__slug"]


@admin.register(UsageEvent)
class UsageEventAdmin(Shown):
    """Found by id alone: a list of all of them would read the whole ledger."""

    list_display = [
        "started_at", "tenant", "model", "prompt_tokens", "cached_tokens", "completion_tokens",
        "cost", "finish_reason", "ttft_s", "total_s", "engine_id",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    search_fields = ["id"]
    search_help_text = "The id of a request, as x-request-id shows it."
    show_full_result_count = False

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet[models.Model], search_term: str
    ) -> tuple[models.QuerySet[models.Model], bool]:
        return queryset.filter(pk=search_term.strip().removeprefix("req_")), False


class SumsAdmin(Shown):
    list_display = [
        "tenant", "key_id", "model", "requests", "prompt_tokens", "cached_tokens",
        "completion_tokens", "cost",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    search_fields = ["tenant__slug", "model"]
    show_full_result_count = False


@admin.register(UsageRollup)
class UsageRollupAdmin(SumsAdmin):
    list_display = ["hour", *SumsAdmin.list_display]


@admin.register(UsageMonth)
class UsageMonthAdmin(SumsAdmin):
    list_display = ["month", *SumsAdmin.list_display]


@admin.register(UsageSum)
class UsageSumAdmin(SumsAdmin):
    list_display = ["span", "start", *SumsAdmin.list_display]


@admin.register(EngineJournal)
class EngineJournalAdmin(Shown):
    list_display = [
        "engine_id", "journal", "ledger_requests", "counted_requests",
        "ledger_completion_tokens", "counted_completion_tokens", "unjournaled_tokens",
        "waiting_requests", "reported_at",
    ]  # fmt: skip
    search_fields = ["engine_id", "journal"]


@admin.register(IdempotentAnswer)
class IdempotentAnswerAdmin(Shown):
    list_display = ["name", "key", "request_id", "claimed_until", "created_at"]
    list_select_related = ["key"]
    search_fields = ["name", "request_id"]

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        return super().get_queryset(request).defer("answer")  # up to 4 MiB


class PriceForm(PriceFormBase):
    starts_at = forms.SplitDateTimeField(
        required=False,
        widget=AdminSplitDateTime,
        help_text="Of UTC; empty: now.",
    )

    class Meta:
        model = Price
        fields = ["base_model", "adapter", "starts_at", "prompt", "cached_prompt", "output"]

    def clean_starts_at(self) -> datetime:
        now = timezone.now()
        at: datetime = self.cleaned_data["starts_at"] or now
        if at < now:
            raise forms.ValidationError("This is in the past: bills are written already.")
        return at


@admin.register(Price)
class PriceAdmin(PriceAdminBase):
    """Prices are added, and withdrawn before they come into force; none is changed."""

    form = PriceForm
    list_display = [
        "base_model", "adapter", "starts_at", "prompt", "cached_prompt", "output", "created_at",
    ]  # fmt: skip
    list_select_related = ["base_model", "adapter__tenant"]
    search_fields = ["base_model__name", "adapter__name", "adapter__tenant__slug"]
    autocomplete_fields = ["base_model", "adapter"]

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Price]:
        return Price.objects.shown()

    def has_change_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return obj is not None and obj.starts_at > timezone.now()


@admin.register(GatewayProcess)
class GatewayProcessAdmin(Shown):
    list_display = ["url", "heartbeat_at"]


@admin.register(AuditActor)
class AuditActorAdmin(Shown):
    search_fields = ["name"]


@admin.register(AuditEntry)
class AuditEntryAdmin(Shown):
    list_display = ["at", "tenant", "actor_name", "action", "kind", "name"]
    list_filter = ["kind", "action"]
    search_fields = ["actor_name", "name"]
    list_select_related = ["tenant"]


@admin.register(Invitation)
class InvitationAdmin(Shown):
    list_display = ["tenant", "role", "note", "created_at", "expires_at", "accepted_by"]
    list_select_related = ["tenant", "accepted_by"]
    search_fields = ["note", "tenant__slug"]
    exclude = ["token_digest"]


@admin.register(Conversation)
class ConversationAdmin(Shown):
    """That it is there; what was said is its member's alone."""

    list_display = ["id", "member", "revision", "created_at", "updated_at"]
    list_select_related = ["member__user", "member__tenant"]
    search_fields = ["member__user__username", "member__tenant__slug"]
    exclude = ["title", "panes", "shared_as"]


@admin.register(IsolationCheck)
class IsolationCheckAdmin(Shown):
    list_display = ["at", "base_model", "passed", "findings", "engines"]
    list_filter = ["passed"]
