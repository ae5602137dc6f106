"""Uploads until they are versions: what is known of each besides its bytes."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q
from django.utils import timezone

from tenants.models.accounts import Tenant, User
from tenants.models.adapters import AdapterVersion

LIFETIME = timedelta(hours=24)
"""From the first request to the last. Whoever asks how an upload ended has as long."""


def expiry() -> datetime:
    return timezone.now() + LIFETIME


RESERVED = timedelta(hours=1)
"""How long the room of a request's body stays reserved where its process was killed meanwhile."""


class UploadSessionQuerySet(models.QuerySet["UploadSession"]):
    def current(self) -> UploadSessionQuerySet:
        """Those that have not expired."""
        return self.filter(expires_at__gt=timezone.now())

    def unfinished(self) -> UploadSessionQuerySet:
        """Those that still take bytes, or wait to be made a version."""
        return self.current().filter(version=None, refusal__isnull=True)

    def named(self) -> UploadSessionQuerySet:
        """Without those whose request is still being received: only its size is known."""
        return self.exclude(file_name="")

    def expired(self) -> UploadSessionQuerySet:
        return self.filter(expires_at__lte=timezone.now())


class UploadSession(models.Model):
    """Files of `length_bytes` bytes on their way to be a version of the adapter `adapter_name`.

    It is an archive, or an adapter's two files of which `file_name` names the weights. Until
    `received_at` it is being received, and only its file says how much has arrived. Then a worker
    looks into it, on behalf of `actor` (`audit.Actor`), and it ends, with the version that it
    became (`known`: which had this content before), or with the reason why it was refused:
    `{"status", "code", "detail"}` of the answer. `metadata` is the header Upload-Metadata as the
    client sent it. `base_confirmed`: whoever sends it knows that it names another base model.

    One with an `oid` is the weights alone, of which a push to the hub (`tenants.hub`) said that
    this is their SHA-256. It waits for the commit that names it, whose upload takes its file over.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="uploads")
    adapter_name = models.CharField(max_length=63)
    file_name = models.CharField(max_length=255)
    base_model_name = models.CharField(max_length=255, blank=True)
    base_confirmed = models.BooleanField(default=False)
    metadata = models.TextField()
    oid = models.CharField(max_length=64, blank=True, editable=False, default="", db_default="")
    length_bytes = models.PositiveBigIntegerField()
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
