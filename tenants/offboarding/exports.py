"""Writes the archive of a tenant: its rows as JSON Lines, and its files.

It is read while the tenant goes on, so a row that changes meanwhile may be in one file as it was
before, and in another as it was after. At most a few rows are in memory at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import IO, Any

from django.db import models, transaction
from django.utils import timezone

from inference.content import FILES
from tenants.adapters import storage
from tenants.files import blobs
from tenants.models import AdapterVersion, Tenant, TenantExport
from tenants.offboarding.archive import ArchiveWriter, Pulse, uninterrupted
from tenants.offboarding.sections import LEFT_OUT, sections
from tenants.permissions import Caller, Permission

FORMAT = "lorikeet-export-1"
LIFETIME = timedelta(days=7)
"""How long an archive can be downloaded."""
Report = Callable[[str], None]


@dataclass(frozen=True)
class ExportOrder:
    """What to export: `content` is what only members read, such as stored prompts, conversations
    and saved prompts; `by` is who asked for it."""

    tenant: Tenant
    by: str
    content: bool


def write(
    order: ExportOrder, file: IO[bytes], report: Report, pulse: Pulse = uninterrupted
) -> None:
    """Write the tenant's archive to a file that can seek; reports each of its parts. `pulse` is
    called very often; what it raises ends the archive.

    Raises:
        OSError: the disk is full, for example.
    """
    tenant = order.tenant
    with ArchiveWriter(file, pulse) as archive:
        for section in sections(tenant):
            if order.content or not section.private:
                count = archive.lines(f"{section.name}.jsonl", section)
                report(f"{section.name}: {count:,}")
        report(f"adapters' files: {_adapters(tenant, archive):,}")
        report(f"files: {_files(tenant, archive):,}")
        about = {
            "format": FORMAT,
            "tenant": tenant.slug,
            "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "by": order.by,
            "content": order.content,
        }
        archive.describe(about, _readme(tenant, content=order.content))


def _adapters(tenant: Tenant, archive: ArchiveWriter) -> int:
    """Add the files of all versions, as they are served and, if converted, as they were sent."""
    found = AdapterVersion.objects.filter(adapter__tenant=tenant).exclude(folder="")
    rows = found.order_by("pk").values_list("adapter__name", "number", "folder", "converted")
    count = 0
    for name, number, folder, converted in rows.iterator():
        sent = [f"{storage.ORIGINALS}/{one}" for one in converted]
        for one in (*FILES, *sent):
            opened = partial(storage.open_file, folder, one)
            count += _copy(archive, f"adapters/{name}/{number}/{one}", opened)
    return count


def _files(tenant: Tenant, archive: ArchiveWriter) -> int:
    ids = tenant.files.order_by("pk").values_list("pk", flat=True)
    return sum(_copy(archive, f"files/{id}", partial(blobs.open, id)) for id in ids.iterator())


def _copy(archive: ArchiveWriter, name: str, opened: Callable[[], Any]) -> bool:
    """Add this file; false if it is gone."""
    try:
        source = opened()
    except FileNotFoundError:
        archive.missing.append(name)
        return False
    with closing(source):
        archive.copy(name, source)
    return True


def _readme(tenant: Tenant, *, content: bool) -> str:
    private = [one.name for one in sections(tenant) if one.private]
    omitted = dict.fromkeys(LEFT_OUT.values())
    lines = [
        f"Everything that the tenant {tenant.slug} has in this installation of Lorikeet.",
        "",
        "*.jsonl     a JSON object a line, as in the database; times are in UTC",
        "adapters/   files of adapter versions, by adapter and number; those in original/ are as",
        "            they were sent, beside the converted ones that are served",
        "files/      uploaded files and batches' answers, by their ids in files.jsonl",
        "manifest.json   rows, bytes and SHA-256 of each file; `missing`: files that were gone",
        "",
        "receipts.jsonl has a signed receipt for each request of usage_events.jsonl, which",
        "`manage.py verify_receipt` and any JOSE library verify with the public key.",
        "Costs are in pico-units (1e-12) of the currency.",
        "",
        "Not in it:",
        "- secrets, which are not stored or would be of use to a thief",
        *(f"- {reason}" for reason in omitted),
    ]
    if not content:
        lines += [
            "",
            "An operator asked for this archive, so what only the tenant's members read is not in",
            f"it: {', '.join(private)}.",
        ]
    return "\n".join(lines) + "\n"


def make(export: TenantExport, pulse: Pulse) -> None:
    """Write the archive that was asked for; it can be downloaded for LIFETIME.

    Raises:
        OSError: the disk is full, for example; it can be made again.
    """
    with blobs.made(export.pk) as file:
        order = ExportOrder(export.tenant, export.asked_by, export.content)
        write(order, file, lambda message: None, pulse)
        size, digest = file.tell(), _digest(file)
    now = timezone.now()
    unfinished = TenantExport.objects.filter(pk=export.pk, finished_at=None)
    ended = {"finished_at": now, "expires_at": now + LIFETIME, "size_bytes": size}
    if not unfinished.update(sha256=digest, **ended):
        blobs.remove(export.pk)  # deleted meanwhile


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def remove(export: TenantExport) -> None:
    """Delete an archive, and the request for it."""
    with transaction.atomic():
        export.delete()
        transaction.on_commit(lambda: blobs.remove(export.pk))


def remove_expired() -> None:
    for export in TenantExport.objects.expired():
        remove(export)


def visible_to(caller: Caller) -> models.QuerySet[TenantExport]:
    """The archives that the caller may download, now or once they are written."""
    found = TenantExport.objects.current().filter(tenant=caller.tenant)
    if not caller.may(Permission.READ_CONTENT):
        found = found.filter(content=False)
    return found.select_related("tenant")


def is_kept(export: TenantExport) -> bool:
    """Whether its archive is there."""
    return blobs.exists(export.pk)
