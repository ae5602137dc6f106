"""Archives of everything that a tenant has, and deletions of tenants."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import jwt
from django.db import IntegrityError, models, transaction
from django.utils import timezone

from tenants.errors import DeletionBegun, ExportUnderWay, NotDeletable, TenantBeingDeleted
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
    """One archive, or the request for one. `tenants.files.blobs` stores it under its id.

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


class TenantDeletionQuerySet(models.QuerySet["TenantDeletion"]):
    def ask(
        self, tenant: Tenant, *, by: str, by_operator: bool, grace: timedelta
    ) -> TenantDeletion:
        """Suspend the tenant, and have it deleted after the grace period.

        Raises:
            TenantBeingDeleted: that was asked for before.
            NotDeletable: it is one of the installation's own tenants.
        """
        with transaction.atomic():
            locked = Tenant.objects.select_for_update().get(pk=tenant.pk)
            if locked.internal:
                raise NotDeletable
            if self.filter(tenant=locked).exists():
                raise TenantBeingDeleted
            asked = self.create(
                tenant=locked,
                asked_by=by,
                by_operator=by_operator,
                due_at=timezone.now() + grace,
                was_active=locked.active,
            )
            locked.set_status(Tenant.Status.SUSPENDED)
        tenant.status = locked.status
        return asked

    def of(self, tenant: Tenant) -> TenantDeletion | None:
        """The tenant's deletion, asked for or ended."""
        return self.select_related("tenant").filter(tenant=tenant).first()


class TenantDeletion(models.Model):
    """A tenant's deletion (`tenants.offboarding.deletion`), from the request for it on; the row
    stays after its end. While there is one, the tenant is suspended.

    `was_active` is how the tenant was before, `counts` what was deleted so far, by the names of
    steps. `owners` are the addresses to send the receipt to, until it is sent.
    """

    tenant = models.OneToOneField(Tenant, models.PROTECT, related_name="deletion")
    asked_by = models.CharField(max_length=150)
    """A username, or a sentence's subject such as "the command line"."""
    by_operator = models.BooleanField()
    asked_at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(db_index=True)
    was_active = models.BooleanField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    counts = models.JSONField(default=dict)
    owners = models.JSONField(default=list)
    receipt = models.TextField(default="")
    """A JWS; empty until the end."""

    objects = TenantDeletionQuerySet.as_manager()

    class Meta:
        ordering = ["-asked_at"]

    def __str__(self) -> str:
        return f"deletion of {self.tenant}"

    @property
    def signed(self) -> dict[str, Any]:
        """The receipt with its signature, as it is issued."""
        claims: Mapping[str, Any] = jwt.decode(self.receipt, options={"verify_signature": False})
        return {"object": "tenant.deleted", "receipt": claims, "jws": self.receipt}

    def take_back(self) -> None:
        """Let the tenant be as it was before.

        Raises:
            DeletionBegun: its data is being deleted, or was.
        """
        with transaction.atomic():
            tenant = Tenant.objects.select_for_update().get(pk=self.tenant_id)
            waiting = TenantDeletion.objects.filter(pk=self.pk, started_at=None)
            if not waiting.delete()[0]:
                raise DeletionBegun
            if self.was_active:
                tenant.set_status(Tenant.Status.ACTIVE)

    def begin(self) -> bool:
        """Begin, from where on it can't be taken back; false if it is not due, or was taken back.
        Does nothing if it has begun already."""
        with transaction.atomic():
            locked = TenantDeletion.objects.select_for_update().filter(pk=self.pk).first()
            if locked is None or locked.due_at > timezone.now():
                return False
            if locked.started_at is None:
                owners = locked.tenant.memberships.owners().exclude(user__email="")
                locked.owners = sorted(owners.values_list("user__email", flat=True))
                locked.started_at = timezone.now()
                locked.save(update_fields=["owners", "started_at"])
        self.refresh_from_db()
        return True

    def hasten(self) -> None:
        """Make it due now."""
        TenantDeletion.objects.filter(pk=self.pk, due_at__gt=timezone.now()).update(
            due_at=timezone.now()
        )
        self.refresh_from_db()
