"""Short-lived versions, which training loops load under a name and replace at each step.

Such a version is as immutable as any other, passes the same static checks, and is served at once:
no engine probes it, and it doesn't count towards the tenant's quota of versions. All versions of
its adapter are short-lived. The adapter's name answers with the version that was loaded last. The
one before stays for REPLACED_S, for requests that are under way or name it by its digest.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.models import Adapter, AdapterVersion, Alias, State, Tenant

REPLACED_S = 120


def expiry() -> datetime:
    """When a version that is loaded now expires."""
    return timezone.now() + timedelta(seconds=settings.LOADED_ADAPTER_S)


def check_bounds(tenant: Tenant, name: str) -> None:
    """Check that a `locked` tenant may load a version under this name now.

    Raises:
        UploadRefused: it has loaded too many in the last minute, or under too many names.
    """
    now, uploads = timezone.now(), tenant.uploads.filter(short_lived=True)
    latest = uploads.filter(created_at__gt=now - timedelta(minutes=1))
    if latest.count() >= settings.TENANT_LOADS_PER_MINUTE:
        raise UploadRefused(
            UploadRefusal.TOO_MANY_UPLOADS,
            f"The tenant {tenant.slug} has loaded {settings.TENANT_LOADS_PER_MINUTE} adapters in "
            "the last minute, the maximum.",
            60,
        )
    loaded = set(tenant.adapters.filter(short_lived=True).values_list("name", flat=True))
    loaded |= set(uploads.unfinished().values_list("adapter_name", flat=True))
    if len(loaded - {name}) >= settings.TENANT_LOADED_ADAPTERS:
        raise UploadRefused(
            UploadRefusal.TOO_MANY_UPLOADS,
            f"The tenant {tenant.slug} has {settings.TENANT_LOADED_ADAPTERS} loaded adapters, the "
            "maximum. Unload one first.",
        )


def serve(version: AdapterVersion) -> None:
    """Let the adapter's name answer with a version that passed the checks.

    Raises:
        IllegalTransition: it is not one.
    """
    adapter = version.adapter
    with transaction.atomic():
        Adapter.objects.select_for_update().filter(pk=adapter.pk).first()
        version.advance(State.READY, expires_at=expiry())
        adapter.promote(version)
        soon = timezone.now() + timedelta(seconds=REPLACED_S)
        replaced = adapter.versions.exclude(pk=version.pk)
        replaced.filter(expires_at__gt=soon).update(expires_at=soon)


def unload(adapter: Adapter) -> None:
    """Delete a short-lived adapter with all its versions."""
    adapter.discard()


def discard(version: AdapterVersion) -> None:
    """Delete a version with the aliases that point at it, and its adapter if it was the last."""
    with transaction.atomic():
        adapter = Adapter.objects.select_for_update().filter(pk=version.adapter_id).first()
        if adapter is None:
            return
        Alias.objects.filter(version=version).delete()
        adapter.versions.filter(pk=version.pk).delete()
        if not adapter.versions.exists():
            adapter.delete()


def remove_expired() -> None:
    """Delete the versions that have expired."""
    expired = AdapterVersion.objects.filter(expires_at__lte=timezone.now())
    for version in expired.select_related("adapter"):
        discard(version)
