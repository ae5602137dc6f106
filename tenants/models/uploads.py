"""Uploads of adapter versions in progress: everything but their bytes."""

from __future__ import annotations

import secrets
import uuid
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.models.accounts import Tenant, User
from tenants.models.adapters import AdapterVersion

LIFETIME = timedelta(hours=24)
"""Time from the first request to the last, including requests for how the upload ended."""


def expiry() -> datetime:
    return timezone.now() + LIFETIME


def new_chunk_id() -> str:
    return f"chunk_{secrets.token_hex(12)}"


RESERVED = timedelta(hours=1)
"""How long the space for a request's body stays reserved if its process was killed."""


class UploadSessionQuerySet(models.QuerySet["UploadSession"]):
    def current(self) -> UploadSessionQuerySet:
        """Uploads that have not expired."""
        return self.filter(expires_at__gt=timezone.now())

    def unfinished(self) -> UploadSessionQuerySet:
        """Uploads that still take bytes, or wait to become a version."""
        return self.current().filter(version=None, refusal__isnull=True)

    def named(self) -> UploadSessionQuerySet:
        """Excludes uploads whose request is still being received: only their size is known."""
        return self.exclude(file_name="")

    def lasting(self) -> UploadSessionQuerySet:
        """Uploads whose version does not expire. The others are counted as loads
        (`short_lived.check_bounds`), so nobody lists or deletes them."""
        return self.filter(short_lived=False)

    def expired(self) -> UploadSessionQuerySet:
        return self.filter(expires_at__lte=timezone.now())


class UploadSession(models.Model):
    """Files of `length_bytes` bytes that are to become a version of the adapter `adapter_name`.

    It is an archive, or an adapter's two files, of which `file_name` names the weights. Until
    `received_at` it is being received, and its chunks tell how much has arrived.
    Then a worker checks it on behalf of `actor` (`audit.Actor`), and it ends: with the version that
    it became (`known`: that existed before with this content), or with the reason for its refusal,
    `{"status", "code", "detail"}` of the answer. `metadata` is the header Upload-Metadata as the
    client sent it. `base_confirmed`: the client confirmed that it names another base model.
    `left_out` names files of a form that were not kept (`selection`).

    An upload with an `oid` is part of a push to the hub (`tenants.hub`) and waits for a commit that
    takes over its file: the weights alone, with their SHA-256, or a commit with one of the two
    files (`objects.WAITING_COMMIT`).

    A `short_lived` one becomes a version that expires (`tenants.adapters.short_lived`). With a
    `source_file` its archive is that file of the tenant (`StoredFile`), and it has no chunks.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="uploads")
    adapter_name = models.CharField(max_length=63)
    file_name = models.CharField(max_length=255)
    base_model_name = models.CharField(max_length=255, blank=True)
    base_confirmed = models.BooleanField(default=False)
    metadata = models.TextField()
    oid = models.CharField(max_length=64, blank=True, editable=False, default="", db_default="")
    short_lived = models.BooleanField(default=False, db_default=False, editable=False)
    source_file = models.CharField(
        max_length=32, blank=True, editable=False, default="", db_default=""
    )
    length_bytes = models.PositiveBigIntegerField()
    left_out = models.JSONField(default=list)
    version = models.ForeignKey(AdapterVersion, models.CASCADE, null=True, related_name="+")
    known = models.BooleanField(default=False)
    refusal = models.JSONField(null=True)
    received_at = models.DateTimeField(null=True)
    actor = models.JSONField(null=True)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(default=expiry, db_index=True)

    objects = UploadSessionQuerySet.as_manager()

    class Meta:
        ordering = ["created_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(version=None) | Q(refusal__isnull=True), name="upload_ends_one_way"
            ),
            models.CheckConstraint(
                condition=Q(received_at__isnull=True, actor__isnull=True)
                | Q(received_at__isnull=False, actor__isnull=False),
                name="upload_received_for_somebody",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter_name}: {self.file_name}"

    @property
    def ended(self) -> bool:
        return self.version_id is not None or self.refusal is not None


class UploadChunk(models.Model):
    """The bytes of one of an upload's files from `offset` on; `uploads.parts` stores them under the
    chunk's id."""

    id = models.CharField(primary_key=True, max_length=32, default=new_chunk_id, editable=False)
    upload = models.ForeignKey(UploadSession, models.CASCADE, related_name="chunks")
    file = models.CharField(max_length=32, blank=True)
    offset = models.PositiveBigIntegerField()
    size_bytes = models.PositiveBigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["upload", "file", "offset"], name="chunk_begins_once")
        ]

    def __str__(self) -> str:
        return self.id
