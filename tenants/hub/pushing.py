"""The views for clients that push an adapter.

They create the repository, ask how to send each file, send large ones by Git LFS, and commit.
Weights up to HUB_COMMIT_BYTES are part of the commit, because a client that has Xet, another
protocol, sends no file by Git LFS. The bodies of objects and commits are received by `bodies`,
which calls these views before and after.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from inference.content import FILES, WEIGHTS
from tenants.adapters.checks.findings import shown
from tenants.adapters.uploads import handover, objects
from tenants.adapters.uploads.content import COMMIT
from tenants.adapters.uploads.keeping import Destination, check_name, refuse_suspended
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused, too_large
from tenants.adapters.uploads.selection import PICKLE_NAMES
from tenants.hub import repos
from tenants.hub.bodies import LENGTH, RECEIVED
from tenants.hub.replies import HubError, hub_view, read, refusing, reply
from tenants.models import UploadSession
from tenants.models.audit import actor_of
from tenants.permissions import Caller, Permission

EDIT = Permission.EDIT_ADAPTERS
MAX_FILES = 256
"""Files in one `preupload` request; clients send as many at once."""
MAX_COMMIT_LINES_BYTES = 1 << 20
"""What a commit may have in addition to the weights."""
LFS = "application/vnd.git-lfs+json"


def _signer() -> signing.TimestampSigner:
    return signing.TimestampSigner(salt="tenants.hub.objects")


class NewRepo(msgspec.Struct):
    name: str
    organization: str | None = None
    type: str | None = None


class ToSend(msgspec.Struct):
    path: str
    size: int


class PushQuestion(msgspec.Struct):
    files: list[ToSend]


class LargeObject(msgspec.Struct):
    oid: str
    size: int


class PushBatch(msgspec.Struct):
    operation: str
    objects: list[LargeObject]
    transfers: list[str] = msgspec.field(default_factory=lambda: ["basic"])


@hub_view("POST", needs=EDIT)
def create(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Check whether an adapter can have this name, and keep the name for a while. The adapter
    itself is created by its first version."""
    asked = read(request, NewRepo)
    owner = asked.organization or caller.tenant.slug
    if asked.type not in (None, "model"):
        raise HubError(
            400, f'This hub has only repositories of type "model", not {shown(asked.type)}.'
        )
    if owner != caller.tenant.slug:
        raise HubError(
            403, f"This API key can create adapters of {caller.tenant.slug}, not of {shown(owner)}."
        )
    check_name(caller.tenant, asked.name)
    repo = {"url": repos.url(request, caller, asked.name), "name": f"{owner}/{asked.name}"}
    known = caller.tenant.adapters.filter(name=asked.name).exists()
    if known or asked.name in repos.created(caller):
        return reply(repo | {"error": "You already created this adapter"}, 409)
    repos.note_created(caller, asked.name)
    return reply(repo)


@hub_view("POST")
def validate_yaml(request: HttpRequest, caller: Caller) -> dict[str, list[str]]:
    """Accept the metadata of a README, which isn't kept."""
    return {"errors": [], "warnings": []}


@hub_view("POST", needs=EDIT)
def preupload(request: HttpRequest, caller: Caller, name: str, revision: str) -> dict[str, Any]:
    """How to send each file; files that do not belong to an adapter are to be ignored."""
    _require_main(request, revision)
    files = read(request, PushQuestion).files
    if len(files) > MAX_FILES:
        raise HubError(
            400, f"The request lists {len(files)} files; at most {MAX_FILES} are allowed."
        )
    return {"files": [_how(file) for file in files]}


def _how(file: ToSend) -> dict[str, Any]:
    stem, dot, kind = file.path.rpartition(".")
    if stem == WEIGHTS.rpartition(".")[0] and dot + kind in PICKLE_NAMES:
        raise UploadRefused(
            UploadRefusal.PICKLE_REFUSED,
            f"{file.path} can run code when it is loaded. Save the adapter as safetensors.",
        )
    ours = file.path in FILES
    if ours and file.size > settings.MAX_ADAPTER_BYTES:
        raise too_large(settings.MAX_ADAPTER_BYTES)
    large = file.path == WEIGHTS and file.size > settings.HUB_COMMIT_BYTES
    return {
        "path": file.path,
        "uploadMode": "lfs" if large else "regular",
        "shouldIgnore": not ours,
        "oid": None,
    }


def _require_main(request: HttpRequest, revision: str) -> None:
    if revision != repos.MAIN or "create_pr" in request.GET:
        raise HubError(
            400,
            "Push to `main`: each push becomes a version. Use promote to point aliases at it.",
        )


@hub_view("GET", needs=EDIT)
def xet_token(request: HttpRequest, caller: Caller, name: str, revision: str) -> HttpResponse:
    """Requested by clients that have Xet, for a file that they were told to send by Git LFS."""
    raise HubError(
        400,
        f"Weights of more than {settings.HUB_COMMIT_BYTES} bytes must be sent with Git "
        "LFS. Set HF_HUB_DISABLE_XET=1 and push again.",
    )


# --- Large objects -------------------------------------------------------------------------------


@hub_view("POST", needs=EDIT)
def batch(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """Where to send a large object, unless it is here already (Git LFS's batch API)."""
    asked = read(request, PushBatch)
    if asked.operation != "upload" or "basic" not in asked.transfers:
        raise HubError(400, "Git LFS is supported only for uploads with the transfer `basic`.")
    if len(asked.objects) != 1:
        raise HubError(400, f"An adapter has exactly one large file, {WEIGHTS}.")
    (one,) = asked.objects
    session = _announced(caller, name, one)
    answer: dict[str, Any] = {"oid": one.oid, "size": one.size, "authenticated": True}
    if not objects.is_complete(session):
        href = f"{repos.base_url(request)}/objects/{_signer().sign(str(session.pk))}"
        answer["actions"] = {"upload": {"href": href, "header": {}}}
    response = reply({"transfer": "basic", "objects": [answer]})
    response["Content-Type"] = LFS
    return response


def _announced(caller: Caller, name: str, one: LargeObject) -> UploadSession:
    """The upload of an object: one that is waiting already, or a new one.

    Raises:
        UploadRefused: it could not become a version, or the tenant has too many unfinished uploads
            or no storage left.
    """
    if not objects.OID.fullmatch(one.oid):
        raise HubError(400, f"{shown(one.oid)} is not a SHA-256 digest.")
    if one.size > settings.MAX_ADAPTER_BYTES:
        raise too_large(settings.MAX_ADAPTER_BYTES)
    if one.size < 1:
        raise HubError(400, f"The object's size is {one.size}: it must be at least 1 byte.")
    Destination(caller.tenant, name, "", None).refuse_unless_possible()
    known = objects.waiting(caller.tenant, name, one.oid).filter(length_bytes=one.size).first()
    session = known or UploadSession(
        tenant=caller.tenant,
        adapter_name=name,
        file_name=WEIGHTS,
        oid=one.oid,
        length_bytes=one.size,
        expires_at=timezone.now() + objects.LIFETIME,
    )
    return session if known else _admitted(session)


def _admitted(session: UploadSession) -> UploadSession:
    handover.admit(session)
    return session


@refusing
def put_object(request: HttpRequest, signed: str) -> HttpResponse:
    """Accept an object's bytes from any client that has its signed address."""
    if request.method != "PUT":
        raise HubError(405, f"This URL does not support {request.method}.")
    session = _signed(signed)
    refuse_suspended(session.tenant)
    if request.scope.get(RECEIVED) is None:  # type: ignore[attr-defined]
        return _go_on(session)
    if not objects.is_complete(session):
        raise HubError(400, f"The body has fewer than the announced {session.length_bytes} bytes.")
    return reply({})


def _signed(signed: str) -> UploadSession:
    try:
        id = _signer().unsign(signed, max_age=objects.LIFETIME)
    except signing.BadSignature:
        raise HubError(403, "The upload URL has expired or is invalid.") from None
    waiting = UploadSession.objects.unfinished().exclude(oid="").select_related("tenant")
    session = waiting.filter(pk=UUID(id), received_at=None).first()
    if session is None:
        raise HubError(404, "This object has already been committed, or its upload was discarded.")
    return session


# --- Commits -------------------------------------------------------------------------------------


@hub_view("POST", needs=EDIT)
def commit(request: HttpRequest, caller: Caller, name: str, revision: str) -> HttpResponse:
    """Make a version of a commit; one without a file of an adapter changes nothing. The response
    waits for a worker to process it, for a limited time (`handover.outcome`)."""
    received: UUID | None = request.scope.get(RECEIVED)  # type: ignore[attr-defined]
    if received is None:
        _require_main(request, revision)
        return _go_on(_begun(caller, name, request.scope.get(LENGTH, 0)))  # type: ignore[attr-defined]
    session = caller.tenant.uploads.unfinished().filter(pk=received, received_at=None).first()
    if session is None:
        raise HubError(404, "This push was discarded in the meantime. Push again.")
    actor = actor_of(request, caller.key)
    assert actor is not None, "a caller is a key"
    handover.hand_over(session, actor)
    try:
        handover.outcome(session)
    except UploadRefused as refused:
        if refused.code != UploadRefusal.NOTHING_TO_KEEP:
            raise
        oid = repos.present_commit(caller, name)
    else:
        # While the upload is still being processed, neither the version nor its digest is known.
        oid = repos.commit_of(session.version) if session.version else session.pk.hex.ljust(40, "0")
        repos.forget_created(caller, name)
    url = f"{repos.url(request, caller, name)}/commit/{oid}"
    return reply({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})


def _begun(caller: Caller, name: str, length: int) -> UploadSession:
    """A new upload for a commit whose body is to be received.

    Raises:
        UploadRefused: it could not become a version, or the tenant has too many unfinished uploads
            or no storage left.
    """
    most = settings.HUB_COMMIT_BYTES * 4 // 3 + MAX_COMMIT_LINES_BYTES
    if length > most:
        raise UploadRefused(
            UploadRefusal.PAYLOAD_TOO_LARGE,
            f"The commit has {length} bytes; at most {most} are allowed.",
        )
    Destination(caller.tenant, name, "", None).refuse_unless_possible()
    return _admitted(
        UploadSession(
            tenant=caller.tenant,
            adapter_name=name,
            file_name=COMMIT,
            length_bytes=length or most,
            expires_at=timezone.now() + objects.LIFETIME,
        )
    )


def _go_on(session: UploadSession) -> HttpResponse:
    """Tell `bodies` where the body goes, and how long it may be."""
    headers = {"Upload-Id": str(session.pk), "Upload-Length": str(session.length_bytes)}
    return HttpResponse(status=204, headers=headers)
