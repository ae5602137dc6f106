"""What changes whenever something that the adapters' pages show has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef
from django.http import HttpRequest

from tenants.fleet.gateways import gateways
from tenants.models import AdapterVersion, AuditEntry, Tenant

Asked = tuple[int, str]
"""A tenant, and the version (its primary key) that is looked at, if it is one."""
LAST = 8
"""Changes that are compared: they get their numbers before they are committed, so that the newest
alone could stay the same."""


def marks(asked: Collection[Asked]) -> dict[Asked, str]:
    """The mark of each, in at most two queries; of a tenant that is not there, none.

    Everything that is changed is in the audit log, but for how a version's checks go and which
    engines hold what.
    """
    changes = AuditEntry.objects.filter(tenant=OuterRef("pk")).order_by("-id").values("id")[:LAST]
    tenants = Tenant.objects.filter(pk__in={tenant for tenant, _ in asked})
    found = tenants.annotate(changes=ArraySubquery(changes)).values_list("pk", "slug", "changes")
    slugs = {pk: (slug, changes) for pk, slug, changes in found}
    reports, resident = _reports(asked), _resident()
    return {
        one: _mark(slugs[one[0]], resident.get(slugs[one[0]][0]), reports.get(one))
        for one in asked
        if one[0] in slugs
    }


def mark(tenant: Tenant, version: AdapterVersion | None = None) -> str:
    """The mark of a page that is rendered now."""
    asked = (tenant.pk, str(version.pk) if version else "")
    return marks([asked])[asked]


def as_seen(request: HttpRequest, mark: str) -> bool:
    """Whether a part of a page asks if it is still as it saw it, and it is: 304 says so."""
    return request.headers.get("If-None-Match") == f'"{mark}"'


def _reports(asked: Collection[Asked]) -> Mapping[Asked, Any]:
    numbers = {int(version) for _, version in asked if version.isdecimal() and len(version) < 19}
    if not numbers:
        return {}
    found = AdapterVersion.objects.filter(pk__in=numbers)
    rows = found.values_list("adapter__tenant_id", "pk", "report")
    return {(tenant, str(pk)): report for tenant, pk, report in rows}


def _resident() -> Mapping[str, list[str]]:
    """What engines hold, by the slug of its tenant."""
    held: dict[str, list[str]] = {}
    for engine in gateways().fleet().engines:
        for name in engine["resident_adapters"]:
            held.setdefault(name.partition("/")[0], []).append(f"{engine['id']} {name}")
    return {slug: sorted(names) for slug, names in held.items()}


def _mark(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:16]
