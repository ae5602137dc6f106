"""Parts of pushes to the hub that wait for a commit.

A large file is sent before the commit that names it by its SHA-256. Each is an upload with an
`oid`, counted like any other from the moment it is announced. The first commit that names it takes
its file over; without one it expires. So does an adapter's first commit if it has only one of the
two files: it waits for one with the other file.
"""

from __future__ import annotations

import re
from datetime import timedelta

from inference.content import WEIGHTS
from tenants.adapters.uploads import parts
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.models import Tenant, UploadSession
from tenants.models.uploads import UploadSessionQuerySet

OID = re.compile(r"[0-9a-f]{64}")
WAITING_COMMIT = "commit"
"""The `oid` of a commit that waits for the other file."""
LIFETIME = timedelta(hours=6)
"""Time between announcement and commit: enough for 2 GiB at 100 KB/s."""


def waiting(tenant: Tenant, adapter_name: str, oid: str) -> UploadSessionQuerySet:
    """The objects of this SHA-256 that a commit to the tenant's adapter may name."""
    found: UploadSessionQuerySet = tenant.uploads.unfinished()
    return found.filter(adapter_name=adapter_name, oid=oid)


class OtherFileNeeded(Exception):
    """A commit has only one of the two files, and the other one is nowhere."""


def waiting_commit(tenant: Tenant, adapter_name: str) -> UploadSession | None:
    """The newest commit to this adapter that waits for the other file."""
    return waiting(tenant, adapter_name, WAITING_COMMIT).last()


def forget_commits(session: UploadSession) -> None:
    """Delete the commits that waited and do so no longer, since this one succeeded or waits."""
    found = waiting(session.tenant, session.adapter_name, WAITING_COMMIT)
    for one in found.exclude(pk=session.pk):
        parts.discard(one)


def is_complete(session: UploadSession) -> bool:
    """Whether all of the object has arrived."""
    return parts.size(session.pk) == session.length_bytes


def take_over(commit: UploadSession, oid: str) -> None:
    """Give the commit's upload the object's file, as its weights; the object is then gone.

    Raises:
        UploadRefused: no such object has arrived completely.
    """
    for session in waiting(commit.tenant, commit.adapter_name, oid):
        # The weights may exist already: an earlier worker may have been killed later.
        if parts.has(commit.pk, WEIGHTS):
            parts.discard(session)
        else:
            parts.take_weights(session, commit)
    if not parts.has(commit.pk, WEIGHTS):
        raise UploadRefused(
            UploadRefusal.OBJECT_MISSING,
            f"The commit refers to {WEIGHTS} with the SHA-256 {oid}, but that object was "
            "not sent completely.",
        )
