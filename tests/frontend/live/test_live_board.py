"""Live topics without a socket: one check for all watchers, what a reader lacks, other gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
import structlog
from channels.layers import InMemoryChannelLayer

from frontend.live.board import MAX_BATCH, Board
from frontend.live.feeds import MAX_KEPT, Events, Feed, FeedState, Key
from frontend.live.signals import Signals
from frontend.live.tail import ALL, MOST, TailEnded
from frontend.live.topics import TOPICS, Topic
from inference.gateway.measuring.history import History
from tests.inference.rig import until

HOUR_S = 3600.0
"""An interval so long that nothing becomes due during a test."""


class Watched:
    """A signal that records the keys of each check."""

    def __init__(self) -> None:
        self.asked: list[list[Key]] = []
        self.state = "at first"
        self.fails = False

    def __call__(self, signals: Signals, keys: Sequence[Key], now: float) -> Mapping[Key, object]:
        self.asked.append(list(keys))
        if self.fails:
            raise LookupError
        return {key: (self.state, key.tenant_id) for key in keys}


def topics(signal: Any, every_s: float) -> dict[str, Topic]:
    return {
        "state": Topic("state", "READ_TENANT", signal, every_s=every_s),
        "requests": TOPICS["requests"],
    }


def board_of(found: Mapping[str, Topic] | None = None, layer: Any = None, **more: Any) -> Board:
    """A board of a gateway without engines; by default nothing is checked a second time."""
    found = found or topics(Watched(), HOUR_S)
    return Board(Signals(list, History()), layer, topics=found, **more)


def whose(tenant_id: int) -> Key:
    """The requests of a tenant, with its owner's audience."""
    return Key("requests", tenant_id, audience=ALL)


WHOLE = Key("requests")


class Reader:
    """Reads a feed as a socket does, whenever the test wants."""

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


async def test_fifty_watchers_are_one_look() -> None:
    signal = Watched()
    async with board_of(topics(signal, HOUR_S)) as board:
        readers = [Reader(board, Key("state", 1)) for _ in range(50)]
        assert [reader.read() for reader in readers] == [{}] * 50
        assert [reader.read() for reader in readers] == [None] * 50
        Reader(board, Key("state", 2))
        assert signal.asked == [[Key("state", 1)], [Key("state", 2)]]


async def test_all_watched_keys_are_looked_at_together() -> None:
    signal = Watched()
    async with board_of(topics(signal, 0.0)) as board:
        for id in (1, 2):
            Reader(board, Key("state", id))
        await until(lambda: len(signal.asked) > 4)
        assert signal.asked[2:4] == [[Key("state", 1), Key("state", 2)]] * 2


async def test_a_change_is_told_and_once_more_and_not_again() -> None:
    signal = Watched()
    async with board_of(topics(signal, 0.0)) as board:
        reader = Reader(board, Key("state", 1))
        assert (reader.read(), reader.read()) == ({}, None)
        await until(lambda: len(signal.asked) > 5)
        assert (reader.told, reader.read()) == (0, None)
        for state in ("second", "third"):
            told, asked, signal.state = reader.told, len(signal.asked), state
            await until(lambda asked=asked: len(signal.asked) > asked + 5)  # type: ignore[misc]
            assert reader.told == told + 2
        assert (reader.read(), reader.read()) == ({}, None)


async def test_nothing_runs_when_nobody_watches() -> None:
    signal = Watched()
    async with board_of(topics(signal, 0.0)) as board:
        reader = Reader(board, Key("state", 1))
        reader.leave()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert len(signal.asked) == 1
        again = Reader(board, Key("state", 1))
        await until(lambda: len(signal.asked) > 3)
        signal.state = "later"
        await until(lambda: again.told > 0)


async def test_a_signal_that_fails_is_looked_at_again() -> None:
    signal = Watched()
    signal.fails = True
    async with board_of(topics(signal, 0.0)) as board:
        reader = Reader(board, Key("state", 1))
        assert reader.read() == {}
        await until(lambda: len(signal.asked) > 2)
        signal.fails = False
        await until(lambda: reader.told > 0)


async def test_a_topic_is_looked_at_again_after_a_reader_that_raised() -> None:
    class FailingOnce(Reader):
        def tell(self) -> None:
            super().tell()
            if self.told == 1:
                raise RuntimeError("of no use")

    signal = Watched()
    async with board_of(topics(signal, 0.0)) as board:
        failing = FailingOnce(board, Key("state", 1))
        with structlog.testing.capture_logs() as logs:
            signal.state = "second"
            await until(lambda: logs)
        assert [(log["event"], log["task"]) for log in logs] == [("task_ended", "live state")]
        signal.state = "third"
        await until(lambda: failing.told == 3)
        failing.leave()
        await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_returning_reader_gets_what_it_missed_from_the_same_board() -> None:
    async with board_of() as board, board_of() as other:
        reader = Reader(board, Key("state", 1))
        reader.read()
        seq = board.seq(reader.feed.number)
        assert board.number(seq) == reader.feed.number
        assert Reader(board, Key("state", 1), board.number(seq)).read() is None
        assert other.number(seq) is None
        for nonsense in ("", "-", "x-1", f"{board.id}-", f"{board.id}-x"):
            assert board.number(nonsense) is None


# --- Requests ------------------------------------------------------------------------------------


def ended(number: int, tenant_id: int = 1, key_id: int = 10) -> TailEnded:
    return TailEnded(tenant_id, key_id, [f"{number}-r"])


def numbers(data: Any) -> list[int]:
    assert (data["missed"], data["more"]) == (False, 0)
    return [int(mark.partition("-")[0]) for mark in data["ended"]]


MISSED = {"ended": [], "more": 0, "missed": True}


def publish(board: Board, *numbers: int) -> None:
    for number in numbers:
        board.ended(ended(number))
    board.flush()


async def test_requests_come_to_those_who_may_hear_of_them() -> None:
    async with board_of() as board:
        board.ended(ended(0))  # not watched by anybody
        own = Key("requests", 1, audience="own 11 12")
        nothing = Key("requests", 1, audience="own")
        keys = [whose(1), whose(2), WHOLE, own, nothing]
        one, two, whole, some, none = readers = [Reader(board, key) for key in keys]
        for reader in readers:
            assert reader.read() == MISSED  # they have to load what was before
        for each in (ended(1), ended(2, tenant_id=2), ended(3, key_id=12)):
            board.ended(each)
        board.flush()
        assert [numbers(r.read()) for r in (one, two, whole)] == [[1, 3], [2], [1, 2, 3]]
        assert numbers(some.read()) == [3]
        assert none.read() is None and none.told == 0
        assert all(reader.read() is None and reader.told < 2 for reader in readers)


async def test_a_returning_reader_gets_each_request_once() -> None:
    async with board_of() as board:
        reader = Reader(board, whose(1))
        reader.read()
        reader.leave()
        for number in range(3):
            publish(board, number)
        again = Reader(board, whose(1), reader.number)
        assert numbers(again.read()) == [0, 1, 2]
        assert again.read() is None


async def test_a_reader_that_was_away_too_long_is_told_that_it_missed_some() -> None:
    async with board_of(linger_s=0.0) as board:
        reader, other = (Reader(board, whose(1)) for _ in range(2))
        reader.read()
        other.read()
        publish(board, 0)
        assert numbers(other.read()) == [0]
        for number in range(1, MAX_KEPT + 1):
            publish(board, number)
        assert reader.read() == MISSED
        assert numbers(other.read()) == list(range(1, MAX_KEPT + 1))
        for one in (reader, other):
            one.leave()
        await until(lambda: whose(1) not in board.watched("requests"))
        assert Reader(board, whose(1), reader.number).read()["missed"]


async def test_of_many_at_once_the_newest_are_told_and_the_rest_is_counted() -> None:
    async with board_of() as board:
        reader = Reader(board, whose(1))
        reader.read()
        board.ended(TailEnded(1, 10, ["0-r"], more=7))
        publish(board, *range(1, MOST + 3))
        told = reader.read()
        assert told["more"] == 7 + 3 and not told["missed"]
        assert told["ended"] == [f"{number}-r" for number in range(3, MOST + 3)]


async def test_a_flood_is_missed() -> None:
    async with board_of() as board:
        reader = Reader(board, whose(1))
        reader.read()
        publish(board, *range(MAX_BATCH + 1))
        assert reader.read()["missed"]


async def test_requests_travel_between_gateways() -> None:
    layer = InMemoryChannelLayer()
    async with board_of(layer=layer) as here, board_of(layer=layer) as there:
        reader, own = Reader(there, whose(1)), Reader(here, WHOLE)
        await until(lambda: reader.told > 0 and own.told > 0)  # both have joined the group
        reader.read()
        own.read()
        for number in range(3):
            publish(here, number)
            await until(lambda: here.idle)
        await until(lambda: reader.told > 3)
        assert numbers(reader.read()) == numbers(own.read()) == [0, 1, 2]


async def test_what_limits_and_first_steps_need_is_heard_of_other_gateways() -> None:
    layer, later = InMemoryChannelLayer(), 1e12
    async with board_of(layer=layer) as here, board_of(layer=layer) as there:
        reader, key = Reader(there, Key("state", 1)), Key("limits", 1)

        def limits() -> object:
            return there.signals.limits([key], later)[key]

        def steps() -> object:
            return there.signals.steps([key], later)[key]

        before = steps()
        await until(lambda: steps() != before)  # it has joined the group
        before = limits()
        here.began(1)
        here.flush()
        await until(lambda: limits() != before and here.idle)
        before = steps()
        publish(here, 1)
        await until(lambda: steps() != before)
        reader.leave()


class Away(InMemoryChannelLayer):
    """A layer whose Redis can be unavailable: it hangs, or refuses connections."""

    hangs = refuses = False
    asked = 0

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.asked += 1
        if self.refuses:
            raise OSError("no route to Redis")
        if self.hangs:
            await asyncio.Event().wait()
        await super().group_send(group, message)


async def test_a_layer_that_is_away_holds_nothing_up() -> None:
    layer = Away()
    async with board_of(layer=layer) as here, board_of(layer=layer) as there:
        reader, own = Reader(there, whose(1)), Reader(here, whose(1))
        await until(lambda: reader.told > 0 and own.told > 0)
        reader.read()
        own.read()

        async def told(number: int) -> None:
            publish(here, number)
            assert numbers(own.read()) == [number]
            await until(lambda: here.idle)

        await told(0)
        await until(lambda: reader.told > 1)
        assert numbers(reader.read()) == [0]
        layer.refuses = True
        await told(1)
        layer.refuses = False
        await told(2)
        await until(lambda: reader.told > 2)
        assert reader.read()["missed"]  # the second was lost
        layer.hangs = True
        asked = layer.asked
        for number in (3, 4):
            publish(here, number)
            assert numbers(own.read()) == [number]
        await until(lambda: layer.asked > asked)
        assert layer.asked == asked + 1  # one at a time hangs


async def test_a_gateway_where_nobody_watches_leaves_the_group() -> None:
    layer = InMemoryChannelLayer()
    async with board_of(layer=layer, linger_s=0.0) as board:
        readers = [Reader(board, key) for key in (WHOLE, Key("state", 1))]
        await until(lambda: layer.groups)
        for reader in readers:
            reader.leave()
        await until(lambda: not layer.groups)


def test_feeds_number_what_they_tell_without_repeating() -> None:
    counter = count(1)
    state, events = FeedState(Key("state", 1), counter), Events(whose(1), counter)
    seen = [state.number, events.number]
    state.put("a")
    events.add(["1-r", "2-r"], more=3)
    assert msgspec.json.decode(events.since(seen[1]) or b"") == {
        "ended": ["1-r", "2-r"], "more": 3, "missed": False
    }  # fmt: skip
    seen += [state.number, events.number]
    events.skip()
    seen += [events.number]
    assert seen == sorted(set(seen))
