"""Keeps and deletes a tenant's files: within its storage, until they expire, never while a batch,
a fine-tuning job or a run of an eval reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.db import transaction
from django.utils import timezone

from inference.errors import FileInUse, InvalidRequest, NotFound, StorageFull
from tenants import storage
from tenants.adapters import quota
from tenants.adapters.uploads.refusals import UploadRefused
from tenants.files import blobs
from tenants.models import (
    Batch,
    EvalRun,
    FineTuningJob,
    Purpose,
    StoredFile,
    Tenant,
    TenantExport,
    UploadPart,
)


def require_room(tenant: Tenant, size_bytes: int) -> None:
    """Raises StorageFull if a file of this size exceeds the tenant's storage or number of files."""
    count = tenant.files.current().count()
    if count >= settings.TENANT_FILES:
        raise StorageFull(
            f"The tenant has {count} files; at most {settings.TENANT_FILES} are allowed. "
            "Delete some first."
        )
    try:
        quota.Storage.of(tenant).require(size_bytes, more_versions=0)
    except UploadRefused as refusal:
        raise StorageFull(refusal.message) from refusal


def keep(file: StoredFile, upload: TemporaryUploadedFile) -> None:
    """Keep an upload as this new file.

    Raises:
        StorageFull: the tenant has no room for it.
    """
    with adopted(file.pk, upload), transaction.atomic():
        require_room(quota.locked(file.tenant_id), file.size_bytes)
        file.save(force_insert=True)


@contextmanager
def adopted(id: str, upload: TemporaryUploadedFile) -> Iterator[None]:
    """Keep an upload's bytes as the file with this id, and delete them if the block fails."""
    assert upload.file is not None
    try:
        blobs.keep(id, upload.file)
        yield
    except BaseException:
        blobs.remove(id)
        raise


def to_read(tenant: Tenant, id: str, purpose: Purpose, param: str) -> StoredFile:
    """The file, locked, so that it is not deleted (`delete`) before the current transaction has
    noted who reads it. `param` is the field that names it.

    Raises:
        InvalidRequest: the tenant has none of this id, or it has another purpose.
    """
    current = tenant.files.current().select_for_update()
    file = None if "\0" in id else current.filter(pk=id).first()
    if file is None:
        raise InvalidRequest(f"`{param}` is {id[:64]!r}: there is no such file.", param=param)
    if file.purpose != purpose:
        raise InvalidRequest(
            f"The file's purpose is `{file.purpose}`: it must be `{purpose.value}`.", param=param
        )
    return file


def delete(tenant: Tenant, id: str) -> None:
    """Delete a file.

    Raises:
        NotFound: the tenant has none of this id.
        FileInUse: a batch, a fine-tuning job or a run of an eval reads it.
    """
    with transaction.atomic():
        file = tenant.files.select_for_update().filter(pk=id).first()
        if file is None:
            raise NotFound(f"No such file: {id[:64]}.")
        if (batch := Batch.objects.unfinished().filter(input_file=file).first()) is not None:
            raise FileInUse(
                f"The batch {batch.pk} is using this file. Cancel the batch or wait until "
                "it has ended."
            )
        if (job := FineTuningJob.objects.reading(file.pk).first()) is not None:
            raise FileInUse(
                f"The fine-tuning job {job.pk} is using this file. Cancel it or wait until it has "
                "ended."
            )
        if (run := EvalRun.objects.unfinished().filter(file=file).first()) is not None:
            raise FileInUse(
                f"The eval run {run.pk} is using this file. Cancel it or wait until it has ended."
            )
        _delete([file])


def _delete(files: Iterable[StoredFile]) -> None:
    """Delete rows now, and bytes after the commit: a row without bytes would be an error to its
    owner, while bytes without a row are cleaned up later."""
    ids = [file.pk for file in files]
    StoredFile.objects.filter(pk__in=ids).delete()
    for id in ids:
        transaction.on_commit(partial(blobs.remove, id))


def remove_expired() -> None:
    """Delete files that have expired, except those that unfinished batches, fine-tuning jobs and
    runs of evals read."""
    tuning = FineTuningJob.objects.unfinished()
    expired = (
        StoredFile.objects.expired()
        .exclude(pk__in=Batch.objects.unfinished().values("input_file"))
        .exclude(pk__in=EvalRun.objects.unfinished().values("file"))
        .exclude(pk__in=tuning.values("training_file"))
        .exclude(pk__in=tuning.exclude(validation_file=None).values("validation_file"))
    )
    with transaction.atomic():
        _delete(expired.select_for_update())


def remove_strays() -> None:
    """Delete files without a row: leftovers of killed consoles and workers, and of deleted
    tenants."""
    storage.remove_strays(blobs.PLACE, StoredFile, UploadPart, TenantExport, FineTuningJob)


def expiry(seconds: int | None) -> datetime | None:
    """When a file that is kept for this long from now expires; None means never."""
    return None if seconds is None else timezone.now() + timedelta(seconds=seconds)
