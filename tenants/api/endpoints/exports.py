"""Archives of everything that a tenant has."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.http import Http404
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from tenants.api.permissions import TenantView
from tenants.files.content import answer_with
from tenants.models import AuditEntry, TenantExport
from tenants.models.audit import actor_of
from tenants.offboarding import exports, jobs
from tenants.permissions import Permission


class ExportSerializer(serializers.ModelSerializer[TenantExport]):
    """An archive of a tenant, finished or being written."""

    class Meta:
        model = TenantExport
        fields = [
            "id", "content", "asked_by", "created_at", "finished_at", "size_bytes", "sha256",
            "expires_at",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "content": {
                "help_text": "Whether it has what only the tenant's members read, such as stored "
                "prompts. It has if an owner asked for it."
            },
            "finished_at": {"help_text": "When it could be downloaded; null: not yet."},
            "size_bytes": {"help_text": "0 until it is finished."},
            "sha256": {"help_text": "Of the archive; empty until it is finished."},
        }


class Exports(
    TenantView, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[TenantExport]
):
    """Archives of everything that the tenant has, for owners and operators. Each is deleted a week
    after it was written."""

    needs = dict.fromkeys(("list", "retrieve", "create", "archive"), Permission.EXPORT_TENANT)
    queryset = TenantExport.objects.none()
    serializer_class = ExportSerializer
    while_suspended = True
    filter_backends = []
    bodiless = ["create"]

    def get_queryset(self) -> models.QuerySet[TenantExport]:
        return exports.visible_to(self.caller)

    @extend_schema(request=None, responses={202: ExportSerializer})
    def create(self, request: Request) -> Response:
        """Have an archive written. Ask for it until `finished_at` is set."""
        export = jobs.export_later(self.caller, actor_of(request._request))
        return Response(self.get_serializer(export).data, status.HTTP_202_ACCEPTED)

    @extend_schema(
        responses={(200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY)}
    )
    def archive(self, request: Request, **kwargs: Any) -> HttpResponseBase:
        """Download a finished archive: a ZIP of JSON Lines and files, with a manifest."""
        export = self.get_object()
        if export.finished_at is None or not exports.is_kept(export):
            raise Http404
        actor = actor_of(request._request)
        AuditEntry.objects.note(actor, self.caller.tenant, "downloaded", export.pk, kind="export")
        return answer_with(export, attached=True)
