"""Files that tenants keep for batches and the like: all of each but its bytes (`tenants.files`)."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.models.accounts import Tenant

MAX_FILE_NAME = 255


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


class Purpose(models.TextChoices):
    """What a file is for, as OpenAI's API has it."""

    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    EVALS = "evals"
    USER_DATA = "user_data"
    BATCH_OUTPUT = "batch_output"
    """Made here; nobody uploads it."""


class StoredFileQuerySet(models.QuerySet["StoredFile"]):
    def current(self) -> StoredFileQuerySet:
        """Those that have not expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))

    def expired(self) -> StoredFileQuerySet:
        return self.filter(expires_at__lte=timezone.now())


class StoredFile(models.Model):
    """A tenant's file. Its bytes never change; `tenants.files.disk` has them under its id."""

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
