"""Runs before Django for `/v1/`, and for the console's forms that send a file, and decides which
bodies reach it, because Django writes each body to disk before it authenticates the caller.

A file, or a batch of messages, is accepted from a key that may send one, if its tenant has room for
the announced length, a few at a time, up to MAX_FILE_BYTES (MAX_MESSAGES_BYTES). Parts of files are
accepted likewise; their room was reserved when their upload began. So are forms with an adapter to
load, whose room is checked once they are here. JSON bodies are small. A page's form is accepted
from a member who may send files, under the same conditions; a refused one is passed on with the
reason, which its page shows. All other requests are passed on without a body.
"""

from __future__ import annotations

import re
from collections import Counter

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from inference.errors import (
    InferenceError,
    PayloadTooLarge,
    RateLimitExceeded,
)
from inference.gateway.exchanges.exchange import Exchange
from inference.interfaces.directory import Directory
from inference.operations.messages.messages import MESSAGES
from tenants.adapters.uploads.guard import (
    FRAMING_BYTES,
    App,
    Bounded,
    Receive,
    Scope,
    Send,
    content_length,
    session_of,
)
from tenants.adapters.uploads.intake import without_body
from tenants.files import keeping
from tenants.files.uploads import MAX_PART_BYTES
from tenants.models import Tenant, User
from tenants.permissions import TABLE, Caller, Permission

FILES = "/v1/files"
MESSAGE_BATCHES = "/v1/messages/batches"
PARTS = re.compile(r"/v1/uploads/[^/]+/parts")
FORMS = re.compile(r"/t/(?P<tenant>[-a-zA-Z0-9_]+)/(files|batches/new|fine-tuning/new)")
REFUSED = "lorikeet.file_refused"
"""Key of the error in the scope of a form whose body was refused."""
JSON = re.compile(
    r"/v1/(batches|feedback|fine_tuning/jobs|unload_lora_adapter|uploads|uploads/[^/]+/complete)"
)
LOAD = "/v1/load_lora_adapter"
MAX_JSON_BYTES = 64 << 10
EVALS = re.compile(r"/v1/evals(/[^/]+(/runs(/[^/]+)?)?)?")
MAX_EVAL_BYTES = 8 << 20
"""Of an eval or a run, which may have rows in its body. More rows are a file."""
MAX_MESSAGES_BYTES = 32 << 20
"""Of a batch of messages, whose requests are all in its body. A larger one is a file."""
TENANT_AT_ONCE = 4
"""Files of one tenant that one console receives at a time; bounded because files do not count
towards the storage before they are complete."""


class FileIntake:
    """Passes requests on to `app`, with a body only where one belongs."""

    def __init__(self, app: App, directory: Directory) -> None:
        """`directory` authenticates the keys of uploads."""
        self._app, self._directory = app, directory
        self._receiving: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["method"] == "POST" else ""
        if JSON.fullmatch(path) or (path == LOAD and not _is_form(scope)):
            await self._bounded(MAX_JSON_BYTES, scope, receive, send)
        elif path == FILES:
            announced = content_length(dict(scope["headers"]))
            await self._take(settings.MAX_FILE_BYTES, announced, scope, receive, send)
        elif path == MESSAGE_BATCHES:
            announced = content_length(dict(scope["headers"]))
            await self._take(MAX_MESSAGES_BYTES, announced, scope, receive, send)
        elif EVALS.fullmatch(path):
            await self._take(MAX_EVAL_BYTES, None, scope, receive, send)
        elif PARTS.fullmatch(path):
            await self._take(MAX_PART_BYTES, None, scope, receive, send)
        elif path == LOAD:
            editing = Permission.EDIT_ADAPTERS
            most = settings.MAX_ADAPTER_BYTES
            await self._take(most, None, scope, receive, send, permission=editing)
        elif form := FORMS.fullmatch(path):
            await self._take_form(form["tenant"], scope, receive, send)
        else:
            await without_body(self._app)(scope, receive, send)

    async def _take(
        self,
        most: int,
        announced: int | None,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        permission: Permission = Permission.USE_FILES,
    ) -> None:
        exchange = _exchange(scope, receive, send)
        try:
            tenant_id = await self._admit(exchange, announced, permission)
        except InferenceError as error:
            return await exchange.fail(error)
        await self._receive(tenant_id, most, scope, receive, send)

    async def _receive(
        self, tenant_id: int, most: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._receiving[tenant_id] += 1
        try:
            await self._bounded(most + FRAMING_BYTES, scope, receive, send)
        finally:
            self._receiving[tenant_id] -= 1

    async def _take_form(self, slug: str, scope: Scope, receive: Receive, send: Send) -> None:
        most = min(settings.MAX_FILE_BYTES, settings.MAX_ADAPTER_BYTES)
        announced = content_length(dict(scope["headers"]))
        tenant_id = await database_sync_to_async(_tenant_of_member)(scope, slug)
        if tenant_id is None:  # Django answers why
            return await without_body(self._app)(scope, receive, send)
        try:
            if announced > most + FRAMING_BYTES:
                raise PayloadTooLarge(f"The file is larger than {most} bytes, the maximum.")
            await self._require_room(tenant_id, slug, announced)
        except InferenceError as error:
            return await without_body(self._app)({**scope, REFUSED: error}, receive, send)
        await self._receive(tenant_id, most, scope, receive, send)

    async def _admit(
        self, exchange: Exchange, announced: int | None, permission: Permission
    ) -> int:
        """The id of the tenant, if it may send a file now. `announced` is the length to check room
        for, None if that was reserved before or is checked later."""
        grant = await self._directory.authenticate(exchange.api_key())
        grant.require(*TABLE[permission][1])
        await self._require_room(grant.tenant_id, grant.tenant, announced)
        return grant.tenant_id

    async def _require_room(self, tenant_id: int, slug: str, announced: int | None) -> None:
        if self._receiving[tenant_id] >= TENANT_AT_ONCE:
            raise RateLimitExceeded(
                f"Tenant `{slug}` is already uploading {TENANT_AT_ONCE} files, the "
                "maximum at the same time. Retry when one is complete.",
                retry_after_s=1,
            )

        def require_room() -> None:
            keeping.require_room(Tenant.objects.get(pk=tenant_id), announced or 0)

        if announced is not None:
            await database_sync_to_async(require_room)()

    async def _bounded(self, most: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on whose body has at most this many bytes."""

        async def refuse() -> None:
            exchange = _exchange(scope, receive, send)
            await exchange.fail(PayloadTooLarge(f"The body has more than {most} bytes."))

        await Bounded(self._app, most, refuse).run(scope, receive, send)


def refusal_of(request: HttpRequest) -> InferenceError | None:
    """Why the body of this form was refused, if it was."""
    found: InferenceError | None = getattr(request, "scope", {}).get(REFUSED)
    return found


def _tenant_of_member(scope: Scope, slug: str) -> int | None:
    """The id of the tenant, if the request's session is of somebody who may send files there."""
    request = HttpRequest()
    request.session = session_of(scope)
    user = get_user(request)
    caller = Caller.of_user(user, slug) if isinstance(user, User) else None
    may = caller is not None and caller.may(Permission.USE_FILES)
    return caller.tenant.pk if caller is not None and may else None


def _is_form(scope: Scope) -> bool:
    content_type: bytes = dict(scope["headers"]).get(b"content-type", b"")
    return content_type.lower().startswith(b"multipart/form-data")


def _exchange(scope: Scope, receive: Receive, send: Send) -> Exchange:
    exchange = Exchange(dict(scope), receive, send)  # type: ignore[arg-type]
    if scope["path"] == MESSAGE_BATCHES:
        exchange.errors = MESSAGES.errors
    return exchange
