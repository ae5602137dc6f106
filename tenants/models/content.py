"""Stored prompts and answers, encrypted, and the keys that encrypt them (`tenants.content`)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from tenants.models.accounts import Tenant
from tenants.naming import CONVERSATION, REQUEST, RESPONSE

MAX_COUNTED = 10_000
"""Maximum number of a tenant's stored items counted per kind: a tenant may have millions."""


class ContentKind(models.TextChoices):
    """What the content belongs to; the id of that is the content's name."""

    REQUEST = REQUEST
    RESPONSE = RESPONSE
    CONVERSATION = CONVERSATION


class ContentKey(models.Model):
    """A tenant's key, encrypted by the master key. Of a destroyed key only the signed confirmation
    is left."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="content_keys")
    # The audit log omits columns of this name.
    wrapped = models.BinaryField(null=True, db_column="password")
    created_at = models.DateTimeField(db_default=Now())
    destroyed_at = models.DateTimeField(null=True)
    confirmation = models.TextField(db_default="")
    """A JWS."""

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant"], condition=Q(destroyed_at=None), name="content_key_one_each"
            ),
            models.CheckConstraint(
                condition=Q(wrapped__isnull=True, destroyed_at__isnull=False)
                | Q(wrapped__isnull=False, destroyed_at__isnull=True),
                name="content_key_destroyed",
            ),
        ]

    def __str__(self) -> str:
        return f"key {self.pk} of {self.tenant_id}"


class StoredContentQuerySet(models.QuerySet["StoredContent"]):
    def live(self) -> StoredContentQuerySet:
        """Content that can be read."""
        return self.filter(expires_at__gt=timezone.now(), content_key__destroyed_at=None)

    def over(self) -> StoredContentQuerySet:
        """Content that has expired or whose key was destroyed."""
        ended = Q(expires_at__lte=timezone.now()) | Q(content_key__destroyed_at__isnull=False)
        return self.filter(ended)

    def counted(self, tenant: Tenant, kind: str) -> int:
        """How many of a kind a tenant has, up to MAX_COUNTED."""
        return self.filter(tenant=tenant, kind=kind).order_by()[:MAX_COUNTED].count()


class StoredContent(models.Model):
    """A prompt and its answer, encrypted by the tenant's key for this tenant, kind and name."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="+", db_index=False)
    kind = models.CharField(max_length=16, choices=ContentKind)
    name = models.CharField(max_length=64)
    content_key = models.ForeignKey(ContentKey, models.CASCADE, related_name="contents")
    at = models.DateTimeField()
    expires_at = models.DateTimeField()
    data = models.BinaryField()

    objects = StoredContentQuerySet.as_manager()

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "kind", "name"], name="content_unique")
        ]
        indexes = [models.Index(fields=["expires_at"], name="content_by_end")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
