"""A tenant's choices: whether and for how long prompts and answers are kept, and destroying all of
them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Least
from django.utils import timezone

from tenants.billing.receipts import signer
from tenants.content import sealing
from tenants.errors import ContentUnavailable, NoContentKey
from tenants.models import Tenant, User
from tenants.models.content import ContentKey, StoredContent

TYPE = "lorikeet-content-destroyed+json"
FORMAT = "lorikeet-content-destroyed-1"


def is_possible() -> bool:
    """Whether this installation has a master key."""
    return bool(settings.CONTENT_KEY)


def live_key(tenant: Tenant) -> ContentKey | None:
    """The key that encrypts the tenant's content, if it has one."""
    return tenant.content_keys.filter(destroyed_at=None).first()


def keep_for(tenant: Tenant, days: int) -> None:
    """Keep prompts and answers for this many days, and stored ones no longer than that; 0: keep
    nothing from now on.

    Raises:
        ContentUnavailable: there is no master key.
    """
    if days and not is_possible():
        raise ContentUnavailable
    with transaction.atomic():
        locked = Tenant.objects.select_for_update().get(pk=tenant.pk)
        if days and live_key(locked) is None:
            wrapped = sealing.new_key(settings.CONTENT_KEY, locked.pk)
            ContentKey.objects.create(tenant=locked, wrapped=wrapped)
        if days:
            kept = StoredContent.objects.filter(tenant=locked)
            kept.update(expires_at=Least("expires_at", F("at") + timedelta(days=days)))
        locked.content_days = days
        locked.save(update_fields=["content_days"])
    tenant.content_days = days


def destroy(tenant: Tenant, by: User | str) -> ContentKey:
    """Destroy the tenant's key, so that nobody can read its content, and keep nothing from now on.
    `by` is a user, or the name of one.

    Returns the destroyed key's row, with a signed confirmation.

    Raises:
        NoContentKey: the tenant has no key.
    """
    with transaction.atomic():
        locked = Tenant.objects.select_for_update().get(pk=tenant.pk)
        key = live_key(locked)
        if key is None:
            raise NoContentKey
        key.wrapped, key.destroyed_at = None, timezone.now()
        key.confirmation = signer().jws(TYPE, _confirmed(key, by))
        key.save(update_fields=["wrapped", "destroyed_at", "confirmation"])
        locked.content_days = 0
        locked.save(update_fields=["content_days"])
    tenant.content_days = 0
    return key


def _confirmed(key: ContentKey, by: User | str) -> dict[str, Any]:
    """The confirmation that is signed."""
    assert key.destroyed_at is not None
    return {
        "format": FORMAT,
        "tenant": key.tenant.slug,
        "key": key.pk,
        "created_at": _written(key.created_at),
        "destroyed_at": _written(key.destroyed_at),
        "destroyed_by": str(by),
        "items": StoredContent.objects.filter(content_key=key).count(),
    }


def _written(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
