"""`/ws/live`: a page watches topics.

Who watches, and whether he may, is looked up at each watch and again every RECHECK_S: whose session
has ended or whose membership was taken away loses the socket.
"""

from __future__ import annotations

import asyncio

from channels.db import database_sync_to_async

from frontend.live.board import Board
from frontend.live.feeds import Feed, Key
from frontend.live.messages import News, NotWatched, Unwatch, Watch, decode
from frontend.live.topics import keys_of
from frontend.sockets import (
    GONE,
    NOT_ALLOWED,
    Ping,
    Pong,
    Refused,
    hear,
    say,
    tell_always,
    user_of,
)
from inference.errors import InvalidRequest
from inference.gateway.exchange import Receive, Scope, Send
from tenants.models import User

RECHECK_S = 20.0
MAX_WATCHED = 20
"""Topics of one page."""


class LiveSocket:
    """Serves each socket; `frontend.sockets.guarded` makes it an ASGI application."""

    def __init__(self, board: Board, *, recheck_s: float = RECHECK_S) -> None:
        self._board, self._recheck_s = board, recheck_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusals: list[BaseException] = []
        try:
            await Connection(self._board, scope, receive, send).run(self._recheck_s)
        except* Refused as refused:
            refusals.extend(refused.exceptions)
        if refusals:
            raise refusals[0]


class View:
    """What one watch of a socket has of a feed; an own object, for one key may be watched twice."""

    def __init__(self, watch: Watch, news: asyncio.Event) -> None:
        self.watch = watch
        self.feed: Feed
        self.number: int | None = None
        self._news = news

    def tell(self) -> None:
        """There is something new."""
        self._news.set()


class Connection:
    """One open socket: it reads what is to be watched, and writes what is new of it.

    Nothing is queued for a slow page: see `feeds`.
    """

    def __init__(self, board: Board, scope: Scope, receive: Receive, send: Send) -> None:
        self._board, self._scope = board, scope
        self._receive, self._send = receive, send
        self._views: dict[str, View] = {}
        self._news = asyncio.Event()

    async def run(self, recheck_s: float) -> None:
        """Serve it to its end.

        Raises:
            Refused, alone or in a group: it is to be closed with a code.
        """
        await user_of(self._scope)
        try:
            async with asyncio.TaskGroup() as tasks:
                both = [
                    tasks.create_task(tell_always(self._news, self._views, self._tell)),
                    tasks.create_task(self._recheck(recheck_s)),
                ]
                while (text := await hear(self._receive)) is not None:
                    await self._take(text)
                for task in both:
                    task.cancel()
        finally:
            for view in self._views.values():
                self._board.unwatch(view.feed, view.tell)

    async def _take(self, text: str | bytes) -> None:
        try:
            message = decode(text)
        except InvalidRequest:
            return await say(self._send, NotWatched(""))
        if isinstance(message, Ping):
            await say(self._send, Pong())
        elif isinstance(message, Watch):
            await self._watch(message)
        else:
            self._unwatch(message)

    async def _watch(self, watch: Watch) -> None:
        self._unwatch(Unwatch(watch.id))
        user = await user_of(self._scope)
        (key,) = await self._keys(user, [watch])
        if key is None or len(self._views) >= MAX_WATCHED:
            return await say(self._send, NotWatched(watch.id))
        view = View(watch, self._news)
        view.number = self._board.number(watch.after)
        view.feed = self._board.watch(key, view.tell)
        self._views[watch.id] = view
        self._news.set()

    def _unwatch(self, message: Unwatch) -> None:
        if view := self._views.pop(message.id, None):
            self._board.unwatch(view.feed, view.tell)

    async def _tell(self, view: View) -> None:
        data = view.feed.since(view.number)
        if data is None or self._views.get(view.watch.id) is not view:
            return
        view.number = view.feed.number
        await say(self._send, News(view.watch.id, self._board.seq(view.number), data))

    async def _recheck(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            user = await user_of(self._scope)
            views = list(self._views.values())
            keys = await self._keys(user, [view.watch for view in views])
            for view, key in zip(views, keys, strict=True):
                if key is None:
                    raise Refused(NOT_ALLOWED)
                if key != view.feed.key:
                    raise Refused(GONE)  # his role changed: he watches anew as what he is now

    async def _keys(self, user: User, watches: list[Watch]) -> list[Key | None]:
        look = database_sync_to_async(keys_of)
        keys: list[Key | None] = await look(self._board.topics, user, watches)
        return keys
