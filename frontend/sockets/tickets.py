"""Tickets: with one, a signed-in page opens a websocket on a server that knows no sessions.

The console issues a ticket to a page after checking its session and permissions (`POST /tickets`).
The page sends it as the first message of its socket, never in the URL, which would be logged;
before the socket's lease ends it sends another one. A ticket is signed, valid for TICKET_S, and can
be used once. Free of Django: both planes import it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Any, Protocol

import msgspec

TICKET_S = 60.0
"""How long a ticket is valid."""
CLOCK_SKEW_S = 30.0
"""How far the clock of the machine that issued it may be ahead."""
MAX_TICKET_CHARS = 4096
PLAYGROUND, LIVE = "playground", "live"
"""Purposes: each kind of socket accepts only its own."""
WHOLE = 0
"""In place of a tenant id: the whole installation."""


class BadTicket(Exception):
    """The ticket is not accepted; the message says why."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Who may open which socket, and the permissions they had when it was issued."""

    purpose: str
    user_id: int
    tenant_id: int = WHOLE
    slug: str = ""
    """The tenant's slug."""
    audience: str = ""
    """Holders with the same audience see the same of a tenant."""
    claims: dict[str, Any] = {}
    """What else the socket needs to know, as JSON."""
    staff: bool = False
    """Whether the holder is an operator."""
    role: str = ""
    """The holder's role in the tenant; empty for an operator who is not a member."""
    second_factor: bool = False
    """Whether the session was opened with one."""
    session: str = ""
    """Digest of the session key: signing out closes the sockets that the session has opened."""
    id: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(16))
    issued_at: float = 0.0
    """Unix time, set by `TicketSigner.issue`."""

    def renews(self, other: Ticket) -> bool:
        """Whether this ticket may renew a socket that was opened with the other one."""
        return self._rights() == other._rights()

    def _rights(self) -> tuple[Any, ...]:
        return (
            self.purpose, self.user_id, self.tenant_id, self.audience, self.claims, self.staff,
            self.role,
        )  # fmt: skip


class Opening(msgspec.Struct, tag_field="type", tag="ticket"):
    """Page to socket: the first message, and again to renew the lease."""

    ticket: str


_tickets = msgspec.json.Decoder(Ticket)
_openings = msgspec.json.Decoder(Opening)


class TicketSigner:
    """Issues tickets and reads them, with a key that is derived from a secret of both planes."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"lorikeet: tickets of sockets", "sha256")

    def issue(self, ticket: Ticket, now: float) -> str:
        """Sign a ticket that is valid from the unix time `now`."""
        body = msgspec.json.encode(msgspec.structs.replace(ticket, issued_at=now))
        return f"{_encode(body)}.{_encode(self._signature(body))}"

    def read(self, text: str, purpose: str, now: float) -> Ticket:
        """Verify a ticket at the unix time `now`; whether it was used before is for the Redeemer to
        say.

        Raises:
            BadTicket: it was not issued here, is for another purpose, or is too old.
        """
        if len(text) > MAX_TICKET_CHARS:
            raise BadTicket("it is too long")
        body, _, signature = text.partition(".")
        try:
            signed, given = _decode(body), _decode(signature)
        except ValueError:
            raise BadTicket("it is not readable") from None
        if not hmac.compare_digest(given, self._signature(signed)):
            raise BadTicket("its signature is wrong")
        ticket = _tickets.decode(signed)
        if ticket.purpose != purpose:
            raise BadTicket(f"it is for {ticket.purpose}")
        if not -CLOCK_SKEW_S <= now - ticket.issued_at <= TICKET_S:
            raise BadTicket("its time is over")
        return ticket

    def _signature(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


class Redeemer(Protocol):
    """Accepts each ticket once, over all gateways; see `frontend.sockets.redeeming`."""

    async def redeem(self, ticket: Ticket) -> None:
        """Mark the ticket as used.

        Raises:
            BadTicket: it was used before, or its holder's permissions have changed since.
            inference.errors.Unavailable: the database does not answer.
        """
        ...


def opening_of(text: str | bytes) -> str | None:
    """The ticket in a message; None if it is some other message."""
    try:
        return _openings.decode(text).ticket
    except (msgspec.DecodeError, RecursionError):
        return None


def session_digest(key: str) -> str:
    """Names a session in tickets and notices without revealing its key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
