"""The live socket: who may watch what, for how long, and what he is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.test import Client

from frontend.live.board import Board
from frontend.live.socket import MAX_WATCHED, LiveSocket
from frontend.live.topics import TOPICS, StateTopic, Topic
from frontend.sockets import guarded
from tenants.models import Membership, Role, Tenant
from tenants.permissions import RANK, TABLE, Permission
from tests.frontend import sockets
from tests.frontend.clients import client_of
from tests.frontend.sockets import turned_away
from tests.frontend.test_live_board import HOUR_S, Counter, event, topics
from tests.inference.rig import until
from tests.tenants.making import make_base, make_tenant

ROLES = ("owner", "admin", "developer", "viewer", "outsider", "operator")


class Tab(sockets.Tab):
    """What a browser's tab has of a live socket."""

    async def watch(self, topic: str, tenant: Tenant | None = None, **more: str) -> None:
        slug = tenant.slug if tenant else ""
        await self.say(**({"type": "watch", "id": "1", "topic": topic, "tenant": slug} | more))


@asynccontextmanager
async def tab(app: Any, client: Client) -> AsyncIterator[Tab]:
    async with sockets.connected(app, "ws/live", client) as socket:
        yield Tab(socket)


@asynccontextmanager
async def live(
    found: Mapping[str, Topic], *, recheck_s: float = HOUR_S
) -> AsyncIterator[tuple[Board, Any]]:
    async with Board(found) as board:
        yield board, guarded(LiveSocket(board, recheck_s=recheck_s))
    await database_sync_to_async(bool)()  # after whatever was asked last, or it meets the clean-up


async def person(tenant: Tenant, role: str) -> Client:
    client: Client = await database_sync_to_async(client_of)(tenant, role)
    return client


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    make_base()
    return make_tenant("acme")


# --- Who may -------------------------------------------------------------------------------------


def may(topic: Topic, role: str, tenant: Tenant | None) -> bool:
    """What the tables say."""
    if tenant is None:
        return topic.whole and role == "operator"
    if topic.needs is None or role == "outsider":
        return False
    least = TABLE[topic.needs][0]
    return role == "operator" or (least is not None and RANK.index(Role(role)) >= RANK.index(least))


@pytest.mark.parametrize("role", ROLES)
async def test_each_topic_is_for_those_who_may_see_it(acme: Tenant, role: str) -> None:
    client = await person(acme, role)
    async with live(TOPICS) as (_, app), tab(app, client) as page:
        for topic in TOPICS.values():
            for tenant in (acme, None):
                await page.watch(topic.name, tenant)
                answer = "news" if may(topic, role, tenant) else "refused"
                assert ((await page.hear())["type"], topic, tenant) == (answer, topic, tenant)
                await page.say(type="unwatch", id="1")


@pytest.mark.parametrize("role", ROLES)
async def test_a_topic_takes_the_role_that_it_needs(acme: Tenant, role: str) -> None:
    log = StateTopic("log", Permission.READ_AUDIT, Counter())
    client = await person(acme, role)
    async with live({"log": log}) as (_, app), tab(app, client) as page:
        await page.watch("log", acme)
        allowed = role in ("owner", "admin", "operator")
        assert (await page.hear())["type"] == ("news" if allowed else "refused")


async def test_who_is_not_signed_in_is_sent_to_sign_in(acme: Tenant) -> None:
    async with live(TOPICS) as (_, app), tab(app, Client()) as page:
        assert await page.ended() == 4401


async def test_a_strange_origin_is_turned_away(acme: Tenant) -> None:
    client = await person(acme, "owner")
    async with live(TOPICS) as (_, app):
        assert await turned_away(app, "ws/live", client, origin="https://evil.example")


async def test_a_session_that_ends_ends_the_socket(acme: Tenant) -> None:
    client = await person(acme, "viewer")
    async with live(topics(Counter(), HOUR_S), recheck_s=0.01) as (_, app):
        async with tab(app, client) as page:
            await page.watch("state", acme)
            assert (await page.hear())["type"] == "news"
            await database_sync_to_async(client.logout)()
            assert await page.ended() == 4401


async def test_a_membership_that_is_taken_away_ends_the_socket(acme: Tenant) -> None:
    client = await person(acme, "viewer")
    async with live(topics(Counter(), HOUR_S), recheck_s=0.01) as (board, app):
        async with tab(app, client) as page:
            await page.watch("state", acme)
            assert (await page.hear())["type"] == "news"
            await database_sync_to_async(Membership.objects.all().delete)()
            assert await page.ended() == 4403
        assert board.watched("state") == []


async def test_between_two_looks_a_new_watch_is_looked_at_as_well(acme: Tenant) -> None:
    client = await person(acme, "viewer")
    async with live(topics(Counter(), HOUR_S)) as (_, app), tab(app, client) as page:
        await page.watch("state", acme)
        assert (await page.hear())["type"] == "news"
        await database_sync_to_async(Membership.objects.all().delete)()
        await page.watch("state", acme, id="2")
        assert await page.hear() == {"type": "refused", "id": "2"}
        await database_sync_to_async(client.logout)()
        await page.watch("state", acme, id="3")
        assert await page.ended() == 4401


@pytest.mark.parametrize(
    "message",
    [
        {"type": "watch", "id": "1", "topic": "nothing", "tenant": "acme"},
        {"type": "watch", "id": "1", "topic": "state", "tenant": "nobody"},
    ],
)
async def test_what_is_not_there_is_refused(acme: Tenant, message: dict[str, str]) -> None:
    client = await person(acme, "owner")
    async with live(topics(Counter(), HOUR_S)) as (_, app), tab(app, client) as page:
        await page.say(**message)
        assert await page.hear() == {"type": "refused", "id": "1"}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "nap"},
        {"type": "watch", "topic": "state"},
        {"type": "watch", "id": "", "topic": "state"},
        {"type": "watch", "id": "1", "topic": "state", "tenant": "a\0b"},
        {"type": "watch", "id": "1", "topic": "state", "tenant": "acme", "query": "\0"},
        {"type": "watch", "id": "1", "topic": "state", "tenant": "acme", "query": "x" * 201},
    ],
)
async def test_what_is_no_message_is_refused(acme: Tenant, message: dict[str, str]) -> None:
    client = await person(acme, "owner")
    async with live(topics(Counter(), HOUR_S)) as (_, app), tab(app, client) as page:
        await page.say(**message)
        assert await page.hear() == {"type": "refused", "id": ""}
        await page.say(type="ping")
        assert await page.hear() == {"type": "pong"}


async def test_a_page_watches_so_many_topics(acme: Tenant) -> None:
    client = await person(acme, "owner")
    async with live(topics(Counter(), HOUR_S)) as (board, app), tab(app, client) as page:
        for number in range(MAX_WATCHED + 1):
            await page.watch("events", acme, id=str(number), query=str(number))
        told = [await page.hear() for _ in range(MAX_WATCHED + 1)]
        assert {"type": "refused", "id": str(MAX_WATCHED)} in told
        assert len(board.watched("events")) == MAX_WATCHED


# --- What is told --------------------------------------------------------------------------------


async def test_state_is_told_at_once_when_it_changes_and_not_again(acme: Tenant) -> None:
    client, source = await person(acme, "viewer"), Counter()
    async with live(topics(source, 0.0)) as (_, app):
        async with tab(app, client) as page:
            await page.watch("state", acme)
            first = await page.hear()
            assert first["data"] == {"html": f"at first {acme.pk}"}
            source.state = "later"
            second = await page.hear()
            assert second["data"] == {"html": f"later {acme.pk}"}
            assert second["seq"] != first["seq"]
            async with tab(app, client) as again:
                await again.watch("state", acme, after=second["seq"])
                await again.say(type="ping")
                assert await again.hear() == {"type": "pong"}  # it has it
                await again.watch("state", acme, after=first["seq"], id="2")
                assert (await again.hear())["data"] == second["data"]


async def test_a_topic_may_be_watched_twice_and_left_once(acme: Tenant) -> None:
    client, source = await person(acme, "viewer"), Counter()
    async with live(topics(source, 0.0)) as (board, app), tab(app, client) as page:
        for id in ("1", "2"):
            await page.watch("state", acme, id=id)
            assert (await page.hear())["id"] == id
        await page.say(type="unwatch", id="1")
        source.state = "later"
        assert (await page.hear())["id"] == "2"
        await page.say(type="unwatch", id="2")
        await until(lambda: board.watched("state") == [])


async def test_a_tail_goes_on_where_it_was(acme: Tenant) -> None:
    client = await person(acme, "viewer")
    async with live(topics(Counter(), HOUR_S)) as (board, app):
        async with tab(app, client) as page:
            await page.watch("events", acme)
            assert (await page.hear())["data"] == {"rows": [], "missed": True}
            board.publish("events", acme.pk, event(1))
            board.flush("events")
            heard = await page.hear()
            assert heard["data"] == {"rows": [event(1)], "missed": False}
        for number in (2, 3):
            board.publish("events", acme.pk, event(number))
            board.publish("events", acme.pk + 1, event(9))
        board.flush("events")
        async with tab(app, client) as page:
            await page.watch("events", acme, after=heard["seq"])
            assert (await page.hear())["data"] == {"rows": [event(2), event(3)], "missed": False}


def slowed(app: Any, stuck: asyncio.Event, gate: asyncio.Event) -> Any:
    """The application with a page behind it that takes no news while the gate is shut; `stuck` is
    set when it was offered some."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async def send_later(event: Any) -> None:
            if event["type"] == "websocket.send":
                stuck.set()
                await gate.wait()
            await send(event)

        await app(scope, receive, send_later)

    return slow


async def test_a_slow_page_finds_few_messages_and_holds_nobody_up(acme: Tenant) -> None:
    client, stuck, gate = await person(acme, "viewer"), asyncio.Event(), asyncio.Event()
    async with live(topics(Counter(), HOUR_S)) as (board, app):
        async with tab(app, client) as quick, tab(slowed(app, stuck, gate), client) as slow:
            await quick.watch("events", acme)
            await quick.hear()
            await slow.watch("events", acme)
            await stuck.wait()
            for number in range(50):
                board.publish("events", acme.pk, event(number))
                board.flush("events")
                assert (await quick.hear())["data"]["rows"] == [event(number)]
            gate.set()
            assert (await slow.hear())["data"]["missed"]
            told = (await slow.hear())["data"]
            assert told == {"rows": [event(number) for number in range(50)], "missed": False}
