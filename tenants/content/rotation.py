"""Rotates the master key: tenants' keys are encrypted anew, the content under them is unchanged."""

from __future__ import annotations

from typing import NamedTuple

from django.db import transaction

from tenants.content import sealing
from tenants.content.sealing import Unreadable
from tenants.models.content import ContentKey


class Rotated(NamedTuple):
    """How many keys the first master key encrypts now, and the tenants whose keys none decrypts."""

    keys: int
    unreadable: list[str]


def rewrap() -> Rotated:
    """Encrypt each tenant's key with the first of the master keys; stored content is not touched.
    Idempotent."""
    masters, keys, unreadable = sealing.master_keys(), 0, list[str]()
    for pk in ContentKey.objects.filter(destroyed_at=None).values_list("pk", flat=True):
        with transaction.atomic():
            locked = ContentKey.objects.select_for_update(of=("self",)).select_related("tenant")
            key = locked.get(pk=pk)
            if key.wrapped is None:  # destroyed since
                continue
            try:
                key.wrapped = sealing.rewrapped(masters, key.tenant_id, bytes(key.wrapped))
            except Unreadable:
                unreadable.append(key.tenant.slug)
                continue
            key.save(update_fields=["wrapped"])
            keys += 1
    return Rotated(keys, unreadable)
