"""Receives the large bodies of pushes without Django, which would store them in memory or on disk
before it authenticates the caller.

As in `uploads.intake`, Django is asked twice: before the body, whether it is accepted and where it
goes, and after the body, for the response.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from http import HTTPStatus
from uuid import UUID

from channels.db import database_sync_to_async

from tenants.adapters.uploads.guard import App, Receive, Scope, Send, content_length
from tenants.adapters.uploads.intake import (
    FULL,
    ClientGone,
    IntakeAnswer,
    bodiless,
    copy_body,
    nothing,
)
from tenants.adapters.uploads.parts import OffsetMoved, UploadGone, Writer, discard, restart
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.models import UploadSession

BODIES = re.compile(r"/hub/(?:objects/[^/]+|api/models/[^/]+/[^/]+/commit/[^/]+)")
LENGTH, RECEIVED = "lorikeet.hub_length", "lorikeet.hub_received"
"""Keys in the request's scope: the body's declared length, and, once it has been received, the id
of its upload."""


class HubBodies:
    """Passes requests on to `app`, without their bodies."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = content_length(dict(scope["headers"]))
        admitted = await self._ask({**scope, LENGTH: length})
        if admitted.status != HTTPStatus.NO_CONTENT:
            await admitted.pass_on(send)
            return
        id = UUID(admitted.text(b"upload-id"))
        try:
            await _take(id, admitted.number(b"upload-length"), receive)
        except UploadRefused as refusal:
            await _give_up(id)
            await _refuse(send, refusal)
        except ClientGone:
            await _give_up(id)
        else:
            await (await self._ask({**scope, RECEIVED: id})).pass_on(send)

    async def _ask(self, scope: Scope) -> IntakeAnswer:
        answer = IntakeAnswer()
        await self._app(bodiless(scope), nothing(), answer.keep)
        return answer


async def _take(id: UUID, most: int, receive: Receive) -> None:
    """Write the body to the upload's file.

    Raises:
        UploadRefused: it has more bytes than `most`, another request sends it too, the upload was
            committed or given up meanwhile, or the disk is full.
        ClientGone: the client disconnected.
    """
    try:
        await database_sync_to_async(restart)(id)
        with Writer(id, 0) as writer:
            await copy_body(writer, most, receive)
    except (OffsetMoved, UploadGone) as error:
        message = "Another request is sending this object or has already committed it."
        raise UploadRefused(UploadRefusal.OFFSET_MISMATCH, message) from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        message = (
            "The server's disk for uploads is full. Push again once the operator has freed space."
        )
        raise UploadRefused(UploadRefusal.STORAGE_FULL, message) from error


async def _give_up(id: UUID) -> None:
    """Delete the upload of a commit whose body did not arrive. That of an object stays: it can be
    sent again to the same address."""
    await database_sync_to_async(_discard)(id)


def _discard(id: UUID) -> None:
    for session in UploadSession.objects.filter(pk=id, oid="", received_at=None):
        discard(session)


async def _refuse(send: Send, refusal: UploadRefused) -> None:
    body = json.dumps({"error": refusal.message}).encode()
    headers: Iterable[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-error-message", refusal.message.encode("ascii", "backslashreplace")),
    ]
    start = {"type": "http.response.start", "status": refusal.status_code, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
