"""The live tail: what the ledger writes comes to the pages that may see it, once, as rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from channels.db import database_sync_to_async
from channels.layers import InMemoryChannelLayer
from django.utils import timezone

from frontend.live import tail
from frontend.live.board import MAX_BATCH, Board
from frontend.live.feeds import Key
from frontend.live.topics import TOPICS, EventTopic
from inference.link.wire import Account, LedgerEntry, Usage
from tenants.billing.statements import Line
from tenants.models import ApiKey, Tenant, UsageEvent, User
from tenants.models.usage import Mark
from tenants.permissions import Caller, Permission
from tests.frontend.test_live import live, person, tab
from tests.frontend.test_live_board import Reader, event, numbers
from tests.inference.rig import until
from tests.tenants.making import make_base, make_key, make_member, make_tenant
from tests.tenants.spending import patient_ledger, spend

USAGE = Usage(100, 40, 7, 0, 0.01, 0.0, 0.2, 0.9)


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    make_base()
    return make_tenant("acme")


@pytest.fixture
def key(acme: Tenant) -> ApiKey:
    return make_key(acme)[0]


def line(tenant_id: int, key_id: int, id: str, reason: str = "stop", at: float = 0) -> Line:
    account = Account(tenant_id, key_id, at or timezone.now().timestamp(), "base")
    return Line("e1", "j1", LedgerEntry(id, account, "base", USAGE, reason))


def told(key: ApiKey, ended: Sequence[tuple[str, float]], more: int = 0) -> dict[str, Any]:
    return {"tenant": key.tenant_id, "key": key.pk, "ended": ended, "more": more}


def watched(acme: Tenant, audience: str = tail.ALL, query: str = "") -> Key:
    return Key(tail.TOPIC, acme.pk, query, audience)


async def write(board: Board, lines: Sequence[Line]) -> None:
    """Through a ledger of a gateway with this board."""
    async with patient_ledger() as ledger:
        ledger.on_written(tail.listener(board.wanted, board.publish))
        ledger.record("e1", "j1", [one.entry for one in lines], lambda ids: None)


async def rows_of(reader: Reader) -> list[Any]:
    """Its next rows, when they come."""
    told = reader.told
    await until(lambda: reader.told > told)
    data = reader.read()
    assert not data["missed"]
    return list(data["rows"])


# --- Who is told what ----------------------------------------------------------------------------


def test_of_each_key_the_newest_are_told_and_the_rest_is_counted() -> None:
    lines = [line(1, 10, f"a{n}", at=n + 1) for n in range(tail.MOST + 7)]
    lines += [line(1, 11, "b", at=5), line(2, 20, "c", at=6)]
    (one, most), (same, few), (other, last) = tail.by_key(lines)
    assert (one, most["tenant"], most["key"], most["more"]) == (1, 1, 10, 7)
    assert len(most["ended"]) == tail.MOST
    assert most["ended"][-1] == (f"a{tail.MOST + 6}", tail.MOST + 7)
    assert (same, few) == (1, {"tenant": 1, "key": 11, "ended": [("b", 5)], "more": 0})
    assert (other, last) == (2, {"tenant": 2, "key": 20, "ended": [("c", 6)], "more": 0})


def test_nothing_is_made_where_nobody_listens() -> None:
    def publish(*_: object) -> None:
        raise AssertionError("nobody listens")

    tail.listener(lambda topic: False, publish)([line(1, 1, "a")])


@pytest.mark.parametrize(
    ("role", "sees"),
    [("viewer", ["own"]), ("developer", ["own"]), ("admin", ["other", "own"]),
     ("owner", ["other", "own"])],
)  # fmt: skip
def test_the_audience_is_whose_requests_a_person_sees(
    acme: Tenant, key: ApiKey, role: str, sees: list[str]
) -> None:
    user = make_member(acme, role)
    own = make_key(acme, created_by=user)[0]
    told = tail.audience(Caller.of_member(user, acme))
    events = [{"key": key.pk, "name": "other"}, {"key": own.pk, "name": "own"}]
    assert [one["name"] for one in tail.show(watched(acme, told), events)] == sees


async def test_who_made_no_key_is_told_nothing(acme: Tenant) -> None:
    user = await database_sync_to_async(make_member)(acme, "developer")
    caller = await database_sync_to_async(Caller.of_member)(user, acme)
    told = await database_sync_to_async(tail.audience)(caller)
    assert tail.show(watched(acme, told), [{"key": 1}]) == []


# --- Rows ----------------------------------------------------------------------------------------


async def test_rows_are_those_of_the_page_the_oldest_first(acme: Tenant, key: ApiKey) -> None:
    make = database_sync_to_async(spend)
    now = timezone.now()
    early = await make(key, now - timedelta(minutes=9), finish_reason="engine_lost")
    late = await make(key, now)
    other = await database_sync_to_async(make_key)(await database_sync_to_async(make_tenant)())
    foreign = await make(other[0], now)
    ended = [(one.id, one.started_at.timestamp()) for one in (late, foreign, early)]
    events = [told(key, ended)]
    keys = [watched(acme), watched(acme, query="outcome=failed"), watched(acme, query="key=x")]
    found = await tail.read(dict.fromkeys(keys, events))
    assert [[row["id"] for row in found[one]] for one in keys] == [
        [early.id, late.id],
        [early.id],
        [],
    ]
    html = found[keys[0]][1]["html"]
    assert html.lstrip().startswith(f'<tr id="r-{late.id}">') and "a key" in html


async def test_more_than_a_page_can_show_are_counted(acme: Tenant, key: ApiKey) -> None:
    event = told(key, [(str(n), n) for n in range(tail.MOST)], more=3)
    found = await tail.read({watched(acme): [event, event]})
    assert found == {watched(acme): [{"more": tail.MOST + 6}]}


async def test_a_tenant_that_is_gone_has_no_rows(acme: Tenant, key: ApiKey) -> None:
    nobody = Key(tail.TOPIC, acme.pk + 99, "", tail.ALL)
    assert await tail.read({nobody: [told(key, [("a", 1.0)])]}) == {}


async def test_operators_see_everybodys_or_those_of_the_tenant_that_they_name(
    acme: Tenant, key: ApiKey
) -> None:
    make = database_sync_to_async(spend)
    other = (
        await database_sync_to_async(make_key)(await database_sync_to_async(make_tenant)("b"))
    )[0]
    ours, failed = [
        await make(key, timezone.now(), finish_reason=r) for r in ("stop", "engine_lost")
    ]
    theirs = await make(other, timezone.now())
    crowd = [(f"none-{n}", 1.0) for n in range(tail.MOST)]
    events = [
        told(key, [(one.id, one.started_at.timestamp()) for one in (ours, failed)]),
        told(other, [*crowd, (theirs.id, theirs.started_at.timestamp())], more=5),
    ]
    asked = ("", "tenant=acme", "tenant=acme&outcome=failed", "tenant=nobody")
    keys = [Key(tail.TOPIC, query=query) for query in asked]
    found = await tail.read(dict.fromkeys(keys, events))
    assert [[row.get("id", row.get("more")) for row in found[one]] for one in keys] == [
        [8, theirs.id],
        [ours.id, failed.id],
        [failed.id],
        [],
    ]
    assert "/operate/tenants/acme" in found[keys[1]][0]["html"]


def test_marks_find_their_events_whatever_rounding_did(acme: Tenant, key: ApiKey) -> None:
    events = UsageEvent.objects.all()
    made = [spend(key, timezone.now()) for _ in range(3)]
    marks = [Mark(one.started_at + timedelta(microseconds=7), one.id) for one in made]
    assert set(events.marked(marks[:2])) == set(made[:2])
    assert list(events.marked([])) == []


# --- From the ledger to the page -----------------------------------------------------------------


async def test_a_request_comes_once_to_the_page_that_watches(acme: Tenant, key: ApiKey) -> None:
    client = await person(acme, "admin")
    async with live(TOPICS) as (board, app):
        async with tab(app, client) as page:
            await page.watch("requests", acme)
            assert (await page.hear())["data"] == {"rows": [], "missed": True}
            await write(board, [line(acme.pk, key.pk, "one"), line(acme.pk + 1, 1, "foreign")])
            first = await page.hear()
            assert [row["id"] for row in first["data"]["rows"]] == ["one"]
        # The socket is cut, requests go on, and it comes back.
        await write(board, [line(acme.pk, key.pk, "two")])
        await until(lambda: not board.busy)
        async with tab(app, client) as page:
            await page.watch("requests", acme, after=first["seq"])
            again = await page.hear()
            assert [row["id"] for row in again["data"]["rows"]] == ["two"]
            assert not again["data"]["missed"]


async def test_a_developer_hears_of_keys_of_his_own(acme: Tenant, key: ApiKey) -> None:
    client = await person(acme, "developer")
    user = await User.objects.aget(memberships__tenant=acme)
    own, _ = await database_sync_to_async(make_key)(acme, created_by=user)
    async with live(TOPICS) as (board, app), tab(app, client) as page:
        await page.watch("requests", acme)
        await page.hear()
        await write(board, [line(acme.pk, key.pk, "other"), line(acme.pk, own.pk, "own")])
        assert [row["id"] for row in (await page.hear())["data"]["rows"]] == ["own"]


@pytest.mark.parametrize("role", ["owner", "admin", "developer", "viewer", "outsider"])
async def test_everybodys_requests_are_for_operators_alone(acme: Tenant, role: str) -> None:
    client = await person(acme, role)
    async with live(TOPICS) as (board, app), tab(app, client) as page:
        await page.watch("requests")
        assert await page.hear() == {"type": "refused", "id": "1"}
        assert board.watched("requests") == []


async def test_operators_hear_of_everybodys_requests_read_once_for_all_tabs(
    acme: Tenant, key: ApiKey
) -> None:
    client = await person(acme, "operator")
    other, _ = await database_sync_to_async(make_key)(
        await database_sync_to_async(make_tenant)("b")
    )
    async with live(TOPICS) as (board, app), tab(app, client) as one, tab(app, client) as two:
        for page in (one, two):
            await page.watch("requests")
            assert (await page.hear())["data"] == {"rows": [], "missed": True}
        assert len(board.watched("requests")) == 1
        await write(
            board, [line(acme.pk, key.pk, "ours"), line(other.tenant_id, other.pk, "other")]
        )
        for page in (one, two):
            rows = (await page.hear())["data"]["rows"]
            assert sorted(row["id"] for row in rows) == ["other", "ours"]


async def test_requests_of_one_gateway_come_to_the_pages_of_another(
    acme: Tenant, key: ApiKey
) -> None:
    layer = InMemoryChannelLayer()
    async with Board(layer=layer) as here, Board(layer=layer) as there:
        reader = Reader(there, watched(acme))
        await until(lambda: reader.told > 0)  # it is in the group
        reader.read()
        await write(here, [line(acme.pk, key.pk, f"r{n}", at=1e9 + n) for n in range(3)])
        assert [row["id"] for row in await rows_of(reader)] == ["r0", "r1", "r2"]


# --- Events that are looked up -------------------------------------------------------------------


class Shelf:
    """A `read` that waits until it may go on, or fails."""

    def __init__(self) -> None:
        self.may, self.asked, self.fails = asyncio.Event(), 0, False

    async def __call__(self, events: Any) -> Any:
        self.asked += 1
        await self.may.wait()
        if self.fails:
            raise LookupError
        return {key: rows for key, rows in events.items() if key.tenant_id == 1}

    @property
    def topics(self) -> dict[str, Any]:
        shown = EventTopic("events", Permission.READ_TENANT, lambda key, events: events, self)
        return {"events": shown}


async def test_what_comes_while_it_is_read_is_read_next() -> None:
    shelf = Shelf()
    async with Board(shelf.topics) as board:
        reader, unknown = Reader(board, Key("events", 1)), Reader(board, Key("events", 2))
        reader.read()
        unknown.read()
        for number in range(3):
            board.publish("events", 1, event(number))
            board.publish("events", 2, event(number))
            board.flush("events")
            await until(lambda: shelf.asked == 1)
        shelf.may.set()
        await until(lambda: not board.busy)
        assert numbers(reader.read()) == [0, 1, 2] and shelf.asked == 2
        assert unknown.read()["missed"]


async def test_a_read_that_fails_is_told_as_missed_and_the_next_is_read() -> None:
    shelf = Shelf()
    shelf.may.set()
    shelf.fails = True
    async with Board(shelf.topics) as board:
        reader = Reader(board, Key("events", 1))
        reader.read()
        for fails in (True, False):
            shelf.fails = fails
            board.publish("events", 1, event(1))
            board.flush("events")
            await until(lambda: not board.busy)
            data = reader.read()
            assert (data["missed"], len(data["rows"])) == (fails, 0 if fails else 1)


async def test_what_waits_to_be_read_is_bounded() -> None:
    shelf = Shelf()
    async with Board(shelf.topics) as board:
        reader = Reader(board, Key("events", 1))
        reader.read()
        for number in range(MAX_BATCH + 2):
            board.publish("events", 1, event(number))
            if number % 100 == 0:
                board.flush("events")
                await until(lambda: shelf.asked == 1)
        board.flush("events")
        assert reader.read()["missed"]
        shelf.may.set()
        await until(lambda: not board.busy)
        assert shelf.asked == 2
