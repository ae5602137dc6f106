"""Archives of everything that a tenant has."""

from __future__ import annotations

import secrets

from django.db import IntegrityError, models, transaction
from django.utils import timezone

from tenants.errors import ExportUnderWay
from tenants.models.accounts import Tenant


def new_export_id() -> str:
    return f"export-{secrets.token_hex(12)}"


class TenantExportQuerySet(models.QuerySet["TenantExport"]):
    def ask(self, tenant: Tenant, *, by: str, content: bool) -> TenantExport:
        """A new export; a worker has yet to write its archive.

        Raises:
            ExportUnderWay: the tenant's previous export is not finished.
        """
        try:
            with transaction.atomic():
                return self.create(tenant=tenant, asked_by=by, content=content)
        except IntegrityError as error:
            raise ExportUnderWay from error

    def current(self) -> TenantExportQuerySet:
        """Exports that are being written, or can be downloaded."""
        return self.exclude(expires_at__lte=timezone.now())

    def expired(self) -> TenantExportQuerySet:
        return self.filter(expires_at__lte=timezone.now())


class TenantExport(models.Model):
    """One archive, or the request for one. `tenants.files.disk` stores it under its id.

    `content`: it has what only members read, such as stored prompts. Such an archive is not for
    operators.
    """

    id = models.CharField(primary_key=True, max_length=32, default=new_export_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="exports")
    asked_by = models.CharField(max_length=150)
    """A username: the archive outlives the user."""
    content = models.BooleanField()
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)
    size_bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, default="")
    expires_at = models.DateTimeField(null=True, db_index=True)

    objects = TenantExportQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant"],
                condition=models.Q(finished_at=None),
                name="export_one_at_a_time",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def filename(self) -> str:
        return f"{self.tenant.slug}-{self.created_at:%Y-%m-%d}.zip"
