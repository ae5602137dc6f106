"""How much a tenant may keep: bytes of adapter files, and versions.

What is stored is no rate: no time frees it and no engine counts it. So these are not kinds of
limits (`tenants.limits.kinds`) but two columns of the tenant's row, which operators set, with the
settings TENANT_STORED_BYTES and TENANT_VERSIONS as defaults. The row is also the lock: whoever
takes an upload in or makes one a version holds it while he counts, so no two take the same room.

An upload is counted by its announced length before a byte of it is received, and by what it holds
once that is known: an archive may grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db.models import Count, Q, Sum

from tenants.adapters.uploads.refusals import Refusal, UploadRefused
from tenants.models import AdapterVersion, Tenant, UploadSession


@dataclass(frozen=True, slots=True)
class Storage:
    """What a tenant keeps, and the most that it may. Versions count in every state, also without
    their files: each has a report."""

    stored_bytes: int
    max_stored_bytes: int
    versions: int
    max_versions: int

    @classmethod
    def of(cls, tenant: Tenant, *, but: AdapterVersion | None = None) -> Storage:
        """As it is now, without the version `but`."""
        versions = AdapterVersion.objects.filter(adapter__tenant=tenant)
        if but is not None:
            versions = versions.exclude(pk=but.pk)
        kept = versions.aggregate(n=Count("pk"), bytes=Sum("size_bytes", filter=~Q(folder="")))
        most_bytes, most = tenant.max_stored_bytes, tenant.max_versions
        return cls(
            stored_bytes=kept["bytes"] or 0,
            max_stored_bytes=settings.TENANT_STORED_BYTES if most_bytes is None else most_bytes,
            versions=kept["n"],
            max_versions=settings.TENANT_VERSIONS if most is None else most,
        )

    def require(self, more_bytes: int, more_versions: int = 1) -> None:
        """Raises UploadRefused where so much more would be too much."""
        if self.stored_bytes + more_bytes > self.max_stored_bytes:
            told = (
                f"{self.stored_bytes} bytes of adapters are kept, and with {more_bytes} more they "
                f"are above the {self.max_stored_bytes} allowed"
            )
        elif self.versions + more_versions > self.max_versions:
            told = f"{self.versions} versions are kept, and {self.max_versions} are allowed"
        else:
            return
        message = f"The tenant's storage is full: {told}. Delete versions, or ask the operator."
        raise UploadRefused(Refusal.QUOTA_EXCEEDED, message)


def locked(tenant_id: int) -> Tenant:
    """The tenant, for one transaction, in which nobody else takes room."""
    return Tenant.objects.select_for_update(no_key=True).get(pk=tenant_id)


def require_room_for_upload(tenant: Tenant, upload: UploadSession) -> None:
    """Raises UploadRefused where what a `locked` tenant keeps and has under way leaves no room."""
    others = tenant.uploads.unfinished().exclude(pk=upload.pk)
    coming = others.aggregate(n=Count("pk"), bytes=Sum("length_bytes"))
    Storage.of(tenant).require((coming["bytes"] or 0) + upload.length_bytes, coming["n"] + 1)
