"""The deletion of a tenant: asking for it, taking it back, and its receipt."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.permissions import TenantView
from tenants.api.serializers.strict import StrictMixin
from tenants.models import TenantDeletion
from tenants.offboarding import deletion as deletions
from tenants.permissions import Permission


class DeletionSerializer(serializers.ModelSerializer[TenantDeletion]):
    """A tenant's deletion, asked for or ended."""

    deleted = serializers.DictField(
        source="counts",
        child=serializers.IntegerField(),
        read_only=True,
        help_text="How many rows were deleted so far, by kind.",
    )

    class Meta:
        model = TenantDeletion
        fields = [
            "asked_by", "by_operator", "asked_at", "due_at", "started_at", "ended_at", "deleted",
            "receipt",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "by_operator": {"help_text": "Then only an operator may take it back."},
            "due_at": {"help_text": "When the data is deleted. Until then it can be taken back."},
            "receipt": {"help_text": "A JWS of what was deleted. Empty until the end."},
        }


class NewDeletionSerializer(StrictMixin, serializers.Serializer[Any]):
    """The confirmation of a deletion."""

    confirm = serializers.CharField(help_text="The tenant's slug.")


class OneDeletion(TenantView, GenericViewSet[TenantDeletion]):
    """The deletion of a tenant, for owners and operators."""

    takes_tenant = False  # the tenant is in the URL
    needs = dict.fromkeys(("retrieve", "create", "take_back"), Permission.DELETE_TENANT)
    while_suspended = True
    queryset = TenantDeletion.objects.none()
    serializer_class = DeletionSerializer
    lookup_field = "slug"

    def retrieve(self, request: Request, slug: str) -> Response:
        """The deletion; 404 if nobody has asked for it."""
        found = TenantDeletion.objects.of(self.caller.tenant)
        if found is None:
            raise Http404
        return Response(self.get_serializer(found).data)

    @extend_schema(request=NewDeletionSerializer, responses={201: DeletionSerializer})
    def create(self, request: Request, slug: str) -> Response:
        """Suspend the tenant now, and have it deleted after the grace period."""
        asked = NewDeletionSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        if asked.validated_data["confirm"] != self.caller.tenant.slug:
            raise ValidationError({"confirm": "This must be the tenant's slug."})
        made = deletions.ask(self.caller)
        return Response(self.get_serializer(made).data, status.HTTP_201_CREATED)

    @extend_schema(responses={204: None})
    def take_back(self, request: Request, slug: str) -> Response:
        """Take the deletion back: the tenant is as it was before."""
        deletions.take_back(self.caller)
        return Response(status=status.HTTP_204_NO_CONTENT)
