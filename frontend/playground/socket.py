"""`/ws/playground/<slug>`: a signed-in user generates answers for a tenant.

The ticket names the user and their permissions (`frontend.sockets.gate`). When the console issued
it, it also made sure that the tenant has the key to which its playground is billed.
"""

from __future__ import annotations

import asyncio

from frontend.playground.answers import AnswerView, Owner, Playground, PlaygroundAnswer
from frontend.playground.messages import Failed, ResumePane, Start, Stop, decode, id_of
from frontend.sockets.gate import (
    GONE,
    NOT_ALLOWED,
    SocketRefused,
    receive_message,
    send_message,
    send_news,
)
from frontend.sockets.messages import Ping, Pong
from frontend.sockets.tickets import Ticket
from inference.errors import InferenceError, NotFound
from inference.gateway.exchanges.exchange import Receive, Scope, Send


class PlaygroundSocket:
    """Serves the sockets of all tenants; the router passes the `slug`."""

    def __init__(self, playground: Playground, closed: asyncio.Event) -> None:
        """Once `closed` is set, a socket is closed when it has no answers left to send."""
        self._playground, self._closed = playground, closed

    async def __call__(self, ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
        if ticket.slug != scope["url_route"]["kwargs"]["slug"]:
            raise SocketRefused(NOT_ALLOWED)
        owner = (ticket.user_id, ticket.tenant_id)
        await PlaygroundConnection(self._playground, owner, receive, send).run(self._closed)


class PlaygroundConnection:
    """One open socket: reads commands, and writes what is new in its answers."""

    def __init__(self, playground: Playground, owner: Owner, receive: Receive, send: Send) -> None:
        self._playground, self._owner = playground, owner
        self._receive, self._send = receive, send
        self._views: dict[str, AnswerView] = {}
        self._news = asyncio.Event()
        self._unread = asyncio.Condition()

    async def run(self, closed: asyncio.Event) -> None:
        """Serve the socket until it closes.

        Raises:
            Refused: the page was silent for too long, or is to go to another gateway.
        """
        reading = asyncio.create_task(self._read())
        leaving = asyncio.create_task(self._leave(closed))
        writer = asyncio.create_task(send_news(self._news, self._views, self._tell))
        try:
            await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise SocketRefused(GONE)
            reading.result()
        finally:
            for task in (reading, leaving, writer):
                task.cancel()
            for view in self._views.values():
                self._playground.leave(view.answer, self._news.set)

    async def _read(self) -> None:
        while (text := await receive_message(self._receive)) is not None:
            await self._take(text)

    async def _leave(self, closed: asyncio.Event) -> None:
        """Returns once this gateway is closed and no answer of the socket is left on it."""
        await closed.wait()
        async with self._unread:
            await self._unread.wait_for(
                lambda: all(view.answer.left for view in self._views.values())
            )

    async def _take(self, text: str | bytes) -> None:
        id = ""
        try:
            message = decode(text)
            if isinstance(message, Ping):
                return await send_message(self._send, Pong())
            id = message.id
            self._act(message)
        except InferenceError as error:
            await send_message(self._send, Failed.of(id or id_of(text), error))

    def _act(self, message: Start | Stop | ResumePane) -> None:
        if isinstance(message, Start):
            return self._watch(self._playground.start(self._owner, message))
        if isinstance(message, ResumePane):
            answer = self._playground.resume(self._owner, message.id)
            sent = (max(0, known) for known in (message.after, message.tokens, message.calls))
            return self._watch(answer, *sent)
        if (known := self._playground.find(self._owner, message.id)) is None:
            raise NotFound("This answer can no longer be resumed.")
        known.stop()

    def _watch(self, answer: PlaygroundAnswer, *sent: int) -> None:
        self._views[answer.id] = AnswerView(answer, *sent)
        self._playground.join(answer, self._news.set)
        self._news.set()

    async def _tell(self, view: AnswerView) -> None:
        for message in view.news():
            await send_message(self._send, message)
        if view.over and self._views.get(view.answer.id) is view:
            del self._views[view.answer.id]
            self._playground.leave(view.answer, self._news.set)
        if view.over or view.answer.left:
            async with self._unread:
                self._unread.notify_all()
