"""Files that tenants keep, for batches and more: everything but their bytes (`tenants.files`)."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.models.accounts import Tenant

MAX_FILE_NAME = 255


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def new_upload_id() -> str:
    return f"upload_{secrets.token_hex(12)}"


def new_part_id() -> str:
    return f"part_{secrets.token_hex(12)}"


class Purpose(models.TextChoices):
    """What a file is for, as in OpenAI's API."""

    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    EVALS = "evals"
    USER_DATA = "user_data"
    BATCH_OUTPUT = "batch_output"
    """Created here; clients cannot upload it."""


class StoredFileQuerySet(models.QuerySet["StoredFile"]):
    def current(self) -> StoredFileQuerySet:
        """Files that have not expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))

    def expired(self) -> StoredFileQuerySet:
        return self.filter(expires_at__lte=timezone.now())


class StoredFile(models.Model):
    """A tenant's file. Its bytes never change; `tenants.files.blobs` stores them under its id."""

    id = models.CharField(primary_key=True, max_length=32, default=new_file_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="files")
    purpose = models.CharField(max_length=16, choices=Purpose)
    filename = models.CharField(max_length=MAX_FILE_NAME)
    size_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, db_index=True)

    objects = StoredFileQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["tenant", "-created_at", "-id"], name="files_of_tenant")]

    def __str__(self) -> str:
        return f"{self.id} ({self.filename})"


class UploadStatus(models.TextChoices):
    """As in OpenAI's API."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class UploadQuerySet(models.QuerySet["Upload"]):
    def pending(self) -> UploadQuerySet:
        return self.filter(status=UploadStatus.PENDING, expires_at__gt=timezone.now())


class Upload(models.Model):
    """A file of `size_bytes` that is uploaded in parts (`tenants.files.uploads`)."""

    id = models.CharField(primary_key=True, max_length=32, default=new_upload_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="file_uploads")
    purpose = models.CharField(max_length=16, choices=Purpose)
    filename = models.CharField(max_length=MAX_FILE_NAME)
    size_bytes = models.PositiveBigIntegerField()
    kept_seconds = models.PositiveIntegerField(null=True)
    """How long its file is kept; null: until it is deleted."""
    status = models.CharField(max_length=16, choices=UploadStatus, default=UploadStatus.PENDING)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(db_index=True)
    # The upload outlives its file, and still names it then.
    file = models.ForeignKey(
        StoredFile, models.DO_NOTHING, null=True, related_name="+", db_constraint=False
    )

    objects = UploadQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"{self.id} ({self.filename})"

    @property
    def shown_status(self) -> str:
        """The status; `expired` as soon as its time is over, even if that is not stored yet."""
        over = self.status == UploadStatus.PENDING and self.expires_at <= timezone.now()
        return UploadStatus.EXPIRED if over else self.status


class UploadPart(models.Model):
    """A part of an upload; its bytes are stored like those of files, under its id."""

    id = models.CharField(primary_key=True, max_length=32, default=new_part_id, editable=False)
    upload = models.ForeignKey(Upload, models.CASCADE, related_name="parts")
    size_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["created_at", "id"]

    def __str__(self) -> str:
        return self.id
