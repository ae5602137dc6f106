"""Live topics without a socket: one sample for all, what a reader lacks, other gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from channels.layers import InMemoryChannelLayer

from frontend.live.board import MAX_BATCH, Board
from frontend.live.feeds import MAX_KEPT, Events, Feed, Key, State
from frontend.live.topics import EventTopic, StateTopic, Topic
from tenants.permissions import Permission
from tests.inference.rig import until

HOUR_S = 3600.0
"""Nothing that is due then happens in a test."""


class Counter:
    """A source of state that counts how often it is asked, and for what."""

    def __init__(self) -> None:
        self.asked: list[list[Key]] = []
        self.state: Any = "at first"
        self.fails = False

    async def __call__(self, keys: Sequence[Key]) -> Mapping[Key, Any]:
        self.asked.append(list(keys))
        if self.fails:
            raise LookupError
        return {key: {"html": f"{self.state} {key.tenant_id}"} for key in keys}


def shown(key: Key, events: Sequence[Any]) -> list[Any]:
    return [event for event in events if not key.query or event["kind"] == key.query]


def topics(source: Callable[[Sequence[Key]], Awaitable[Any]], every_s: float) -> dict[str, Topic]:
    return {
        "state": StateTopic("state", Permission.READ_TENANT, source, every_s=every_s),
        "events": EventTopic("events", Permission.READ_TENANT, shown, whole=True),
    }


class Reader:
    """Reads a feed as a socket does, when it wants to."""

    def __init__(self, board: Board, key: Key, number: int | None = None) -> None:
        self.board, self.number = board, number
        self.told = 0
        self.feed: Feed = board.watch(key, self.tell)

    def tell(self) -> None:
        self.told += 1

    def read(self) -> Any:
        data = self.feed.since(self.number)
        self.number = self.feed.number
        return None if data is None else msgspec.json.decode(data)

    def leave(self) -> None:
        self.board.unwatch(self.feed, self.tell)


# --- State ---------------------------------------------------------------------------------------


async def test_fifty_watchers_are_one_sample() -> None:
    source = Counter()
    async with Board(topics(source, HOUR_S)) as board:
        readers = [Reader(board, Key("state", 1)) for _ in range(50)]
        await until(lambda: all(reader.told for reader in readers))
        assert [reader.read() for reader in readers] == [{"html": "at first 1"}] * 50
        late = Reader(board, Key("state", 1))
        assert late.read() == {"html": "at first 1"}
        assert source.asked == [[Key("state", 1)]]


async def test_all_watched_keys_are_sampled_together_and_newcomers_at_once() -> None:
    source = Counter()
    async with Board(topics(source, HOUR_S)) as board:
        first = [Reader(board, Key("state", id)) for id in (1, 2)]
        await until(lambda: all(reader.told for reader in first))
        third = Reader(board, Key("state", 3))
        await until(lambda: third.told > 0)
        assert source.asked == [[Key("state", 1), Key("state", 2)], [Key("state", 3)]]


async def test_only_what_changed_is_told_and_a_slow_reader_finds_the_newest() -> None:
    source = Counter()
    async with Board(topics(source, 0.0)) as board:
        reader = Reader(board, Key("state", 1))
        await until(lambda: len(source.asked) > 5)
        assert (reader.told, reader.read(), reader.read()) == (1, {"html": "at first 1"}, None)
        for state in ("second", "third"):
            told, source.state = reader.told, state
            await until(lambda told=told: reader.told > told)  # type: ignore[misc]
        assert reader.read() == {"html": "third 1"}
        assert reader.read() is None


async def test_nothing_runs_when_nobody_watches() -> None:
    source = Counter()
    async with Board(topics(source, 0.0)) as board:
        reader = Reader(board, Key("state", 1))
        await until(lambda: reader.told > 0)
        reader.leave()
        asked = len(source.asked)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert len(source.asked) <= asked + 1
        again = Reader(board, Key("state", 1))
        await until(lambda: again.told > 0)
        assert again.read() == {"html": "at first 1"}


async def test_a_source_that_fails_is_asked_again() -> None:
    source = Counter()
    source.fails = True
    async with Board(topics(source, 0.0)) as board:
        reader = Reader(board, Key("state", 1))
        await until(lambda: len(source.asked) > 2)
        source.fails = False
        await until(lambda: reader.told > 0)


async def test_who_comes_back_is_told_what_he_lacks_and_only_by_the_same_board() -> None:
    source = Counter()
    async with Board(topics(source, HOUR_S)) as board, Board(topics(source, HOUR_S)) as other:
        reader = Reader(board, Key("state", 1))
        await until(lambda: reader.told > 0)
        reader.read()
        seq = board.seq(reader.feed.number)
        assert board.number(seq) == reader.feed.number
        assert Reader(board, Key("state", 1), board.number(seq)).read() is None
        assert other.number(seq) is None
        for nonsense in ("", "-", "x-1", f"{board.id}-", f"{board.id}-x"):
            assert board.number(nonsense) is None


# --- Events --------------------------------------------------------------------------------------


def event(number: int, kind: str = "a") -> dict[str, Any]:
    return {"number": number, "kind": kind}


def numbers(data: Any) -> list[int]:
    assert not data["missed"]
    return [row["number"] for row in data["rows"]]


@pytest.fixture
def quiet() -> dict[str, Topic]:
    return topics(Counter(), HOUR_S)


async def test_events_come_to_those_who_may_see_them(quiet: dict[str, Topic]) -> None:
    async with Board(quiet) as board:
        board.publish("events", 1, event(0))  # nobody watches
        keys = [Key("events", 1), Key("events", 2), Key("events"), Key("events", 1, "b")]
        one, two, whole, filtered = readers = [Reader(board, key) for key in keys]
        for reader in readers:
            assert reader.read() == {"rows": [], "missed": True}  # they read what was before
        board.publish("events", 1, event(1))
        board.publish("events", 2, event(2))
        board.publish("events", 1, event(3, "b"))
        board.flush("events")
        assert [numbers(r.read()) for r in (one, two, whole)] == [[1, 3], [2], [1, 2, 3]]
        assert numbers(filtered.read()) == [3]
        assert all(reader.read() is None and reader.told == 1 for reader in readers)


async def test_who_comes_back_has_each_event_once(quiet: dict[str, Topic]) -> None:
    async with Board(quiet) as board:
        reader = Reader(board, Key("events", 1))
        reader.read()
        reader.leave()
        for number in range(3):
            board.publish("events", 1, event(number))
            board.flush("events")
        again = Reader(board, Key("events", 1), reader.number)
        assert numbers(again.read()) == [0, 1, 2]
        assert again.read() is None


async def test_who_was_away_too_long_is_told_that_he_missed_some(quiet: dict[str, Topic]) -> None:
    async with Board(quiet, linger_s=0.0) as board:
        reader, other = (Reader(board, Key("events", 1)) for _ in range(2))
        reader.read()
        other.read()
        for number in range(MAX_KEPT + 1):
            board.publish("events", 1, event(number))
            if number == 0:
                board.flush("events")
                assert numbers(other.read()) == [0]
        board.flush("events")
        assert reader.read() == {"rows": [], "missed": True}
        assert numbers(other.read()) == list(range(1, MAX_KEPT + 1))
        for one in (reader, other):
            one.leave()
        await until(lambda: Key("events", 1) not in board.watched("events"))
        assert Reader(board, Key("events", 1), reader.number).read()["missed"]


async def test_a_flood_keeps_the_newest_and_says_so(quiet: dict[str, Topic]) -> None:
    async with Board(quiet) as board:
        reader = Reader(board, Key("events", 1))
        reader.read()
        for number in range(MAX_BATCH + 1):
            board.publish("events", 1, event(number))
        board.flush("events")
        assert reader.read()["missed"]


async def test_events_travel_between_gateways(quiet: dict[str, Topic]) -> None:
    layer = InMemoryChannelLayer()
    async with Board(quiet, layer) as here, Board(quiet, layer) as there:
        reader, own = Reader(there, Key("events", 1)), Reader(here, Key("events"))
        await until(lambda: reader.told > 0 and own.told > 0)  # both are in the group
        reader.read()
        own.read()
        for number in range(3):
            here.publish("events", 1, event(number))
            here.flush("events")
            await until(lambda: here.idle)
        await until(lambda: reader.told > 3)
        assert numbers(reader.read()) == numbers(own.read()) == [0, 1, 2]


class Away(InMemoryChannelLayer):
    """A layer whose Redis can be away: it hangs, or refuses."""

    hangs = refuses = False
    asked = 0

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.asked += 1
        if self.refuses:
            raise OSError("no route to Redis")
        if self.hangs:
            await asyncio.Event().wait()
        await super().group_send(group, message)


async def test_a_layer_that_is_away_holds_nothing_up(quiet: dict[str, Topic]) -> None:
    layer = Away()
    async with Board(quiet, layer) as here, Board(quiet, layer) as there:
        reader, own = Reader(there, Key("events", 1)), Reader(here, Key("events", 1))
        await until(lambda: reader.told > 0 and own.told > 0)
        reader.read()
        own.read()

        async def publish(number: int) -> None:
            here.publish("events", 1, event(number))
            here.flush("events")
            assert numbers(own.read()) == [number]
            await until(lambda: here.idle)

        await publish(0)
        await until(lambda: reader.told > 1)
        assert numbers(reader.read()) == [0]
        layer.refuses = True
        await publish(1)
        layer.refuses = False
        await publish(2)
        await until(lambda: reader.told > 2)
        assert reader.read()["missed"]  # the second never came
        layer.hangs = True
        asked = layer.asked
        for number in (3, 4):
            here.publish("events", 1, event(number))
            here.flush("events")
            assert numbers(own.read()) == [number]
        await until(lambda: layer.asked > asked)
        assert layer.asked == asked + 1  # one at a time hangs


def test_feeds_number_what_they_tell_without_repeating() -> None:
    from itertools import count

    counter = count(1)
    state, events = State(Key("state", 1), counter), Events(Key("events", 1), counter)
    assert state.since(None) is None and not state.known
    seen = [state.number, events.number]
    state.put({"html": "a"})
    events.add([1, 2])
    seen += [state.number, events.number]
    events.skip()
    seen += [events.number]
    assert seen == sorted(set(seen))
