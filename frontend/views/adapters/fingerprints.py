"""Fingerprints that differ whenever something shown on the adapters' pages has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef
from django.http import HttpRequest

from tenants.fleet.gateways import gateways
from tenants.models import AdapterVersion, AuditEntry, Split, Tenant

Asked = tuple[int, str]
"""Tenant id, and the primary key of the version whose page it is, if any."""
LAST = 8
"""Newest audit entries to compare. Ids are assigned before the commit, so an older entry may appear
after the newest one."""


def fingerprints(asked: Collection[Asked]) -> dict[Asked, str]:
    """The fingerprint of each page, in at most two queries; none for tenants that do not exist.

    The audit log covers all changes except the progress of a version's checks, the figures of
    splits, and which adapters are loaded on engines.
    """
    changes = AuditEntry.objects.filter(tenant=OuterRef("pk")).order_by("-id").values("id")[:LAST]
    tenants = Tenant.objects.filter(pk__in={tenant for tenant, _ in asked})
    read = Split.objects.open().filter(adapter__tenant=OuterRef("pk")).values("figures__at")
    found = tenants.annotate(changes=ArraySubquery(changes), read=ArraySubquery(read)).values_list(
        "pk", "slug", "changes", "read"
    )
    slugs = {pk: (slug, changes, read) for pk, slug, changes, read in found}
    reports, resident = _reports(asked), _resident()
    return {
        one: hashed(slugs[one[0]], resident.get(slugs[one[0]][0]), reports.get(one))
        for one in asked
        if one[0] in slugs
    }


def fingerprint(tenant: Tenant, version: AdapterVersion | None = None) -> str:
    """The fingerprint of a page rendered now."""
    asked = (tenant.pk, str(version.pk) if version else "")
    return fingerprints([asked])[asked]


def not_modified(request: HttpRequest, fingerprint: str) -> bool:
    """Whether the live part that asks already has this version; the response is then 304."""
    return request.headers.get("If-None-Match") == f'"{fingerprint}"'


def _reports(asked: Collection[Asked]) -> Mapping[Asked, Any]:
    numbers = {int(version) for _, version in asked if version.isdecimal() and len(version) < 19}
    if not numbers:
        return {}
    found = AdapterVersion.objects.filter(pk__in=numbers)
    rows = found.values_list("adapter__tenant_id", "pk", "report")
    return {(tenant, str(pk)): report for tenant, pk, report in rows}


def _resident() -> Mapping[str, list[str]]:
    """What is loaded on engines, by tenant slug."""
    held: dict[str, list[str]] = {}
    for engine in gateways().fleet().engines:
        for name in engine["resident_adapters"]:
            held.setdefault(name.partition("/")[0], []).append(f"{engine['id']} {name}")
    return {slug: sorted(names) for slug, names in held.items()}


def hashed(*parts: object) -> str:
    """A fingerprint of what a page shows, apart from times."""
    return sha256(repr(parts).encode()).hexdigest()[:16]
