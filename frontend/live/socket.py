"""`/ws/live`: a page watches topics of the tenant, or the installation, that its ticket is for."""

from __future__ import annotations

import asyncio

from frontend.live.board import Board
from frontend.live.feeds import Feed
from frontend.live.messages import NotWatched, PageNews, Unwatch, Watch, decode
from frontend.live.topics import key_of
from frontend.sockets.gate import receive_message, send_message, send_news
from frontend.sockets.messages import Ping, Pong
from frontend.sockets.tickets import Ticket
from inference.errors import InvalidRequest
from inference.gateway.exchanges.exchange import Receive, Scope, Send

MAX_WATCHED = 20
"""Topics that one page may watch."""


class LiveSocket:
    """Serves the sockets that `frontend.sockets.gate.Gate` has admitted."""

    def __init__(self, board: Board) -> None:
        self._board = board

    async def __call__(self, ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
        await LiveConnection(self._board, ticket, receive, send).run()


class LiveView:
    """A socket's subscription to a feed. One socket may have two to the same key."""

    def __init__(self, watch: Watch, news: asyncio.Event) -> None:
        self.watch = watch
        self.feed: Feed
        self.number: int | None = None
        self._news = news

    def tell(self) -> None:
        """The feed has something new."""
        self._news.set()


class LiveConnection:
    """One open socket: reads what to watch, and writes what is new.

    Nothing is queued for a slow page: see `feeds`.
    """

    def __init__(self, board: Board, ticket: Ticket, receive: Receive, send: Send) -> None:
        self._board, self._ticket = board, ticket
        self._receive, self._send = receive, send
        self._views: dict[str, LiveView] = {}
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Serve the socket until it closes.

        Raises:
            Refused: the page was silent for too long.
        """
        writer = asyncio.create_task(send_news(self._news, self._views, self._tell))
        try:
            while (text := await receive_message(self._receive)) is not None:
                await self._take(text)
        finally:
            writer.cancel()
            for view in self._views.values():
                self._board.unwatch(view.feed, view.tell)

    async def _take(self, text: str | bytes) -> None:
        try:
            message = decode(text)
        except InvalidRequest:
            return await send_message(self._send, NotWatched(""))
        if isinstance(message, Ping):
            await send_message(self._send, Pong())
        elif isinstance(message, Watch):
            await self._watch(message)
        else:
            self._unwatch(message)

    async def _watch(self, watch: Watch) -> None:
        self._unwatch(Unwatch(watch.id))
        key = key_of(self._board.topics.get(watch.topic), self._ticket)
        if key is None or len(self._views) >= MAX_WATCHED:
            return await send_message(self._send, NotWatched(watch.id))
        view = LiveView(watch, self._news)
        view.number = self._board.number(watch.after)
        view.feed = self._board.watch(key, view.tell)
        self._views[watch.id] = view
        self._news.set()

    def _unwatch(self, message: Unwatch) -> None:
        if view := self._views.pop(message.id, None):
            self._board.unwatch(view.feed, view.tell)

    async def _tell(self, view: LiveView) -> None:
        data = view.feed.since(view.number)
        if data is None or self._views.get(view.watch.id) is not view:
            return
        view.number = view.feed.number
        await send_message(self._send, PageNews(view.watch.id, self._board.seq(view.number), data))
