"""Whether a tenant's prompts and answers are stored, their destruction, and whether prompts may
leave the installation."""

from __future__ import annotations

from typing import Any

from django.db import models, transaction
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.permissions import TenantView
from tenants.api.serializers.strict import StrictMixin
from tenants.content import retention
from tenants.models import ContentKey, StoredContent, Tenant, User
from tenants.models.accounts import MAX_CONTENT_DAYS
from tenants.models.content import MAX_COUNTED
from tenants.naming import REQUEST, RESPONSE
from tenants.permissions import NotPermitted, Permission


class ContentSerializer(StrictMixin, serializers.Serializer[Any]):
    """How long prompts and answers are stored, and whether they may leave the installation."""

    days = serializers.IntegerField(
        min_value=0,
        max_value=MAX_CONTENT_DAYS,
        help_text=(
            "Days for which prompts and answers are stored. 0: not at all. A reduction "
            "also applies to content that is already stored."
        ),
    )
    overflow = serializers.BooleanField(
        help_text=(
            "Whether requests for base models may go to overflow engines, whose servers are "
            "outside of this installation, when its own engines are too busy."
        )
    )
    available = serializers.BooleanField(
        read_only=True, help_text="Whether this installation can store prompts and answers."
    )
    stored = serializers.IntegerField(
        read_only=True,
        help_text="How many requests and responses are stored; at most "
        f"{MAX_COUNTED:,} of each are counted.",
    )


class ContentKeySerializer(serializers.ModelSerializer[ContentKey]):
    """A key that encrypts a tenant's prompts and answers. Of a destroyed key only this is kept."""

    class Meta:
        model = ContentKey
        fields = ["id", "created_at", "destroyed_at", "confirmation"]
        read_only_fields = fields
        extra_kwargs = {
            "destroyed_at": {
                "help_text": (
                    "When the key was destroyed. Content that it encrypted can no longer be read."
                )
            },
            "confirmation": {"help_text": "A JWS that confirms the destruction. Empty before it."},
        }


class Content(TenantView, GenericViewSet[Tenant]):
    """Whether prompts and answers are stored, for how long, and whether they may leave the
    installation. None are stored or leave it unless an admin of the tenant chooses so."""

    needs = {"retrieve": Permission.READ_TENANT, "partial_update": Permission.EDIT_CONTENT}
    queryset = Tenant.objects.none()
    serializer_class = ContentSerializer

    def retrieve(self, request: Request) -> Response:
        """The present setting."""
        return self._shown()

    def partial_update(self, request: Request) -> Response:
        """Set how long they are stored, and whether they may leave the installation. An API key may
        only shorten the one and turn off the other; only an admin can turn them on."""
        asked = self.get_serializer(data=request.data, partial=True)
        asked.is_valid(raise_exception=True)
        if (days := asked.validated_data.get("days")) is not None:
            self._keep_for(days)
        if (overflow := asked.validated_data.get("overflow")) is not None:
            self._let_overflow(overflow)
        return self._shown()

    def _let_overflow(self, overflow: bool) -> None:
        tenant = self.caller.tenant
        if self.caller.key is not None and overflow and not tenant.overflow:
            text = "`overflow` is false; an API key can't turn it on. Ask an admin of the tenant."
            raise NotPermitted(text, "insufficient_permissions")
        tenant.overflow = overflow
        tenant.save(update_fields=["overflow"])

    def _keep_for(self, days: int) -> None:
        tenant = self.caller.tenant
        with transaction.atomic():
            now = Tenant.objects.select_for_update().get(pk=tenant.pk).content_days
            if self.caller.key is not None and days > now:
                message = (
                    f"`days` is {now}; an API key can only reduce it. Ask an admin of the tenant."
                )
                raise NotPermitted(message, "insufficient_permissions")
            retention.keep_for(tenant, days)

    def _shown(self) -> Response:
        tenant, live = self.caller.tenant, StoredContent.objects.live()
        body = {
            "days": tenant.content_days,
            "overflow": tenant.overflow,
            "available": retention.is_possible(),
            "stored": sum(live.counted(tenant, kind) for kind in (REQUEST, RESPONSE)),
        }
        return Response(self.get_serializer(body).data)


class ContentKeys(TenantView, mixins.ListModelMixin, GenericViewSet[ContentKey]):
    """The keys that encrypt a tenant's prompts and answers; one at a time is in use."""

    needs = {"list": Permission.READ_TENANT, "destroy_all": Permission.DESTROY_CONTENT}
    queryset = ContentKey.objects.none()
    serializer_class = ContentKeySerializer
    filter_backends = []
    bodiless = ["destroy_all"]

    def get_queryset(self) -> models.QuerySet[ContentKey]:
        return self.caller.tenant.content_keys.all()

    @extend_schema(request=None, responses=ContentKeySerializer)
    def destroy_all(self, request: Request) -> Response:
        """Destroy the key: stored content becomes unreadable, and nothing is stored from now on.
        The answer has a signed confirmation. This cannot be undone, and API keys may not do it."""
        assert isinstance(self.caller.user, User)
        key = retention.destroy(self.caller.tenant, self.caller.user)
        return Response(self.get_serializer(key).data, status.HTTP_200_OK)
