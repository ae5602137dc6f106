"""Reserves space for an upload before a byte of it is received.

An upload in parts is counted when it is created (`handover.admit`). The body of an upload in a
single request is written to disk before any view runs, so its row, which counts towards the quota,
is created here before the body is read. `handover.receive` takes the row over; otherwise it is
deleted when the request ends.
"""

from __future__ import annotations

from urllib.parse import parse_qs
from uuid import UUID

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest
from django.utils import timezone

from inference.interfaces.directory import Grant
from tenants.adapters.uploads import handover
from tenants.adapters.uploads.guard import (
    FRAMING_BYTES,
    GRANT,
    UPLOAD_PATH,
    App,
    Receive,
    Scope,
    Send,
    content_length,
    refuse,
    session_of,
)
from tenants.adapters.uploads.intake import without_body
from tenants.adapters.uploads.refusals import UploadRefused
from tenants.models import ApiKey, Tenant, UploadSession, User
from tenants.models.uploads import RESERVED
from tenants.permissions import Caller, Permission

_RESERVED = "lorikeet.reserved_upload"
"""Key of the upload's id in the request's scope."""


class UploadReservation:
    """Passes requests on to `app`, and uploads only if there is room for them.

    If the caller may not upload, the request is passed on without its body, and Django answers why.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST" or not UPLOAD_PATH.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            reserved = await database_sync_to_async(_reserve)(scope)
        except UploadRefused as refusal:
            wait = [] if refusal.wait is None else [(b"retry-after", b"%d" % refusal.wait)]
            await refuse(send, refusal.status_code, refusal.code, refusal.message, wait)
            return
        if reserved is None:
            await without_body(self._app)(scope, receive, send)
            return
        try:
            await self._app({**scope, _RESERVED: reserved}, receive, send)
        finally:
            await database_sync_to_async(_release)(reserved)


def reservation(request: HttpRequest) -> UUID | None:
    """The upload that was reserved for this request before its body was read, if any."""
    found: UUID | None = getattr(request, "scope", {}).get(_RESERVED)
    return found


def _reserve(scope: Scope) -> UUID | None:
    """A new upload of the body's length; None if the caller may not upload.

    Raises:
        UploadRefused: there is no room for it.
    """
    caller = _caller(scope)
    if caller is None or not caller.may(Permission.EDIT_ADAPTERS):
        return None
    announced = content_length(dict(scope["headers"]))
    session = UploadSession(
        tenant=caller.tenant,
        length_bytes=announced or settings.MAX_ADAPTER_BYTES + FRAMING_BYTES,
        expires_at=timezone.now() + RESERVED,
    )
    handover.admit(session)
    return session.pk


def _release(reserved: UUID) -> None:
    UploadSession.objects.filter(pk=reserved, received_at=None).delete()


def _caller(scope: Scope) -> Caller | None:
    """The caller that uploads, with its tenant; None if Django is going to refuse the request."""
    grant: Grant | None = scope.get(GRANT)
    if grant is not None:
        key = ApiKey.objects.select_related("tenant").filter(pk=grant.key_id).first()
        return Caller(key.tenant, key=key) if key else None
    request = HttpRequest()
    request.session = session_of(scope)
    user = get_user(request)
    if not isinstance(user, User):
        return None
    found = Tenant.objects.visible_to(user)
    if slug := _slug(scope):
        found = found.filter(slug=slug)
    tenants = list(found[:2])
    return Caller.of_member(user, tenants[0]) if len(tenants) == 1 else None


def _slug(scope: Scope) -> str:
    """The slug of the tenant that the address names; empty if it names none."""
    page = UPLOAD_PATH.fullmatch(scope["path"])
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    named: str | None = page["tenant"] if page else None
    return named or query.get("tenant", [""])[0]
