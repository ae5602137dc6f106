"""What the console's websockets have in common: who is connected, and how a socket is closed.

Plain ASGI applications, for Channels' consumers cost a thread hop a message. Who somebody is and
what he may do is asked anew while a socket is open: a session may end, a membership may be taken
away meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

import msgspec
from channels.auth import AuthMiddlewareStack, get_user
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings

from inference.gateway.exchange import Receive, Scope, Send
from tenants.models import User

NOT_SIGNED_IN = 4401
NOT_ALLOWED = 4403
GONE = 4408
"""Nothing was heard of the page for IDLE_S; it may come back."""
IDLE_S = 60.0
"""Pages say something every 15 s."""

V = TypeVar("V")
Serve = Callable[[Scope, Receive, Send], Awaitable[None]]


class Message(msgspec.Struct, tag_field="type"):
    """Any message; `type` says which."""


class Ping(Message, tag="ping"):
    """Page to socket: is anybody there?"""


class Pong(Message, tag="pong"):
    """Socket to page, answers ping."""


class Refused(Exception):
    """The socket is closed with this code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def guarded(serve: Serve) -> Any:
    """The ASGI application that serves each socket, once its origin and session were looked at.

    `serve` runs with an open socket and raises Refused to close it with a code.
    """

    async def accepted(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        # Accepted first: a browser is told no code of a socket that was never open.
        await send({"type": "websocket.accept"})
        try:
            await serve(scope, receive, send)
        except Refused as refused:
            with suppress(RuntimeError):  # it has gone by itself
                await send({"type": "websocket.close", "code": refused.code})

    return AllowedHostsOriginValidator(AuthMiddlewareStack(accepted))


async def user_of(scope: Scope) -> User:
    """Who this is by his session as it is now.

    Raises:
        Refused: he is not signed in, or no longer.
    """
    store = import_module(settings.SESSION_ENGINE).SessionStore
    session = store(scope["session"].session_key)
    user = await get_user({**scope, "session": session})
    if not isinstance(user, User):
        raise Refused(NOT_SIGNED_IN)
    return user


async def hear(receive: Receive) -> str | bytes | None:
    """The next message; None where the page has gone.

    Raises:
        Refused: the page was silent for too long.
    """
    try:
        async with asyncio.timeout(IDLE_S):
            event = await receive()
    except TimeoutError:
        raise Refused(GONE) from None
    if event["type"] == "websocket.disconnect":
        return None
    return event.get("text") or event.get("bytes") or ""


async def say(send: Send, message: Message) -> None:
    """Write one message as JSON; waits while the page is slow."""
    await send({"type": "websocket.send", "text": msgspec.json.encode(message).decode()})


async def tell_always(
    news: asyncio.Event, views: Mapping[str, V], tell: Callable[[V], Awaitable[None]]
) -> None:
    """Whenever there is news, `tell` it of each view; until cancelled or the socket is closed."""
    with suppress(RuntimeError):  # closed, which the reader hears as well
        while True:
            await news.wait()
            news.clear()
            for view in tuple(views.values()):
                await tell(view)
