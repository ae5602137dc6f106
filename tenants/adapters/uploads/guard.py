"""Runs before Django, whose handler writes a whole body to disk before it authenticates the caller.

Here bodies that are too large are refused before they are read, and so are uploads by callers that
are not signed in. A body without a declared length is counted as it arrives, and cut off at the
limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from importlib import import_module
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.base import SessionBase
from django.http import parse_cookie

from inference.errors import InferenceError, InvalidApiKey
from inference.interfaces.directory import Directory, Grant
from inference.key_headers import api_key, shows_key
from tenants.adapters.uploads import tus
from tenants.adapters.uploads.refusals import STATUS, UploadRefusal, UploadRefused, too_large
from tenants.permissions import TABLE, Permission
from tenants.problem_details import MEDIA_TYPE, problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD_PATH = re.compile(r"/api/v1/adapters/[^/]+/versions/?|/t/(?P<tenant>[^/]+)/adapters/upload")
"""The paths that receive whole adapters: the API's, and that of the console's form."""
GRANT = "lorikeet.grant"
"""Key of the API key's grant in the scope of an upload, if the key was checked here."""
FRAMING_BYTES = 64 << 10
"""What multipart's boundaries, headers and small fields may add to the files."""


class BodyGuard:
    """Passes requests on to `app`; refuses early what is too large, and uploads without a sign-in.

    With a `directory`, a key is checked in full before its body is read, otherwise only its form.
    """

    def __init__(self, app: App, directory: Directory | None = None) -> None:
        self._app, self._directory = app, directory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if tus.UPLOADS.fullmatch(scope["path"]):  # Django never sees those bodies
            await self._app(scope, receive, send)
            return
        limit, error = _small()
        if scope["method"] == "POST" and UPLOAD_PATH.fullmatch(scope["path"]):
            limit, error = _adapter()
            try:
                grant = await self._authorise(scope)
            except InferenceError as stranger:
                await refuse(send, stranger.http_status, stranger.code, stranger.message)
                return
            scope = {**scope, GRANT: grant}
        await Bounded(self._app, limit, partial(_refuse_size, send, error)).run(
            scope, receive, send
        )

    async def _authorise(self, scope: Scope) -> Grant | None:
        """The grant of the request's API key; None for a session, or without a directory."""
        secret = api_key(scope["headers"]) if shows_key(scope["headers"]) else ""
        if secret.startswith("lk_"):
            if self._directory is not None:
                grant = await self._directory.authenticate(secret)
                grant.require(*TABLE[Permission.EDIT_ADAPTERS][1])
                return grant
        elif not await _has_session(scope):
            raise InvalidApiKey("Send an API key as `Authorization: Bearer lk_...`.")
        return None


def _adapter() -> tuple[int, UploadRefused]:
    """The largest size of an upload, and the error for larger ones."""
    return settings.MAX_ADAPTER_BYTES + FRAMING_BYTES, too_large(settings.MAX_ADAPTER_BYTES)


def _small() -> tuple[int, UploadRefused]:
    """The largest size of any other body, which Django reads into memory, and the error."""
    limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    message = f"The body exceeds this URL's limit of {limit} bytes."
    return limit, UploadRefused(UploadRefusal.PAYLOAD_TOO_LARGE, message)


async def _has_session(scope: Scope) -> bool:
    """Whether the request has the cookie of a signed-in session; Django checks the rest."""

    def signed_in() -> bool:
        return SESSION_KEY in session_of(scope)

    found: bool = await database_sync_to_async(signed_in)()
    return found


def session_of(scope: Scope) -> SessionBase:
    """The session that the request's cookie names; an empty one without a cookie."""
    cookies = parse_cookie(dict(scope["headers"]).get(b"cookie", b"").decode("latin-1"))
    store = import_module(settings.SESSION_ENGINE).SessionStore
    found: SessionBase = store(cookies.get(settings.SESSION_COOKIE_NAME))
    return found


def content_length(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"")
    return int(text) if text.isdigit() else 0


class Bounded:
    """One request whose body is counted on its way to the application."""

    def __init__(self, app: App, limit: int, refuse: Callable[[], Awaitable[None]]) -> None:
        """`refuse` responds to a body of more than `limit` bytes."""
        self._app, self._limit, self._refuse = app, limit, refuse

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, or refuse the body if it is too large."""
        left, answered = self._limit, False

        async def counting() -> Message:
            nonlocal left
            if left >= 0:
                message = await receive()
                left -= len(message.get("body", b""))
            # Beyond the limit the application is told that the client is gone, so that it drops
            # the body.
            return message if left >= 0 else {"type": "http.disconnect"}

        async def passing(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        if content_length(dict(scope["headers"])) <= self._limit:
            await self._app(scope, counting, passing)
            if left >= 0 or answered:
                return
        await self._refuse()


async def _refuse_size(send: Send, error: UploadRefused) -> None:
    await refuse(send, STATUS[UploadRefusal.PAYLOAD_TOO_LARGE], error.code, error.message)


async def refuse(
    send: Send,
    status: int,
    code: str,
    detail: str,
    further: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Respond with a problem (RFC 9457) and the `further` headers. The connection stays open while
    the server discards the rest of the body: closing it now would reset it, and many clients would
    lose this response."""
    body = json.dumps(problem(status, detail, code)).encode()
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        *further,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
