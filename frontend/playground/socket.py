"""`/ws/playground/<slug>`: a signed-in person generates as a tenant.

Who it is and what he may do is asked again before each answer: a session may end, a membership may
be taken away while the page is open.
"""

from __future__ import annotations

import asyncio

from channels.db import database_sync_to_async

from frontend.playground.answers import Answer, Owner, Playground, View
from frontend.playground.messages import Failed, Resume, Start, Stop, decode, id_of
from frontend.sockets import (
    NOT_ALLOWED,
    Ping,
    Pong,
    Refused,
    hear,
    say,
    tell_always,
    user_of,
)
from inference.errors import InferenceError, NotFound
from inference.gateway.exchange import Receive, Scope, Send
from tenants.models import ApiKey, AuditEntry
from tenants.models.audit import Actor, acting
from tenants.permissions import Caller, Permission


class PlaygroundSocket:
    """Serves each socket of a tenant; the router gives it the `slug`."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Connection(self._playground, scope, receive, send).run()


async def caller_of(scope: Scope) -> Caller:
    """Who this is by his session as it is now.

    Raises:
        Refused: he is not signed in, or may not use this tenant's playground.
    """
    user = await user_of(scope)
    slug = scope["url_route"]["kwargs"]["slug"]
    caller: Caller | None = await database_sync_to_async(Caller.of_user)(user, slug)
    if caller is None or not caller.may(Permission.USE_PLAYGROUND):
        raise Refused(NOT_ALLOWED)
    return caller


def open_for(caller: Caller, address: str) -> None:
    """See that the tenant has what its playground is billed by; note an operator's visit."""
    assert caller.user is not None
    actor = Actor("user", caller.user.pk, caller.user.username, address)
    with acting(actor):
        ApiKey.objects.open_playground(caller.tenant)
    if caller.role is None:
        AuditEntry.objects.note(actor, caller.tenant, "used playground", caller.tenant.slug)


class Connection:
    """One open socket: it reads commands, and writes what its answers have new."""

    def __init__(self, playground: Playground, scope: Scope, receive: Receive, send: Send) -> None:
        self._playground, self._scope = playground, scope
        self._receive, self._send = receive, send
        self._views: dict[str, View] = {}
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Serve it to its end.

        Raises:
            Refused: it is to be closed with a code.
        """
        caller = await caller_of(self._scope)
        address = (self._scope.get("client") or ("",))[0]
        await database_sync_to_async(open_for)(caller, address)
        writer = asyncio.create_task(tell_always(self._news, self._views, self._tell))
        try:
            while (text := await hear(self._receive)) is not None:
                await self._take(text)
        finally:
            writer.cancel()
            for view in self._views.values():
                self._playground.leave(view.answer, self._news.set)

    async def _take(self, text: str | bytes) -> None:
        id = ""
        try:
            message = decode(text)
            if isinstance(message, Ping):
                await caller_of(self._scope)  # a session may end while an answer is written
                return await say(self._send, Pong())
            id = message.id
            await self._act(message)
        except InferenceError as error:
            await say(self._send, Failed.of(id or id_of(text), error))

    async def _act(self, message: Start | Stop | Resume) -> None:
        caller = await caller_of(self._scope)
        assert caller.user is not None
        owner: Owner = (caller.user.pk, caller.tenant.pk)
        if isinstance(message, Start):
            return self._watch(self._playground.start(owner, message))
        answer = self._playground.find(owner, message.id)
        if answer is None:
            raise NotFound("This answer cannot be resumed: it was left too long.")
        if isinstance(message, Stop):
            answer.stop()
        else:
            self._watch(answer, max(0, message.after), max(0, message.tokens))

    def _watch(self, answer: Answer, sent: int = 0, tokens_sent: int = 0) -> None:
        self._views[answer.id] = View(answer, sent, tokens_sent)
        self._playground.join(answer, self._news.set)
        self._news.set()

    async def _tell(self, view: View) -> None:
        for message in view.news():
            await say(self._send, message)
        if view.over and self._views.get(view.answer.id) is view:
            del self._views[view.answer.id]
            self._playground.leave(view.answer, self._news.set)
