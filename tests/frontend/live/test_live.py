"""The live socket: which roles may watch which topics, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.test import Client

from frontend.live.feeds import Key
from frontend.live.socket import MAX_WATCHED, LiveSocket
from frontend.live.tail import ALL, hears
from frontend.live.topics import TOPICS, Topic, key_of
from frontend.sockets.gate import Serve
from frontend.sockets.tickets import LIVE, Ticket
from frontend.views.tickets import audience_of
from tenants.models import Role, Tenant
from tenants.permissions import RANK, TABLE, Caller, Permission
from tests.frontend.clients import client_of
from tests.frontend.live import sockets
from tests.frontend.live.sockets import asked, doorway, ticket_of
from tests.frontend.live.test_live_board import HOUR_S, Watched, board_of, publish, topics
from tests.inference.rig import until
from tests.tenants.making import make_base, make_key, make_member, make_tenant, make_user

ROLES = ("owner", "admin", "developer", "viewer", "outsider", "operator")


class Tab(sockets.Tab):
    """A tab's end of a live socket."""

    async def watch(self, topic: str, **more: str) -> None:
        await self.say(**({"type": "watch", "id": "1", "topic": topic} | more))


def ticket(*may: Permission) -> Ticket:
    """A ticket of a member of the tenant, by default with all permissions."""
    claims = {"may": [one.name for one in may or Permission]}
    return Ticket(purpose=LIVE, user_id=1, tenant_id=1, slug="acme", audience=ALL, claims=claims)


@asynccontextmanager
async def opened(live: Serve) -> AsyncIterator[Tab]:
    """A socket that a ticket with all permissions has opened."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        await live(ticket(), scope, receive, send)

    async with sockets.connected(serve, "ws/live") as socket:
        yield Tab(socket)


# --- Permissions ---------------------------------------------------------------------------------


def may(topic: Topic, role: str, *, whole: bool) -> bool:
    """Whether the tables of topics and permissions allow it."""
    if whole:
        return topic.whole and role == "operator"
    if topic.needs is None or role == "outsider":
        return False
    least = TABLE[Permission[topic.needs]][0]
    return role == "operator" or (least is not None and RANK.index(Role(role)) >= RANK.index(least))


@pytest.mark.parametrize("role", ROLES)
async def test_each_topic_is_for_those_who_may_see_it(transactional_db: None, role: str) -> None:
    def arrange() -> tuple[Tenant, Client]:
        make_base()
        tenant = make_tenant("acme")
        return tenant, client_of(tenant, role)

    acme, client = await database_sync_to_async(arrange)()
    async with board_of(TOPICS) as board, doorway() as (gate, _):
        app = gate.guarded(LIVE, LiveSocket(board))
        for slug in (acme.slug, ""):
            wish = await database_sync_to_async(asked)(client, LIVE, slug)
            if wish.status_code == 403:
                assert not any(may(topic, role, whole=not slug) for topic in TOPICS.values())
                continue
            shown = await database_sync_to_async(ticket_of)(client, LIVE, slug)
            async with sockets.connected(app, "ws/live", shown) as socket:
                page = Tab(socket)
                for topic in TOPICS.values():
                    await page.watch(topic.name)
                    answer = "news" if may(topic, role, whole=not slug) else "refused"
                    assert ((await page.hear())["type"], topic, slug) == (answer, topic, slug)
                    await page.say(type="unwatch", id="1")


@pytest.mark.parametrize("topic", TOPICS.values(), ids=list(TOPICS))
def test_a_topic_takes_what_it_needs(topic: Topic) -> None:
    for one in Permission:
        found = key_of(topic, ticket(one))
        assert (found is not None) == (one.name == topic.needs), one
    operator = Ticket(purpose=LIVE, user_id=1, staff=True)
    assert key_of(topic, operator) == (Key(topic.name) if topic.whole else None)
    assert key_of(topic, Ticket(purpose=LIVE, user_id=1)) is None


@pytest.mark.parametrize(
    ("role", "sees"),
    [("viewer", {"own"}), ("developer", {"own"}), ("admin", {"own", "other"}),
     ("owner", {"own", "other"}), ("operator", {"own", "other"})],
)  # fmt: skip
def test_the_ticket_says_whose_requests_he_hears_of(
    tenant: Tenant, role: str, sees: set[str]
) -> None:
    user = make_user(is_staff=True) if role == "operator" else make_member(tenant, role)
    caller = Caller.of_member(user, tenant)
    keys = {"own": make_key(tenant, created_by=caller.user)[0], "other": make_key(tenant)[0]}
    audience = audience_of(caller)
    assert {name for name, key in keys.items() if hears(audience, key.pk)} == sees


@pytest.mark.parametrize(
    "message",
    [
        {"type": "nap"},
        {"type": "watch", "topic": "state"},
        {"type": "watch", "id": "", "topic": "state"},
        {"type": "watch", "id": "1", "topic": "\0"},
        {"type": "watch", "id": "1", "topic": "state", "after": "x" * 201},
    ],
)
async def test_malformed_messages_are_refused(message: dict[str, str]) -> None:
    async with board_of() as board, opened(LiveSocket(board)) as page:
        await page.say(**message)
        assert await page.hear() == {"type": "refused", "id": ""}
        await page.say(type="ping")
        assert await page.hear() == {"type": "pong"}


async def test_an_unknown_topic_is_refused() -> None:
    async with board_of() as board, opened(LiveSocket(board)) as page:
        await page.watch("nothing")
        assert await page.hear() == {"type": "refused", "id": "1"}


async def test_a_page_watches_so_many_topics() -> None:
    async with board_of() as board, opened(LiveSocket(board)) as page:
        for number in range(MAX_WATCHED + 1):
            await page.watch("requests", id=str(number))
        told = [await page.hear() for _ in range(MAX_WATCHED + 1)]
        assert {"type": "refused", "id": str(MAX_WATCHED)} in told


async def test_a_page_that_goes_watches_nothing() -> None:
    async with board_of() as board:
        async with opened(LiveSocket(board)) as page:
            await page.watch("state")
            await page.hear()
            assert board.watched("state") == [Key("state", 1, "acme")]
        assert board.watched("state") == []


# --- Messages ------------------------------------------------------------------------------------


async def test_a_page_is_told_that_a_topic_changed_but_not_its_content() -> None:
    signal = Watched()
    async with board_of(topics(signal, 0.0)) as board:
        async with opened(LiveSocket(board)) as page:
            await page.watch("state")
            first = await page.hear()
            assert (first["id"], first["data"]) == ("1", {})
            signal.state = "later"
            second, echo = await page.hear(), await page.hear()
            assert second["data"] == echo["data"] == {} and second["seq"] != first["seq"]
            async with opened(LiveSocket(board)) as again:
                await again.watch("state", after=echo["seq"])
                await again.say(type="ping")
                assert await again.hear() == {"type": "pong"}  # nothing is new to it
                await again.watch("state", after=first["seq"], id="2")
                assert (await again.hear())["id"] == "2"


async def test_a_topic_may_be_watched_twice_and_left_once() -> None:
    signal = Watched()
    async with board_of(topics(signal, 0.0)) as board, opened(LiveSocket(board)) as page:
        for id in ("1", "2"):
            await page.watch("state", id=id)
            assert (await page.hear())["id"] == id
        await page.say(type="unwatch", id="1")
        await page.say(type="ping")
        assert await page.hear() == {"type": "pong"}
        signal.state = "later"
        assert (await page.hear())["id"] == "2"
        await page.say(type="unwatch", id="2")
        await until(lambda: board.watched("state") == [])


async def test_a_tail_goes_on_where_it_was() -> None:
    async with board_of() as board:
        async with opened(LiveSocket(board)) as page:
            await page.watch("requests")
            assert (await page.hear())["data"] == {"ended": [], "more": 0, "missed": True}
            publish(board, 1)
            heard = await page.hear()
            assert heard["data"] == {"ended": ["1-r"], "more": 0, "missed": False}
        publish(board, 2, 3)
        async with opened(LiveSocket(board)) as page:
            await page.watch("requests", after=heard["seq"])
            told = (await page.hear())["data"]
            assert told == {"ended": ["2-r", "3-r"], "more": 0, "missed": False}


def slowed(app: Any, stuck: asyncio.Event, gate: asyncio.Event) -> Any:
    """The application with a page that accepts no messages until `gate` is set; `stuck` is set when
    one is sent."""

    async def slow(ticket: Ticket, scope: Any, receive: Any, send: Any) -> None:
        async def send_later(event: Any) -> None:
            stuck.set()
            await gate.wait()
            await send(event)

        await app(ticket, scope, receive, send_later)

    return slow


async def test_a_slow_page_finds_few_messages_and_holds_nobody_up() -> None:
    stuck, gate = asyncio.Event(), asyncio.Event()
    async with board_of(topics(Watched(), HOUR_S)) as board:
        live = LiveSocket(board)
        async with opened(live) as quick, opened(slowed(live, stuck, gate)) as slow:
            await quick.watch("requests")
            await quick.hear()
            await slow.watch("requests")
            await stuck.wait()
            for number in range(50):
                publish(board, number)
                assert (await quick.hear())["data"]["ended"] == [f"{number}-r"]
            gate.set()
            assert (await slow.hear())["data"]["missed"]
            told = (await slow.hear())["data"]
            assert told["ended"] == [f"{number}-r" for number in range(50)]
