"""Files uploaded in parts: a lost part can be sent again, and the order of the parts is given at
the end. An upload that is not complete an hour after it began is deleted.

The announced size counts towards the tenant's storage from the beginning. The parts may add up to
more, because one whose response was lost is sent twice; parts not named at the end are deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from django.core.files.uploadedfile import TemporaryUploadedFile
from django.db import transaction
from django.utils import timezone

from inference.errors import InvalidRequest, NotFound, RateLimitExceeded, UploadEnded
from tenants.adapters import quota
from tenants.files import blobs, keeping
from tenants.models import StoredFile, Tenant, Upload, UploadPart
from tenants.models.files import UploadStatus

LASTS = timedelta(hours=1)
MAX_PART_BYTES = 64 << 20
MAX_PARTS = 1_000
AT_ONCE = 20
"""Unfinished uploads of one tenant."""
CHUNK_BYTES = 1 << 20


def begin(upload: Upload) -> None:
    """Save a new upload.

    Raises:
        StorageFull: the tenant has no room for it.
        RateLimitExceeded: the tenant has begun too many.
    """
    with transaction.atomic():
        tenant = quota.locked(upload.tenant_id)
        if tenant.file_uploads.pending().count() >= AT_ONCE:
            raise RateLimitExceeded(
                f"The tenant has {AT_ONCE} unfinished uploads, the maximum. Complete or "
                "cancel one first.",
                retry_after_s=60,
            )
        keeping.require_room(tenant, upload.size_bytes)
        upload.expires_at = upload.created_at + LASTS
        upload.save(force_insert=True)


def add(tenant: Tenant, id: str, content: TemporaryUploadedFile) -> UploadPart:
    """Store a part.

    Raises:
        NotFound, UploadEnded: there is no such upload, or not any more.
        InvalidRequest: the part is too large, or there are too many.
    """
    part = UploadPart(upload_id=id, size_bytes=content.size or 0)
    with keeping.adopted(part.pk, content), transaction.atomic():
        upload = _locked(tenant, id)
        _require_pending(upload)
        before = [*upload.parts.values_list("size_bytes", flat=True)]
        if part.size_bytes > min(MAX_PART_BYTES, upload.size_bytes):
            raise InvalidRequest("The part is larger than the upload or than 64 MiB.")
        if len(before) >= MAX_PARTS or sum(before) + part.size_bytes > 2 * upload.size_bytes:
            raise InvalidRequest("The upload has too many parts, or they are too large.")
        part.save(force_insert=True)
    return part


def complete(tenant: Tenant, id: str, part_ids: Sequence[str], md5: str | None) -> Upload:
    """Join these parts, in this order, to the file. A complete upload stays as it is.

    Raises:
        NotFound, UploadEnded: there is no such upload, or not any more.
        InvalidRequest: these parts are not the file that was announced.
    """
    with transaction.atomic():
        upload = _locked(tenant, id)
        if upload.status == UploadStatus.COMPLETED:
            return upload
        _require_pending(upload)
        kept = {part.pk: part for part in upload.parts.all()}
        _require_all(upload, kept, part_ids)
        file = StoredFile(
            tenant=tenant,
            purpose=upload.purpose,
            filename=upload.filename,
            size_bytes=upload.size_bytes,
            expires_at=keeping.expiry(upload.kept_seconds),
        )
        try:
            _join(file.pk, part_ids, md5)
            file.save(force_insert=True)
            _end(upload, UploadStatus.COMPLETED, file=file)
        except BaseException:
            blobs.remove(file.pk)
            raise
    return upload


def cancel(tenant: Tenant, id: str) -> Upload:
    """End an upload without a file. Does nothing if it was cancelled before.

    Raises:
        NotFound: there is no such upload.
        UploadEnded: it is complete or has expired.
    """
    with transaction.atomic():
        upload = _locked(tenant, id)
        if upload.status != UploadStatus.CANCELLED:
            _require_pending(upload)
            _end(upload, UploadStatus.CANCELLED)
    return upload


def expire() -> None:
    """End the uploads whose time is over."""
    over = Upload.objects.filter(status=UploadStatus.PENDING, expires_at__lte=timezone.now())
    with transaction.atomic():
        for upload in over.select_for_update():
            _end(upload, UploadStatus.EXPIRED)


def _locked(tenant: Tenant, id: str) -> Upload:
    upload = tenant.file_uploads.select_for_update().filter(pk=id.replace("\0", "")).first()
    if upload is None:
        raise NotFound(f"No such upload: {id[:64]}.")
    return upload


def _require_pending(upload: Upload) -> None:
    if upload.shown_status != UploadStatus.PENDING:
        raise UploadEnded(f"The upload is {upload.shown_status}.")


def _require_all(upload: Upload, kept: Mapping[str, UploadPart], part_ids: Sequence[str]) -> None:
    if unknown := [id for id in part_ids if id not in kept]:
        message = f"The upload has no part {unknown[0][:64]}."
        raise InvalidRequest(message, param="part_ids")
    if len({*part_ids}) < len(part_ids):
        raise InvalidRequest("`part_ids` contains a part twice.", param="part_ids")
    size = sum(kept[id].size_bytes for id in part_ids)
    if size != upload.size_bytes:
        raise InvalidRequest(
            f"The parts have {size} bytes in total, but {upload.size_bytes} were announced.",
            param="part_ids",
        )


def _join(id: str, part_ids: Sequence[str], md5: str | None) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with blobs.made(id) as whole:
        for part_id in part_ids:
            with blobs.open(part_id) as part:
                while chunk := part.read(CHUNK_BYTES):
                    whole.write(chunk)
                    digest.update(chunk)
        if md5 is not None and md5.lower() != digest.hexdigest():
            message = f"The MD5 of the parts is {digest.hexdigest()}, which is not `md5`."
            raise InvalidRequest(message, param="md5")


def _end(upload: Upload, status: UploadStatus, file: StoredFile | None = None) -> None:
    """Set the final status and delete the parts; their bytes are deleted after the commit."""
    for id in upload.parts.values_list("pk", flat=True):
        transaction.on_commit(partial(blobs.remove, id))
    upload.parts.all().delete()
    upload.status, upload.file = status, file
    upload.save(update_fields=["status", "file"])
