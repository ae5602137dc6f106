"""What the pages' websockets have in common: who may open one, for how long, how it is closed.

Plain ASGI applications, since Channels' consumers cost a thread hop per message. The processes that
serve them know no sessions and no cookies: a page sends a ticket (`frontend.sockets.tickets`),
which leases the socket for LEASE_S, and a fresh one before the lease expires. When a user loses
permissions or signs out, their sockets are closed at once, on a notice from the database
(`tenants.directory.notices`).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog

from frontend.sockets.messages import SocketMessage
from frontend.sockets.tickets import (
    CLOCK_SKEW_S,
    MAX_TICKET_CHARS,
    TICKET_S,
    BadTicket,
    Redeemer,
    Ticket,
    TicketSigner,
    opening_of,
)
from inference.addresses import network_of
from inference.errors import Unavailable
from inference.gateway.exchanges.exchange import Receive, Scope, Send
from inference.gateway.sockets import trust
from inference.shared_capacity import SharedCapacity
from tenants.directory.notices import Notice

log = structlog.get_logger(__name__)

NOT_SIGNED_IN = 4401
NOT_ALLOWED = 4403
GONE = 4408
"""The page was silent, or its permissions have changed; it may reconnect with a new ticket."""
IDLE_S = 60.0
"""Longest silence of a page; pages send something every 15 s."""
OPENING_S = 5.0
"""Longest wait for the ticket after a socket was opened."""
MAX_OPENING = 1000
"""Sockets per process that may wait for their tickets, at most a quarter of them from one address;
more are refused."""
LEASE_S = 300.0
"""Pages renew every 100 s, so sockets survive a console that is down for a while."""
MAX_MESSAGE_BYTES = 64 << 10
"""Largest message of a page that has shown its ticket."""
MAX_ENDED = 10_000
"""Ended sessions to remember, each until its tickets have expired."""

V = TypeVar("V")
Serve = Callable[[Ticket, Scope, Receive, Send], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class SocketRefused(Exception):
    """The socket is closed with this code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


class Origins:
    """The origins whose pages may open sockets: the console's scheme and port, with each of the
    host names under which it is served; and `others`."""

    def __init__(self, console_url: str, hosts: Collection[str], others: Collection[str]) -> None:
        """`hosts` as in ALLOWED_HOSTS: names, `.example.com` with all below it, `*` for all.
        `others` as in CSRF_TRUSTED_ORIGINS: whole origins, perhaps `https://*.example.com`."""
        self._console = _origin(console_url)
        self._hosts = [host.lower() for host in hosts]
        self._others = [_origin(other.replace("://*.", "://.")) for other in others]

    def allow(self, scope: Scope) -> bool:
        """Whether a socket with this origin may be opened; one without an origin may not."""
        given = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
        origin = _origin(given)
        if origin is None or self._console is None:
            return False
        scheme, name, port = origin
        if (scheme, port) == self._console[::2]:
            if name == self._console[1] or any(_matches(name, host) for host in self._hosts):
                return True
        return any(
            other is not None and (scheme, port) == other[::2] and _matches(name, other[1])
            for other in self._others
        )


def _origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None if the URL has no such origin."""
    try:
        parts = urlsplit(url.lower())
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return None
    name = parts.netloc.rpartition("@")[2].removesuffix(f":{parts.port}")
    return (parts.scheme, name, port) if name else None


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("."):
        return name.endswith(pattern) or name == pattern[1:]
    return pattern in ("*", name)


class SocketLease:
    """Keeps a socket open until the lease is ended or expires."""

    def __init__(self, ticket: Ticket, lease_s: float) -> None:
        self.ticket = ticket
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolves to the close code."""
        self._lease_s = lease_s
        self._timer = self._expiry()

    def _expiry(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._lease_s, self.end, GONE)

    def renew(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self._timer.cancel()
        self._timer = self._expiry()

    def end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    def forget(self) -> None:
        self._timer.cancel()


class Gate:
    """Admits all pages' sockets of this process; belongs to its event loop."""

    def __init__(
        self,
        signer: TicketSigner,
        redeemer: Redeemer,
        origins: Origins,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        lease_s: float = LEASE_S,
    ) -> None:
        self._signer, self._redeemer, self._origins = signer, redeemer, origins
        self._max_message_bytes, self._lease_s = max_message_bytes, lease_s
        self._leases: set[SocketLease] = set()
        self._opening = SharedCapacity[str](MAX_OPENING)
        self._ended: OrderedDict[str, float] = OrderedDict()
        """Digests of ended sessions, with the monotonic time at which they ended."""

    def guarded(self, purpose: str, serve: Serve) -> Application:
        """The ASGI application for sockets of this purpose.

        `serve(ticket, scope, receive, send)` runs with an open socket and raises Refused to close
        it with a code. Renewals are handled here and not passed on.
        """

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()  # websocket.connect
            try:
                if (text := await self._open(scope, receive, send)) is not None:
                    await self._admit(self._read(text, purpose), serve, scope, receive, send)
            except SocketRefused as refused:
                with suppress(RuntimeError):  # closed by the page already
                    await send({"type": "websocket.close", "code": refused.code})

        return application

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> str | None:
        """Accept the socket and return the ticket, which is its first message; None if the page has
        disconnected."""
        network = network_of((scope.get("client") or ("",))[0])
        with self._opening.holding(network, 1) as has_room:
            if not has_room or not self._origins.allow(scope):
                raise SocketRefused(NOT_ALLOWED)
            # Accepted first: browsers do not see the close code of a socket that was never open.
            await send({"type": "websocket.accept"})
            try:
                async with asyncio.timeout(OPENING_S):
                    text = await receive_message(receive)
            except TimeoutError:
                raise SocketRefused(GONE) from None
        if text is None:
            return None
        ticket = opening_of(text) if len(text) <= MAX_TICKET_CHARS else None
        if ticket is None:
            raise SocketRefused(GONE)
        return ticket

    async def _admit(
        self, ticket: Ticket, serve: Serve, scope: Scope, receive: Receive, send: Send
    ) -> None:
        lease = SocketLease(ticket, self._lease_s)
        # Before permissions are checked, so that a change after the check finds the lease.
        self._leases.add(lease)
        try:
            await self._redeem(ticket)
            trust(scope, self._max_message_bytes, paced=True)
            await self._hold(lease, serve, scope, self._renewing(lease, receive), send)
        finally:
            self._leases.discard(lease)
            lease.forget()

    def _read(self, text: str, purpose: str) -> Ticket:
        try:
            ticket = self._signer.read(text, purpose, time.time())
        except BadTicket as bad:
            log.info("ticket_refused", purpose=purpose, reason=str(bad))
            raise SocketRefused(GONE) from bad
        if ticket.session in self._ended:
            raise SocketRefused(NOT_SIGNED_IN)
        return ticket

    async def _redeem(self, ticket: Ticket) -> None:
        try:
            await self._redeemer.redeem(ticket)
        except BadTicket as bad:
            log.info("ticket_refused", purpose=ticket.purpose, reason=str(bad))
            raise SocketRefused(GONE) from bad
        except Unavailable:
            raise SocketRefused(GONE) from None

    def _renewing(self, lease: SocketLease, receive: Receive) -> Receive:
        """Wraps `receive`: handles tickets, passes on all other messages."""

        async def receive_and_renew() -> dict[str, object]:
            while True:
                event = await receive()
                text = event.get("text") or ""
                if len(text) > MAX_TICKET_CHARS or (shown := opening_of(text)) is None:
                    return event
                await self._renew(lease, shown)

        return receive_and_renew

    async def _renew(self, lease: SocketLease, text: str) -> None:
        """Renew the lease; an invalid ticket leaves it as it is."""
        with suppress(SocketRefused):
            ticket = self._read(text, lease.ticket.purpose)
            await self._redeem(ticket)
            if ticket.renews(lease.ticket):
                lease.renew(ticket)
            else:
                lease.end(GONE)

    async def _hold(
        self, lease: SocketLease, serve: Serve, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve the socket until it ends or its lease does."""
        serving: asyncio.Future[Any] = asyncio.ensure_future(
            serve(lease.ticket, scope, receive, send)
        )
        either: set[asyncio.Future[Any]] = {serving, lease.ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if lease.ended.done():
                raise SocketRefused(lease.ended.result())
            serving.result()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    # --- Notices from the database ---------------------------------------------------------------

    def changed(self, notice: Notice | None) -> None:
        """A session or permissions changed; None: changes for any user may have been missed."""
        now = time.monotonic()
        if notice is not None and notice.session is not None:
            self._remember(notice.session, now)
        for lease in tuple(self._leases):
            if (code := _verdict(lease.ticket, notice)) is not None:
                lease.end(code)

    def _remember(self, session: str, now: float) -> None:
        self._ended[session] = now
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) <= MAX_ENDED and now - oldest <= TICKET_S + CLOCK_SKEW_S:
                break
            self._ended.popitem(last=False)


def _verdict(ticket: Ticket, notice: Notice | None) -> int | None:
    """The code with which to close this ticket's socket; None to leave it open."""
    match notice:
        case None:
            return GONE
        case Notice(kind="session", session=session):
            return NOT_SIGNED_IN if ticket.session == session else None
        case Notice(kind="user", user_id=user_id, ended=ended) if user_id == ticket.user_id:
            return NOT_SIGNED_IN if ended else GONE
        case Notice(kind="member", user_id=user_id, tenant_id=tenant_id, ended=ended):
            if tenant_id != ticket.tenant_id or user_id not in (None, ticket.user_id):
                return None
            return NOT_ALLOWED if ended and not ticket.staff else GONE
    return None


async def receive_message(receive: Receive) -> str | bytes | None:
    """The next message; None if the page has disconnected.

    Raises:
        Refused: the page was silent for too long.
    """
    try:
        async with asyncio.timeout(IDLE_S):
            event = await receive()
    except TimeoutError:
        raise SocketRefused(GONE) from None
    if event["type"] == "websocket.disconnect":
        return None
    return event.get("text") or event.get("bytes") or ""


async def send_message(send: Send, message: SocketMessage) -> None:
    """Send one message as JSON; waits while the page reads slowly."""
    await send({"type": "websocket.send", "text": msgspec.json.encode(message).decode()})


async def send_news(
    news: asyncio.Event, views: Mapping[str, V], tell: Callable[[V], Awaitable[None]]
) -> None:
    """Call `tell` for each view whenever `news` is set, until cancelled or the socket closes."""
    with suppress(RuntimeError):  # closed, which the reader notices as well
        while True:
            await news.wait()
            news.clear()
            for view in tuple(views.values()):
                await tell(view)
