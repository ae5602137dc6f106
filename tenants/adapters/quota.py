"""How much a tenant may keep: bytes of adapters and of other files, and versions.

Storage is not a rate: it isn't freed by time, and engines don't count it. So these are not kinds of
limits (`tenants.limits.kinds`) but two columns of the tenant, set by operators, with the settings
TENANT_STORED_BYTES and TENANT_VERSIONS as defaults. The tenant's row is also the lock: code that
accepts an upload or creates a version holds it while counting, so two never take the same space.

An upload counts with its announced length before its first byte is received, and with the size of
its files once they are unpacked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Aggregate, Count, Q, QuerySet, Subquery, Sum

from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.models import AdapterVersion, Tenant, UploadSession
from tenants.sizes import size


@dataclass(frozen=True, slots=True)
class Storage:
    """What a tenant stores, and its maximum. Versions count in every state, even without files,
    because each keeps a report; short-lived ones only with their bytes."""

    stored_bytes: int
    max_stored_bytes: int
    versions: int
    max_versions: int

    @classmethod
    def of(cls, tenant: Tenant, *, but: AdapterVersion | None = None) -> Storage:
        """The current figures, not counting the version `but`."""
        versions = AdapterVersion.objects.filter(adapter__tenant=tenant)
        if but is not None:
            versions = versions.exclude(pk=but.pk)
        found = Tenant.objects.filter(pk=tenant.pk).values_list(
            _of(versions.filter(expires_at=None), Count("*"), by="adapter__tenant"),
            _of(versions.exclude(folder=""), Sum("size_bytes"), by="adapter__tenant"),
            _of(tenant.files.all(), Sum("size_bytes")),
            _of(tenant.file_uploads.pending(), Sum("size_bytes")),
        )
        number, *sizes = (one or 0 for one in found.get())
        most_bytes, most = tenant.max_stored_bytes, tenant.max_versions
        return cls(
            stored_bytes=sum(sizes),
            max_stored_bytes=settings.TENANT_STORED_BYTES if most_bytes is None else most_bytes,
            versions=number,
            max_versions=settings.TENANT_VERSIONS if most is None else most,
        )

    def require(self, more_bytes: int, more_versions: int = 1) -> None:
        """Raises UploadRefused if this much more would exceed a maximum."""
        if self.stored_bytes + more_bytes > self.max_stored_bytes:
            reason = (
                f"it has {size(self.stored_bytes)} of adapters and files, and "
                f"{size(more_bytes)} more would exceed the limit of "
                f"{size(self.max_stored_bytes)}"
            )
        elif self.versions + more_versions > self.max_versions:
            reason = f"it has {self.versions} versions; at most {self.max_versions} are allowed"
        else:
            return
        message = (
            f"The tenant's storage is full: {reason}. Delete versions or ask the operator for more."
        )
        raise UploadRefused(UploadRefusal.QUOTA_EXCEEDED, message)


def _of(rows: QuerySet[Any], figure: Aggregate, *, by: str = "tenant") -> Subquery:
    """The aggregate over these rows, which all belong to one tenant."""
    return Subquery(rows.order_by().values(by).annotate(figure=figure).values("figure"))


def locked(tenant_id: int) -> Tenant:
    """The tenant, locked for this transaction, so that nothing else takes space meanwhile."""
    return Tenant.objects.select_for_update(no_key=True).get(pk=tenant_id)


def require_room_for_upload(tenant: Tenant, upload: UploadSession) -> None:
    """Raises UploadRefused if the stored versions and unfinished uploads of a `locked` tenant leave
    no room for this upload."""
    others = tenant.uploads.unfinished().exclude(pk=upload.pk)
    coming = others.aggregate(n=Count("pk", filter=Q(short_lived=False)), bytes=Sum("length_bytes"))
    versions = 0 if upload.short_lived else coming["n"] + 1
    Storage.of(tenant).require((coming["bytes"] or 0) + upload.length_bytes, versions)
