"""Hands a received upload over to a worker, and waits for the outcome.

The console only receives bytes. Once they are complete, a worker has a child process read them
(`unpacking`). The request that sent the last byte waits for that, for a limited time: most clients
learn at once what became of their upload, and the others ask again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.db import connection, models, transaction
from django.utils import timezone

from inference.content import CONFIG, WEIGHTS
from tenants.adapters import jobs, quota, short_lived
from tenants.adapters.checks.findings import shown
from tenants.adapters.uploads import parts
from tenants.adapters.uploads.keeping import Destination
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused, too_large
from tenants.adapters.uploads.selection import ARCHIVE_NAMES, is_archive_name, select
from tenants.models import StoredFile, Tenant, UploadChunk, UploadSession
from tenants.models.audit import Actor
from tenants.models.uploads import RESERVED, expiry
from tenants.sizes import size

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
"""Pauses between checks for the outcome, which takes a worker at least 0.1 s."""


def receive(
    where: Destination,
    files: Sequence[UploadedFile[bytes]],
    actor: Actor,
    reserved: UUID | None = None,
) -> UploadSession:
    """Keep the adapter among the files of a request, or the one archive, and hand it to a worker
    for the actor.

    `reserved` is the upload that `reservations` created for this request, if it did.

    Raises:
        UploadRefused: the files have no adapter, or one in shards; they can't become a version
            there; or the tenant has too many unfinished uploads or no storage left.
    """
    file_name, by_name, left_out = _chosen(files)
    where.refuse_unless_possible()
    kept = where.tenant.uploads.filter(pk=reserved).first() if reserved else None
    session = kept or UploadSession(tenant=where.tenant)
    session.file_name = file_name[-255:]
    session.length_bytes = sum(file.size or 0 for file in by_name.values())
    session.left_out = left_out
    _address(session, where)
    chunks = parts.stored(session.pk, by_name)
    try:
        with transaction.atomic():
            admit(session)
            UploadChunk.objects.bulk_create(chunks)
            hand_over(session, actor)
    except BaseException:
        parts.remove_bytes(one.pk for one in chunks)
        raise
    return session


def receive_stored(where: Destination, file: StoredFile, actor: Actor) -> UploadSession:
    """As `receive`, for an archive that is a file of the tenant. The file stays."""
    where.refuse_unless_possible()
    if not is_archive_name(file.filename):
        raise UploadRefused(
            UploadRefusal.ARCHIVE_UNSUPPORTED,
            f"The file {file.pk} is named {shown(file.filename)}: it must be an archive of the "
            f"adapter's folder ({', '.join(ARCHIVE_NAMES)}).",
        )
    if file.size_bytes > settings.MAX_ADAPTER_BYTES:
        raise too_large(settings.MAX_ADAPTER_BYTES)
    session = UploadSession(tenant=where.tenant, source_file=file.pk, file_name=file.filename)
    session.length_bytes = file.size_bytes
    _address(session, where)
    with transaction.atomic():
        admit(session)
        hand_over(session, actor)
    return session


def _address(session: UploadSession, where: Destination) -> None:
    session.adapter_name, session.created_by = where.name, where.user
    session.base_model_name, session.base_confirmed = where.base_name, where.base_confirmed
    session.short_lived = where.short_lived
    session.expires_at = timezone.now() + RESERVED if where.short_lived else expiry()


def _chosen(
    files: Sequence[UploadedFile[bytes]],
) -> tuple[str, dict[str, UploadedFile[bytes]], list[str]]:
    """The upload's name, its files by the names that `parts` keeps them under, and what is not
    kept."""
    names = [str(file.name) for file in files]
    if len(names) == 1 and is_archive_name(names[0]):
        return names[0], {"": files[0]}, []
    selection = select(names)
    if len(selection.weights) > 1:
        raise UploadRefused(
            UploadRefusal.FILE_MISSING,
            f"{WEIGHTS} is missing: weights in several files are accepted in an archive.",
        )
    by_name = dict(zip(names, files, strict=True))
    chosen = {CONFIG: by_name[selection.config], WEIGHTS: by_name[selection.weights[0]]}
    return WEIGHTS, chosen, selection.left_out_names()


@transaction.atomic
def admit(session: UploadSession) -> None:
    """Save a new upload.

    Raises:
        UploadRefused: the tenant has too many unfinished uploads, or no storage left.
    """
    tenant = quota.locked(session.tenant_id)  # the next upload counts this one
    _check_under_way(tenant, session)
    if session.short_lived:
        short_lived.check_bounds(tenant, session.adapter_name)
    quota.require_room_for_upload(tenant, session)
    session.save()


def _check_under_way(tenant: Tenant, session: UploadSession) -> None:
    unfinished, length = tenant.uploads.unfinished().exclude(pk=session.pk), session.length_bytes
    used = unfinished.aggregate(n=models.Count("pk"), bytes=models.Sum("length_bytes"))
    if used["n"] >= settings.MAX_TENANT_UPLOADS:
        limit = f"{used['n']} unfinished uploads; at most {settings.MAX_TENANT_UPLOADS} are allowed"
    elif (used["bytes"] or 0) + length > settings.MAX_TENANT_UPLOAD_BYTES:
        limit = (
            f"unfinished uploads of {size(used['bytes'] or 0)}; together with this "
            f"upload's {size(length)}, they exceed the limit of "
            f"{size(settings.MAX_TENANT_UPLOAD_BYTES)}"
        )
    else:
        return
    first = unfinished.values_list("expires_at", flat=True).order_by("expires_at").first()
    wait = max(1, int((first - timezone.now()).total_seconds())) if first else None
    raise UploadRefused(
        UploadRefusal.TOO_MANY_UPLOADS,
        f"The tenant {tenant.slug} has {limit}. Complete or delete one first.",
        wait,
    )


def hand_over(session: UploadSession, actor: Actor) -> None:
    """Have a worker turn the complete upload into a version on behalf of the actor. Does nothing if
    it was handed over before."""
    with transaction.atomic():
        waiting = UploadSession.objects.unfinished().filter(pk=session.pk, received_at=None)
        if waiting.update(received_at=timezone.now(), actor=asdict(actor)):
            jobs.unpack_later(session)
    session.refresh_from_db()


def outcome(session: UploadSession) -> UploadSession:
    """The upload once it has ended, or its state after UPLOAD_WAIT_S.

    Raises:
        UploadRefused: it was refused, waits for another commit, or is gone.
    """
    deadline, pause = time.monotonic() + settings.UPLOAD_WAIT_S, FIRST_PAUSE_S
    try:
        while not session.ended and not session.oid and time.monotonic() < deadline:
            if not connection.in_atomic_block:  # a test's, which is rolled back at its end
                connection.close()  # others need it meanwhile
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE_S)
            session.refresh_from_db()
    except UploadSession.DoesNotExist as error:
        message = "The upload was discarded, or its adapter deleted, before it was checked."
        raise UploadRefused(UploadRefusal.ADAPTER_DELETED, message) from error
    if session.oid:
        message = "The adapter's other file is needed too: this commit waits for it."
        raise UploadRefused(UploadRefusal.NOTHING_TO_KEEP, message)
    if session.refusal:
        raise UploadRefused(UploadRefusal(session.refusal["code"]), session.refusal["detail"])
    return session
