"""Adapters, their versions and aliases."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as InvalidFields
from django.db import models
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.exceptions import ValidationError
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.endpoints.adapters.sessions import UploadSerializer, header
from tenants.api.endpoints.adapters.uploads import receive
from tenants.api.filters import AdapterFilter, VersionFilter
from tenants.api.permissions import TenantView
from tenants.api.serializers.adapters import (
    AdapterSerializer,
    AliasSerializer,
    PromotionSerializer,
    VersionSerializer,
)
from tenants.models import Adapter, AdapterVersion, Alias
from tenants.permissions import Permission

READ, EDIT = Permission.READ_ADAPTERS, Permission.EDIT_ADAPTERS


class Adapters(
    TenantView,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.UpdateModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[Adapter],
):
    """The tenant's adapters. The first upload of a version creates the adapter."""

    needs = {
        "list": READ, "retrieve": READ, "partial_update": Permission.OPERATE, "destroy": EDIT,
    }  # fmt: skip
    queryset = Adapter.objects.none()
    serializer_class = AdapterSerializer
    filterset_class = AdapterFilter
    lookup_field = "name"
    lookup_value_regex = "[^/]+"

    def get_queryset(self) -> models.QuerySet[Adapter]:
        related = ("aliases__version", "aliases__previous", "gates__eval")
        adapters = self.caller.tenant.adapters.select_related("base_model", "created_by")
        return adapters.prefetch_related(*related)

    @extend_schema(description="Pin or unpin the adapter. Only for operators.")
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().partial_update(request, *args, **kwargs)

    @extend_schema(
        description="Delete the adapter and its versions. Its aliases must be deleted first."
    )
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: Adapter) -> None:
        instance.retire()


class AdapterPart(TenantView):
    """A view of one adapter, which is named in the URL."""

    def adapter(self) -> Adapter:
        return get_object_or_404(self.caller.tenant.adapters, name=self.kwargs["name"])


class Versions(
    AdapterPart,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[AdapterVersion],
):
    """An adapter's versions, newest first. A version that an alias points at cannot be removed."""

    needs = {"list": READ, "retrieve": READ, "create": EDIT, "archive": EDIT, "destroy": EDIT}
    queryset = AdapterVersion.objects.none()
    serializer_class = VersionSerializer
    filterset_class = VersionFilter
    lookup_field = "number"
    further_errors = [429, 507]
    parser_classes = [MultiPartParser]

    def get_queryset(self) -> models.QuerySet[AdapterVersion]:
        versions = self.adapter().versions.select_related("adapter", "created_by")
        return versions.prefetch_related("aliases")

    @extend_schema(
        request={
            "multipart/form-data": {
                "type": "object",
                "properties": {
                    "files": {
                        "type": "array",
                        "items": {"type": "string", "format": "binary"},
                        "description": "adapter_config.json and adapter_model.safetensors, or one "
                        ".zip, .tar, .tar.gz or .tgz with them. Other files are left out.",
                    },
                    "base_model": {
                        "type": "string",
                        "description": (
                            "Required for a new adapter if there are several base models."
                        ),
                    },
                    "confirm_base_model": {
                        "type": "boolean",
                        "description": (
                            "Confirms that adapter_config.json has another name for the "
                            "same base model."
                        ),
                    },
                },
                "required": ["files"],
            }
        },
        responses={200: VersionSerializer, 201: VersionSerializer, 202: UploadSerializer},
        parameters=[header("Location", "URL of the upload's state.", str, response=[202])],
    )
    def create(self, request: Request, name: str) -> Response:
        """Upload a version: 201 if it is new and now being checked, 200 if its content is known.

        202 if a worker takes longer to look into it: poll the upload at its Location.
        """
        return receive(request, self.caller.tenant, name)

    @extend_schema(request=None, responses=VersionSerializer)
    def archive(self, request: Request, name: str, number: int) -> Response:
        """Take the version out of service; every engine unloads it."""
        version = self.get_object()
        version.archive()
        return Response(self.get_serializer(version).data)

    @extend_schema(description="Delete the version and its files.")
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    def perform_destroy(self, instance: AdapterVersion) -> None:
        instance.remove()


class Aliases(
    AdapterPart,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.DestroyModelMixin,
    GenericViewSet[Alias],
):
    """Names that point at versions; the adapter's own name means `live`."""

    needs = {
        "list": READ, "retrieve": READ, "promote": EDIT, "roll_back": EDIT, "destroy": EDIT,
    }  # fmt: skip
    queryset = Alias.objects.none()
    serializer_class = AliasSerializer
    filter_backends = []
    lookup_field = "name"
    lookup_url_kwarg = "alias"
    bodiless = ["roll_back"]

    def get_queryset(self) -> models.QuerySet[Alias]:
        return self.adapter().aliases.select_related("version", "previous")

    @extend_schema(request=PromotionSerializer, responses=AliasSerializer)
    def promote(self, request: Request, name: str, alias: str) -> Response:
        """Point the alias at a ready version; running requests finish on the version they have."""
        asked = PromotionSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        adapter, number = self.adapter(), asked.validated_data["version"]
        version = adapter.versions.filter(number=number).first()
        if version is None:
            raise ValidationError({"version": f"{adapter.name} has no version {number}."})
        try:
            Alias(adapter=adapter, name=alias).clean_fields(exclude=["version"])
        except InvalidFields as error:
            raise ValidationError({"alias": error.messages}) from error
        return Response(self.get_serializer(adapter.promote(version, alias)).data)

    @extend_schema(request=None, responses=AliasSerializer)
    def roll_back(self, request: Request, name: str, alias: str) -> Response:
        """Point the alias at the previous version."""
        found = self.get_object()
        found.roll_back()
        return Response(self.get_serializer(found).data, status.HTTP_200_OK)
