"""The stock Django admin, for operators. What the platform itself keeps is shown, not edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.db import models
from django.http import HttpRequest

from tenants.ceilings import FIELDS
from tenants.models import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    BaseModel,
    GatewayProcess,
    LimitSet,
    Membership,
    Scope,
    Tenant,
    UsageEvent,
    User,
)

if TYPE_CHECKING:
    TenantAdminBase = admin.ModelAdmin[Tenant]
    MembershipAdminBase = admin.ModelAdmin[Membership]
    KeyAdminBase = admin.ModelAdmin[ApiKey]
    KeyFormBase = forms.ModelForm[ApiKey]
    LimitsAdminBase = admin.ModelAdmin[LimitSet]
    AnyAdmin = admin.ModelAdmin[models.Model]
else:
    TenantAdminBase = MembershipAdminBase = KeyAdminBase = admin.ModelAdmin
    LimitsAdminBase = AnyAdmin = admin.ModelAdmin
    KeyFormBase = forms.ModelForm

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
            obj.save()
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
    list_display = ["__str__", "tenant", "key", "adapter", "author", *FIELDS, "updated_at"]
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

    def has_change_permission(self, request: HttpRequest, obj: Adapter | None = None) -> bool:
        return AnyAdmin.has_change_permission(self, request, obj)  # to pin it


@admin.register(AdapterVersion)
class AdapterVersionAdmin(Shown):
    list_display = ["adapter", "number", "state", "digest", "size_bytes", "created_at"]
    list_filter = ["state"]
    list_select_related = ["adapter__tenant"]
    search_fields = ["adapter__name", "adapter__tenant__slug", "digest"]


@admin.register(Alias)
class AliasAdmin(Shown):
    list_display = ["name", "version", "previous", "changed_at"]
    list_select_related = ["version__adapter__tenant", "previous__adapter__tenant"]
    search_fields = ["name", "adapter__name", "adapter__tenant__slug"]


@admin.register(UsageEvent)
class UsageEventAdmin(Shown):
    list_display = [
        "started_at", "tenant", "model", "prompt_tokens", "cached_tokens", "completion_tokens",
        "finish_reason", "ttft_s", "total_s", "engine_id",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    search_fields = ["id", "tenant__slug", "model"]
    date_hierarchy = "started_at"
    show_full_result_count = False


@admin.register(GatewayProcess)
class GatewayProcessAdmin(Shown):
    list_display = ["url", "heartbeat_at"]
