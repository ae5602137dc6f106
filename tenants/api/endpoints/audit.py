"""The audit log: a tenant's, and the installation's."""

from __future__ import annotations

from rest_framework import mixins
from rest_framework.viewsets import GenericViewSet

from tenants.api.filters import AuditFilterSet, InstallationAuditFilterSet
from tenants.api.pagination import NewestFirst
from tenants.api.permissions import Operating, TenantView
from tenants.api.serializers.accounts import AuditEntrySerializer
from tenants.api.strict_view import StrictView
from tenants.models import AuditEntry
from tenants.models.audit import AuditEntryQuerySet
from tenants.permissions import Permission


class TenantAudit(TenantView, mixins.ListModelMixin, GenericViewSet[AuditEntry]):
    """Who changed what of the tenant, newest first. Of a version's checks there is only the end."""

    needs = {"list": Permission.READ_AUDIT}
    queryset = AuditEntry.objects.none()
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilterSet
    pagination_class = NewestFirst

    def get_queryset(self) -> AuditEntryQuerySet:
        entries = AuditEntry.objects.filter(tenant=self.caller.tenant)
        return entries.without_steps().select_related("tenant")


class InstallationAudit(StrictView, mixins.ListModelMixin, GenericViewSet[AuditEntry]):
    """Who changed what of the installation and its tenants, newest first. Tenants as which the
    installation checks itself are left out unless one is named."""

    permission_classes = [Operating]
    queryset = AuditEntry.objects.none()
    serializer_class = AuditEntrySerializer
    filterset_class = InstallationAuditFilterSet
    pagination_class = NewestFirst

    def get_queryset(self) -> AuditEntryQuerySet:
        entries = AuditEntry.objects.without_steps().select_related("tenant")
        return entries if "tenant" in self.request.query_params else entries.of_customers()
