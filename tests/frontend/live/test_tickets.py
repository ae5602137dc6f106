"""Tickets: their contents, who gets one, and the gate that they open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.db import connection
from django.test import Client

from frontend.sockets import gate
from frontend.sockets.gate import (
    GONE,
    NOT_ALLOWED,
    NOT_SIGNED_IN,
    Origins,
    receive_message,
    send_message,
)
from frontend.sockets.messages import Ping
from frontend.sockets.tickets import MAX_TICKET_CHARS, TICKET_S, BadTicket, Ticket, TicketSigner
from inference.gateway.exchanges.exchange import Receive, Scope, Send
from tenants.models import AuditEntry, Membership, Role, Tenant, User
from tests.frontend.clients import client_of
from tests.frontend.live.sockets import Tab, asked, connected, doorway, ticket_of, turned_away
from tests.tenants.making import make_tenant

NOW = 1_000_000.0
SIGNER = TicketSigner("s" * 32)
TICKET = Ticket(purpose="playground", user_id=1, tenant_id=2, slug="acme", claims={"may": ["X"]})


# --- Contents ------------------------------------------------------------------------------------


def test_a_ticket_says_what_was_put_into_it() -> None:
    read = SIGNER.read(SIGNER.issue(TICKET, NOW), "playground", NOW + TICKET_S)
    assert (read.id, read.user_id, read.claims, read.issued_at) == (
        TICKET.id,
        1,
        {"may": ["X"]},
        NOW,
    )
    assert Ticket(purpose="live", user_id=1).id != TICKET.id


@pytest.mark.parametrize(
    ("text", "purpose", "late_s"),
    [
        (SIGNER.issue(TICKET, NOW), "live", 0.0),
        (SIGNER.issue(TICKET, NOW), "playground", TICKET_S + 1),
        (SIGNER.issue(TICKET, NOW), "playground", -600.0),
        (TicketSigner("t" * 32).issue(TICKET, NOW), "playground", 0.0),
        (SIGNER.issue(TICKET, NOW)[1:], "playground", 0.0),
        (SIGNER.issue(TICKET, NOW) + "é", "playground", 0.0),
        ("", "playground", 0.0),
        ("." * (MAX_TICKET_CHARS + 1), "playground", 0.0),
    ],
)
def test_others_are_none(text: str, purpose: str, late_s: float) -> None:
    with pytest.raises(BadTicket):
        SIGNER.read(text, purpose, NOW + late_s)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://console.example", True),
        ("https://console.example:444", False),
        ("http://console.example", False),
        ("https://CONSOLE.example:443", True),
        ("https://localhost", True),
        ("https://a.served.example", True),
        ("https://localhost:8123", False),
        ("http://a.served.example", False),
        ("http://other.example:8080", True),
        ("http://a.sub.example:8080", True),
        ("https://other.example:8080", False),
        ("http://other.example", False),
        ("https://[::1]", True),
        ("https://[::1", False),
        ("https://console.example:x", False),
        ("https://", False),
        ("file:///console.example", False),
        ("http://evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_allowed_origins_of_sockets(origin: str, allowed: bool) -> None:
    others = ["http://other.example:8080", "http://*.sub.example:8080", "wrong"]
    hosts = ["localhost", "[::1]", ".served.example"]
    origins = Origins("https://console.example", hosts, others)
    headers = [(b"origin", origin.encode())] if origin else []
    assert origins.allow({"headers": headers}) == allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://any.example", True),
        ("https://any.example:444", False),
        ("http://any.example", False),
    ],
)
def test_any_name_may_serve_the_console_but_no_other_port(origin: str, allowed: bool) -> None:
    origins = Origins("https://console.example", ["*"], [])
    assert origins.allow({"headers": [(b"origin", origin.encode())]}) == allowed


# --- Who gets one --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("purpose", "slug", "role", "status"),
    [
        ("live", "acme", "viewer", 200),
        ("live", "acme", "outsider", 403),
        ("live", "acme", "nobody", 401),
        ("live", "", "owner", 403),
        ("live", "", "operator", 200),
        ("playground", "acme", "developer", 200),
        ("playground", "acme", "viewer", 403),
        ("playground", "", "operator", 403),
        ("sauna", "acme", "owner", 400),
    ],
)
def test_tickets_by_role(tenant: Tenant, purpose: str, slug: str, role: str, status: int) -> None:
    slug = slug and tenant.slug
    assert asked(client_of(tenant, role), purpose, slug).status_code == status


def test_a_ticket_needs_the_page_that_asks(tenant: Tenant) -> None:
    client = client_of(tenant, "developer")
    assert client.get("/tickets").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    assert asked(strict, "live", tenant.slug).status_code == 403


def test_an_operators_visit_is_noted_when_he_gets_one(tenant: Tenant) -> None:
    ticket_of(client_of(tenant, "operator"), "playground", tenant.slug)
    assert AuditEntry.objects.filter(tenant=tenant, action="used playground").count() == 1


# --- The gate ------------------------------------------------------------------------------------


async def echo(ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
    while await receive_message(receive) is not None:
        await send_message(send, Ping())


@asynccontextmanager
async def door(**options: Any) -> AsyncIterator[Any]:
    async with doorway(**options) as (gate, _):
        yield gate.guarded("live", echo)


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def viewer(acme: Tenant) -> Client:
    return client_of(acme, "viewer")


give = database_sync_to_async(ticket_of)


async def test_a_ticket_opens_one_socket(viewer: Client) -> None:
    ticket = await give(viewer, "live", "acme")
    async with door() as app, connected(app, "ws/live", ticket) as first:
        await Tab(first).say(type="ping")
        assert await Tab(first).hear() == {"type": "ping"}
        async with connected(app, "ws/live", ticket) as second:
            assert await Tab(second).closed() == GONE


@pytest.mark.parametrize("said", ["", "{}", '{"type":"ticket","ticket":"x.y"}', "x" * 5000])
async def test_an_invalid_ticket_opens_no_socket(transactional_db: None, said: str) -> None:
    async with door() as app, connected(app, "ws/live") as socket:
        await socket.send_input({"type": "websocket.receive", "text": said})
        assert await Tab(socket).closed() == GONE


async def test_a_socket_without_a_ticket_is_closed(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "OPENING_S", 0.01)
    async with door() as app, connected(app, "ws/live") as socket:
        assert await Tab(socket).closed() == GONE


async def test_so_many_of_one_network_may_wait_for_their_tickets(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MAX_OPENING", 4)
    one, neighbour, other = "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"
    async with door() as app:
        async with connected(app, "ws/live", client=one):
            assert await turned_away(app, "ws/live", client=neighbour)
            assert not await turned_away(app, "ws/live", client=other)
        async with connected(app, "ws/live", client=neighbour):
            pass


async def test_a_lease_ends_unless_it_is_renewed(viewer: Client) -> None:
    first, second = [await give(viewer, "live", "acme") for _ in range(2)]
    async with door(lease_s=1.0) as app:
        async with connected(app, "ws/live", first) as socket:
            assert await Tab(socket).closed() == GONE
        async with connected(app, "ws/live", second) as socket:
            for _ in range(4):  # longer than one lease
                await asyncio.sleep(0.5)
                await Tab(socket).say(type="ticket", ticket=await give(viewer, "live", "acme"))
            await Tab(socket).say(type="ping")
            assert await Tab(socket).hear() == {"type": "ping"}


@pytest.mark.parametrize("change", ["_demote", "_require_second_factor"])
async def test_rights_that_changed_before_it_was_shown_are_noticed(
    acme: Tenant, viewer: Client, change: str
) -> None:
    ticket = await give(viewer, "live", "acme")
    await database_sync_to_async(globals()[change])()
    async with door() as app, connected(app, "ws/live", ticket) as socket:
        assert await Tab(socket).closed() == GONE


async def test_a_session_that_ended_before_it_was_shown_is_noticed(viewer: Client) -> None:
    ticket = await give(viewer, "live", "acme")
    heard = asyncio.Event()
    async with doorway() as (gate, directory):
        directory.on_people(lambda notice: heard.set())
        await database_sync_to_async(viewer.logout)()
        await heard.wait()
        async with connected(gate.guarded("live", echo), "ws/live", ticket) as socket:
            assert await Tab(socket).closed() == NOT_SIGNED_IN


def _demote() -> None:
    Membership.objects.update(role=Role.DEVELOPER)


def _remove() -> None:
    Membership.objects.all().delete()


def _switch_off() -> None:
    User.objects.update(is_active=False)


def _require_second_factor() -> None:
    Tenant.objects.update(second_factor_required=True)


def _promote_to_operator() -> None:
    User.objects.update(is_staff=True)


def _break_listener() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'lorikeet-listener' AND datname = current_database()"
        )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_demote, GONE),
        (_remove, NOT_ALLOWED),
        (_switch_off, NOT_SIGNED_IN),
        (_promote_to_operator, GONE),
        (_require_second_factor, GONE),
        (_break_listener, GONE),
    ],
)
async def test_a_socket_is_closed_when_its_user_loses_access(
    viewer: Client, change: Any, code: int
) -> None:
    ticket = await give(viewer, "live", "acme")
    async with door() as app, connected(app, "ws/live", ticket) as socket:
        await Tab(socket).say(type="ping")
        await Tab(socket).hear()
        await database_sync_to_async(change)()
        assert await Tab(socket).closed() == code


async def test_others_keep_theirs(acme: Tenant, viewer: Client) -> None:
    ticket = await give(viewer, "live", "acme")
    other = await database_sync_to_async(client_of)(acme, "developer")
    async with door() as app, connected(app, "ws/live", ticket) as socket:
        await Tab(socket).say(type="ping")
        await Tab(socket).hear()
        await database_sync_to_async(other.logout)()
        theirs = Membership.objects.filter(role=Role.DEVELOPER)
        await database_sync_to_async(theirs.update)(role=Role.VIEWER)
        last = await give(viewer, "live", "acme")
        await Tab(socket).say(type="ticket", ticket=last)
        await Tab(socket).say(type="ping")
        assert await Tab(socket).hear() == {"type": "ping"}
