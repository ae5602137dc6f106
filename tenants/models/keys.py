"""API keys: `lk_<prefix>_<secret>`, shown once, stored as the prefix and an HMAC."""

from __future__ import annotations

import hmac
import secrets
import string
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from inference.errors import InvalidApiKey
from inference.interfaces.directory import INFERENCE
from tenants.errors import KeyRevoked
from tenants.models.accounts import Tenant, User
from tenants.naming import (
    PLAYGROUND,
    PREFIX_LENGTH,
    SECRET_LENGTH,
    TOUCH_INTERVAL,
    hmac_of,
    playground_prefix,
    prefix_of,
)

ALPHABET = string.ascii_letters + string.digits


class Scope(models.TextChoices):
    INFERENCE = INFERENCE
    WRITE_ADAPTERS = "adapters:write"
    READ_USAGE = "usage:read"
    WRITE_SCORES = "scores:write"
    ADMIN = "admin"


class Lane(models.TextChoices):
    INTERACTIVE = "interactive"
    BATCH = "batch"


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


class Credential(models.Model):
    """What a program presents: `<KIND>_<prefix>_<secret>`."""

    KIND: ClassVar[str]

    prefix = models.CharField(max_length=PREFIX_LENGTH, unique=True, editable=False)
    secret_hmac = models.BinaryField(max_length=32)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        abstract = True

    def set_new_secret(self) -> str:
        """Give it a new prefix and secret, without saving; returns the text to show once."""
        self.prefix = _random(PREFIX_LENGTH)
        text = f"{self.KIND}_{self.prefix}_{_random(SECRET_LENGTH)}"
        self.secret_hmac = hmac_of(text)
        return text

    def matches(self, secret: str) -> bool:
        return hmac.compare_digest(bytes(self.secret_hmac), hmac_of(secret))

    def revoke(self) -> None:
        """Invalidate it for good; the first time counts."""
        unrevoked = type(self)._default_manager.filter(pk=self.pk, revoked_at=None)
        unrevoked.update(revoked_at=timezone.now())
        self.refresh_from_db(fields=["revoked_at"])


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def issue(
        self,
        tenant: Tenant,
        *,
        name: str,
        scopes: Collection[str],
        allowed_models: Collection[str] | None = None,
        expires_at: datetime | None = None,
        lane: str = Lane.INTERACTIVE,
        keeps_nothing: bool = False,
        created_by: User | None = None,
        origin_id: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; returns it and its text, which cannot be recovered later."""
        key = ApiKey(
            tenant=tenant,
            name=name,
            scopes=sorted(scopes),
            allowed_models=None if allowed_models is None else sorted(allowed_models),
            expires_at=expires_at,
            lane=lane,
            keeps_nothing=keeps_nothing,
            created_by=created_by,
            origin_id=origin_id,
        )
        text = key.set_new_secret()
        key.save()
        return key, text

    def open_playground(self, tenant: Tenant) -> ApiKey:
        """The tenant's playground key, which has the limits of everything generated in the
        playground; made on first use."""
        fields = {
            "tenant": tenant,
            "name": "Playground",
            "scopes": [Scope.INFERENCE],
            "secret_hmac": secrets.token_bytes(32),
        }
        return self.get_or_create(prefix=playground_prefix(tenant.pk), defaults=fields)[0]

    def playground_of(self, member: User, tenant: Tenant) -> ApiKey:
        """The key to which this member's use of the tenant's playground is billed, made on first
        use. Limits count all such keys together, as the tenant's playground key."""
        shared = self.open_playground(tenant)
        fields = {
            "prefix": PLAYGROUND + _random(PREFIX_LENGTH - len(PLAYGROUND)),
            "name": f"Playground of {member.get_username()}",
            "scopes": [Scope.INFERENCE],
            "secret_hmac": secrets.token_bytes(32),
            "origin": shared,
        }
        mine = self.filter(prefix__startswith=PLAYGROUND)
        return mine.get_or_create(tenant=tenant, created_by=member, defaults=fields)[0]

    def with_limits(self) -> ApiKeyQuerySet:
        """Keys that can have limits of their own: all but members' playground keys."""
        return self.exclude(prefix__startswith=PLAYGROUND, origin__isnull=False)

    def with_text(self) -> ApiKeyQuerySet:
        """Keys with a text that clients can present: all but playground keys."""
        return self.exclude(prefix__startswith=PLAYGROUND)

    def find(self, secret: str) -> ApiKey | None:
        """The key with this text, whatever its state; compared in constant time."""
        prefix = prefix_of(secret)
        key = self.select_related("tenant").filter(prefix=prefix).first() if prefix else None
        return key if key is not None and key.matches(secret) else None

    def authenticate(self, secret: str, now: datetime) -> ApiKey:
        """The key with this text, which is recorded as used now.

        Raises:
            InvalidApiKey: there is none, or it is no longer usable.
        """
        key = self.find(secret)
        if key is None:
            raise InvalidApiKey
        if not key.usable(now):
            raise InvalidApiKey("This API key is revoked or expired, or its tenant is suspended.")
        if key.last_used_at is None or key.last_used_at <= now - TOUCH_INTERVAL:
            self.filter(pk=key.pk).touch(now)
        return key

    def touch(self, now: datetime) -> int:
        """Record that these keys were used now, unless that was recorded within the last minute."""
        due = Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - TOUCH_INTERVAL)
        return self.filter(due).update(last_used_at=now)


class ApiKey(Credential):
    """What a program presents to act for a tenant, within the key's scopes."""

    KIND = "lk"

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="keys")
    name = models.CharField(max_length=200)
    scopes = ArrayField(models.CharField(max_length=32, choices=Scope))
    allowed_models = ArrayField(
        models.CharField(max_length=255),
        null=True,
        blank=True,
        help_text="Model names, without versions, that this key may use; empty: all.",
    )
    lane = models.CharField(
        max_length=16,
        choices=Lane,
        default=Lane.INTERACTIVE,
        help_text="Requests of a batch key wait behind interactive ones.",
    )
    keeps_nothing = models.BooleanField(
        default=False,
        db_default=False,
        help_text=(
            "Prompts and answers of this key are never stored, whatever the tenant's setting."
        ),
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, editable=False)
    origin = models.ForeignKey(
        "self",
        models.SET_NULL,
        null=True,
        editable=False,
        related_name="+",
        help_text="The first of the keys that were rotated into this one.",
    )

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(scopes__len__gt=0)
                & Q(
                    scopes__contained_by=[
                        "inference",
                        "adapters:write",
                        "usage:read",
                        "scores:write",
                        "admin",
                    ]
                ),
                name="apikey_scopes_known",
            ),
            models.CheckConstraint(
                condition=Q(lane__in=["interactive", "batch"]), name="apikey_lane_known"
            ),
            models.UniqueConstraint(
                fields=["tenant", "created_by"],
                condition=Q(prefix__startswith=PLAYGROUND),
                name="apikey_one_playground_each",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} (lk_{self.prefix}…)"

    @property
    def of_playground(self) -> bool:
        return self.prefix.startswith(PLAYGROUND)

    @property
    def counted_as(self) -> int:
        """The id under which limits count it: that of the first key, if it is a rotated one."""
        return self.origin_id or self.pk

    def may_use(self, model: str) -> bool:
        """Whether its models have this name, without a version."""
        return self.allowed_models is None or model in self.allowed_models

    def usable(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired, and its tenant is active."""
        live = self.expires_at is None or self.expires_at > now
        return live and self.revoked_at is None and self.tenant.active

    def rotate(self, overlap: timedelta, by: User | None) -> tuple[ApiKey, str]:
        """Make a key like this one, with the same limits, which count both keys together; this one
        ends after the overlap.

        Returns the new key and its text.

        Raises:
            KeyRevoked: it is not usable any more.
        """
        now = timezone.now()
        with transaction.atomic():
            if not self.usable(now):
                raise KeyRevoked
            key, text = ApiKey.objects.issue(
                self.tenant,
                name=self.name,
                scopes=self.scopes,
                allowed_models=self.allowed_models,
                lane=self.lane,
                keeps_nothing=self.keeps_nothing,
                expires_at=self.expires_at,
                created_by=by,
                origin_id=self.counted_as,
            )
            for limits in self.limit_sets.all():
                limits.pk, limits.key = None, key
                limits.save(force_insert=True)
            if overlap:
                end = min(filter(None, (self.expires_at, now + overlap)))
                ApiKey.objects.filter(pk=self.pk).update(expires_at=end)
            else:
                self.revoke()
        return key, text
