"""Receives uploads in parts without Django, which would write each body to disk first.

Django is asked twice. Before the body, with the same request without it: may this caller append at
this offset? Its 204 says how much is missing. The body is then kept in chunks as it arrives: if the
connection breaks, all of it; if this process fails, all but the last chunk. After the body, with
the offset that was reached: Django answers the client, and hands over an upload that is complete.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from tenants.adapters.uploads import tus
from tenants.adapters.uploads.guard import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    content_length,
    refuse,
)
from tenants.adapters.uploads.parts import OffsetMoved, UploadGone, Writer
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.storage import is_away

Headers = Iterable[tuple[bytes, bytes]]
FULL = (errno.ENOSPC, errno.EDQUOT)


class UploadIntake:
    """Passes requests on to `app`; those to the addresses of `tus.UPLOADS` without a body."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = tus.UPLOADS.fullmatch(scope["path"])
        if match is None:
            await self._app(scope, receive, send)
            return
        scope = _overridden(scope)
        if scope["method"] == "PATCH" and match[1]:
            await self._append(scope, receive, send)
        else:
            await self._app(bodiless(scope), nothing(), send)

    async def _append(self, scope: Scope, receive: Receive, send: Send) -> None:
        admitted = await self._ask(scope)
        if admitted.status != 204:
            await admitted.pass_on(send)
            return
        try:
            reached = await _take(scope, admitted, receive)
        except UploadRefused as refusal:
            await refuse(send, refusal.status_code, refusal.code, refusal.message, TUS)
        except ClientGone:
            pass
        except UploadGone:  # it was completed or given up meanwhile, and Django knows
            await (await self._ask(scope)).pass_on(send)
        else:
            moved = reached != admitted.number(b"upload-offset")
            answer = await self._ask(scope, reached) if moved else admitted
            await answer.pass_on(send)

    async def _ask(self, scope: Scope, offset: int | None = None) -> IntakeAnswer:
        """Django's response to this request without its body, as if its Upload-Offset were
        `offset`."""
        answer = IntakeAnswer()
        await self._app(bodiless(scope, offset), nothing(), answer.keep)
        return answer


TUS = ((b"tus-resumable", tus.VERSION.encode()),)


class ClientGone(Exception):
    """The connection broke before the body's end."""


@dataclass(slots=True)
class IntakeAnswer:
    """A response that is inspected before it is sent."""

    messages: list[Message] = field(default_factory=list)

    async def keep(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        found: int = self.messages[0]["status"]
        return found

    def text(self, header: bytes) -> str:
        found = {name.lower(): value for name, value in self.messages[0]["headers"]}
        return str(found[header], "latin-1")

    def number(self, header: bytes) -> int:
        return int(self.text(header))

    async def pass_on(self, send: Send) -> None:
        for message in self.messages:
            await send(message)


async def _take(scope: Scope, admitted: IntakeAnswer, receive: Receive) -> int:
    """Append the body to the upload's file. Returns the offset that was reached.

    Raises:
        UploadRefused: it reaches beyond the upload's length, another request has written at this
            offset, or the disk is full.
        ClientGone: the client disconnected.
        UploadGone: see there.
    """
    offset, length = admitted.number(b"upload-offset"), admitted.number(b"upload-length")
    if offset + content_length(dict(scope["headers"])) > length:
        raise _too_long(length)
    if offset == length:
        return offset
    try:
        with Writer(UUID(scope["path"].rsplit("/", 1)[1]), offset) as writer:
            await copy_body(writer, length, receive)
    except OffsetMoved as moved:
        raise UploadRefused(
            UploadRefusal.OFFSET_MISMATCH,
            f"Another request is sending this upload, whose offset is now {moved} bytes.",
        ) from moved
    except Exception as error:
        if (refusal := _not_stored(error)) is None:
            raise
        raise refusal from error
    return writer.offset


def _not_stored(error: Exception) -> UploadRefused | None:
    """The refusal of bytes that could not be stored; None if the error says something else."""
    if isinstance(error, OSError) and error.errno in FULL:
        return UploadRefused(
            UploadRefusal.STORAGE_FULL,
            "The server's disk for uploads is full. Continue once the operator has freed space.",
        )
    if is_away(error):
        return UploadRefused(
            UploadRefusal.STORAGE_AWAY, "The storage of files is unavailable. Continue later.", 1
        )
    return None


async def copy_body(writer: Writer, length: int, receive: Receive) -> None:
    """Append the body. If the client leaves or sends too much, what arrived before is kept."""
    fault: Exception | None = None
    more = True
    while more and not fault:
        message = await receive()
        body, more = message.get("body", b""), message.get("more_body", False)
        if message["type"] == "http.disconnect":
            fault = ClientGone()
        elif writer.offset + len(body) > length:
            fault = _too_long(length)
        elif body:
            await writer.append(body)
    await writer.keep()
    if fault:
        raise fault


def _too_long(length: int) -> UploadRefused:
    return UploadRefused(
        UploadRefusal.PAYLOAD_TOO_LARGE,
        f"The body exceeds this upload's Upload-Length of {length} bytes.",
    )


def without_body(app: App) -> App:
    """For requests without a body: the server discards one that Django would write to disk."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await app(bodiless(scope), nothing(), send)

    return asked


def _overridden(scope: Scope) -> Scope:
    """For clients that cannot send PATCH or DELETE."""
    method = dict(scope["headers"]).get(b"x-http-method-override")
    return {**scope, "method": method.decode("latin-1").upper()} if method else scope


def bodiless(scope: Scope, offset: int | None = None) -> Scope:
    left_out = {b"content-length", b"transfer-encoding"}
    replaced = [] if offset is None else [(b"upload-offset", str(offset).encode())]
    left_out |= {name for name, _ in replaced}
    kept = [header for header in scope["headers"] if header[0] not in left_out]
    return {**scope, "headers": kept + replaced}


def nothing() -> Receive:
    """The `receive` of an empty body, whose client then never disconnects."""
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        message = next(messages, None)
        return message if message is not None else await asyncio.Future()

    return receive
