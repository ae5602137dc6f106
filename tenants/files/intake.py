"""Runs before Django for `/v1/` and decides which bodies reach it, because Django writes each body
to disk before it authenticates the caller.

A file, or a batch of messages, is accepted from a key that may send one, if its tenant has room for
the announced length, a few at a time, up to MAX_FILE_BYTES (MAX_MESSAGES_BYTES). Parts of files are
accepted likewise; their room was reserved when their upload began. JSON bodies are small. All other
requests are passed on without a body.
"""

from __future__ import annotations

import re
from collections import Counter

from channels.db import database_sync_to_async
from django.conf import settings

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
)
from tenants.adapters.uploads.intake import without_body
from tenants.files import keeping
from tenants.files.uploads import MAX_PART_BYTES
from tenants.models import Tenant
from tenants.permissions import TABLE, Permission

FILES = "/v1/files"
MESSAGE_BATCHES = "/v1/messages/batches"
PARTS = re.compile(r"/v1/uploads/[^/]+/parts")
JSON = re.compile(r"/v1/(batches|uploads|uploads/[^/]+/complete)")
MAX_JSON_BYTES = 64 << 10
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
        if JSON.fullmatch(path):
            await self._bounded(MAX_JSON_BYTES, scope, receive, send)
        elif path == FILES:
            announced = content_length(dict(scope["headers"]))
            await self._take(settings.MAX_FILE_BYTES, announced, scope, receive, send)
        elif path == MESSAGE_BATCHES:
            announced = content_length(dict(scope["headers"]))
            await self._take(MAX_MESSAGES_BYTES, announced, scope, receive, send)
        elif PARTS.fullmatch(path):
            await self._take(MAX_PART_BYTES, None, scope, receive, send)
        else:
            await without_body(self._app)(scope, receive, send)

    async def _take(
        self, most: int, announced: int | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        exchange = _exchange(scope, receive, send)
        try:
            tenant_id = await self._admit(exchange, announced)
        except InferenceError as error:
            return await exchange.fail(error)
        self._receiving[tenant_id] += 1
        try:
            await self._bounded(most + FRAMING_BYTES, scope, receive, send)
        finally:
            self._receiving[tenant_id] -= 1

    async def _admit(self, exchange: Exchange, announced: int | None) -> int:
        """The id of the tenant, if it may send a file now. `announced` is the length to check room
        for, None if that was reserved before."""
        grant = await self._directory.authenticate(exchange.api_key())
        grant.require(*TABLE[Permission.USE_FILES][1])
        if self._receiving[grant.tenant_id] >= TENANT_AT_ONCE:
            raise RateLimitExceeded(
                f"Tenant `{grant.tenant}` is already uploading {TENANT_AT_ONCE} files, the "
                "maximum at the same time. Retry when one is complete.",
                retry_after_s=1,
            )

        def require_room() -> None:
            keeping.require_room(Tenant.objects.get(pk=grant.tenant_id), announced or 0)

        if announced is not None:
            await database_sync_to_async(require_room)()
        return grant.tenant_id

    async def _bounded(self, most: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on whose body has at most this many bytes."""

        async def refuse() -> None:
            exchange = _exchange(scope, receive, send)
            await exchange.fail(PayloadTooLarge(f"The body has more than {most} bytes."))

        await Bounded(self._app, most, refuse).run(scope, receive, send)


def _exchange(scope: Scope, receive: Receive, send: Send) -> Exchange:
    exchange = Exchange(dict(scope), receive, send)  # type: ignore[arg-type]
    if scope["path"] == MESSAGE_BATCHES:
        exchange.errors = MESSAGES.errors
    return exchange
