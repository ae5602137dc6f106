"""The live topics of one gateway process: who watches, and one sample for all of them.

A topic of state (`StateTopic`) is sampled once every `every_s` for all its watched keys together,
while anybody watches; what changed is told. An event (`publish`) is told to this process's
watchers and, by the `Relay`, to those of other gateways. All of it belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import structlog

from frontend.live.feeds import Events, Feed, Key, State
from frontend.live.relay import Batch, Layer, Relay, ended
from frontend.live.topics import TOPICS, EventTopic, Read, StateTopic, Topic

log = structlog.get_logger(__name__)

LINGER_S = 60.0
"""Events of a key are kept so long after its last watcher left, for one that comes back."""
FLUSH_S = 0.5
"""Events of this time are told together."""
MAX_BATCH = 500
"""Events of one topic in FLUSH_S; of more the newest are told."""


class Board:
    """What this process's pages watch; a context, which ends its tasks."""

    def __init__(
        self,
        topics: Mapping[str, Topic] = TOPICS,
        layer: Layer | None = None,
        *,
        linger_s: float = LINGER_S,
    ) -> None:
        """`layer` leads to the other gateways; None where there are none."""
        self.id = secrets.token_hex(4)
        self.topics = topics
        self._relay = Relay(self.id, layer) if layer is not None else None
        self._linger_s = linger_s
        self._numbers = count(1)
        self._feeds: dict[str, dict[Key, Feed]] = {name: {} for name in topics}
        self._forgetting: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Of each topic that is watched: what samples it, or listens to other gateways."""
        self._ending: set[asyncio.Task[None]] = set()
        self._newcomers: dict[str, asyncio.Event] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._unread: dict[str, dict[Key, list[Any]]] = {}
        """Of each topic with a `read`, while it runs: the rows that are to be read next."""
        self._readers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Board:
        return self

    async def __aexit__(self, *_: object) -> None:
        for timer in (*self._forgetting.values(), *(one.timer for one in self._outboxes.values())):
            if timer is not None:
                timer.cancel()
        tasks = [*self._tasks.values(), *self._readers]
        tasks += self._relay.sending if self._relay else []
        await ended([*tasks, *self._ending])

    # --- Watching --------------------------------------------------------------------------------

    def watch(self, key: Key, tell: Callable[[], None]) -> Feed:
        """Call `tell` when there is news under this key, until `unwatch`."""
        topic = self.topics[key.topic]
        feeds = self._feeds[topic.name]
        if (feed := feeds.get(key)) is None:
            kind = State if isinstance(topic, StateTopic) else Events
            feed = feeds[key] = kind(key, self._numbers)
        if timer := self._forgetting.pop(key, None):
            timer.cancel()
        feed.readers.add(tell)
        self._newcomers.setdefault(topic.name, asyncio.Event()).set()
        if topic.name not in self._tasks:
            self._begin(topic)
        return feed

    def unwatch(self, feed: Feed, tell: Callable[[], None]) -> None:
        """No longer. State that nobody watches is forgotten at once, events after LINGER_S."""
        feed.readers.discard(tell)
        if feed.readers or feed.key in self._forgetting:
            return
        if isinstance(feed, State):
            self._forget(feed.key)
        else:
            later = asyncio.get_running_loop().call_later(self._linger_s, self._forget, feed.key)
            self._forgetting[feed.key] = later

    def watched(self, topic: str) -> list[Key]:
        """The keys of a topic that are watched, or were a moment ago."""
        return list(self._feeds[topic])

    @property
    def idle(self) -> bool:
        """Whether other gateways were told everything that they are told."""
        return self._relay is None or not self._relay.sending

    @property
    def busy(self) -> bool:
        """Whether events are on their way to watchers of this process."""
        return bool(self._readers) or any(one.timer for one in self._outboxes.values())

    def seq(self, number: int) -> str:
        """How pages are told the number of a feed."""
        return f"{self.id}-{number}"

    def number(self, seq: str) -> int | None:
        """The number that a page was told; None if another board told it, or before a restart."""
        board, _, number = seq.partition("-")
        return int(number) if board == self.id and number.isdecimal() else None

    def _begin(self, topic: Topic) -> None:
        """Sample it, or hear of it from other gateways."""
        if isinstance(topic, StateTopic):
            self._tasks[topic.name] = asyncio.create_task(self._sample(topic))
        elif self._relay is not None:
            heard = partial(self._deliver, topic.name)
            self._tasks[topic.name] = asyncio.create_task(self._relay.listen(topic.name, heard))

    def _forget(self, key: Key) -> None:
        self._forgetting.pop(key, None)
        del self._feeds[key.topic][key]
        if isinstance(self.topics[key.topic], EventTopic) and not self._feeds[key.topic]:
            if listening := self._tasks.pop(key.topic, None):
                ending = asyncio.create_task(ended([listening]))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    # --- State -----------------------------------------------------------------------------------

    async def _sample(self, topic: StateTopic) -> None:
        """Sample the watched keys every `every_s`, and those of newcomers at once."""
        loop = asyncio.get_running_loop()
        try:
            while feeds := self._states(topic):
                due = loop.time() + topic.every_s
                await self._sample_once(topic, feeds)
                while await self._newcomer(topic, due):
                    new = {key: feed for key, feed in self._states(topic).items() if not feed.known}
                    await self._sample_once(topic, new)
        finally:
            del self._tasks[topic.name]

    def _states(self, topic: StateTopic) -> dict[Key, State]:
        feeds = self._feeds[topic.name].items()
        return {key: feed for key, feed in feeds if isinstance(feed, State)}

    async def _newcomer(self, topic: StateTopic, due: float) -> bool:
        """Wait for one until the loop's clock says `due`."""
        arrived = self._newcomers[topic.name]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await arrived.wait()
        found = arrived.is_set()
        arrived.clear()
        return found

    async def _sample_once(self, topic: StateTopic, feeds: Mapping[Key, State]) -> None:
        try:
            states = await topic.sample(list(feeds)) if feeds else {}
            for key, state in states.items():
                feeds[key].put(state)
        except Exception:  # a page that isn't live is no reason to end anything
            log.exception("live_sample_failed", topic=topic.name)

    # --- Events ----------------------------------------------------------------------------------

    def wanted(self, topic: str) -> bool:
        """Whether anybody may be told of this topic's events."""
        return self._relay is not None or bool(self._feeds[topic])

    def publish(self, topic: str, tenant_id: int, event: dict[str, Any]) -> None:
        """Something happened to a tenant: tell whoever watches, here and on other gateways.

        `event` is JSON; `EventTopic.show` says what each audience sees of it. From the event loop;
        never waits. Costs a look-up where this is the only gateway and nobody watches.
        """
        if not self.wanted(topic):
            return
        outbox = self._outboxes.setdefault(topic, Outbox())
        outbox.add(tenant_id, event)
        if outbox.timer is None:
            outbox.timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush, topic)

    def flush(self, topic: str) -> None:
        """Tell at once what was published of a topic."""
        batch = self._outboxes[topic].take()
        self._deliver(topic, batch)
        if self._relay is not None:
            self._relay.post(topic, batch)

    def _deliver(self, topic: str, batch: Batch) -> None:
        """Tell the watchers of this process."""
        shown = self.topics[topic]
        assert isinstance(shown, EventTopic)
        for feed in self._feeds[topic].values():
            assert isinstance(feed, Events)
            if batch.missed:
                feed.skip()
            theirs = [event for id, event in batch.events if feed.key.tenant_id in (0, id)]
            if theirs and (rows := shown.show(feed.key, theirs)):
                self._add(shown, feed, rows)

    def _add(self, topic: EventTopic, feed: Events, rows: Sequence[Any]) -> None:
        if topic.read is None:
            return feed.add(rows)
        if topic.name not in self._unread:
            self._unread[topic.name] = {}
            task = asyncio.create_task(self._read(topic, topic.read))
            self._readers.add(task)
            task.add_done_callback(self._readers.discard)
        unread = self._unread[topic.name].setdefault(feed.key, [])
        unread.extend(rows)
        if len(unread) > MAX_BATCH:
            unread.clear()
            feed.skip()

    async def _read(self, topic: EventTopic, read: Read) -> None:
        """Until all is read, whatever comes while that goes on."""
        while unread := self._unread[topic.name]:
            self._unread[topic.name] = {}
            try:
                found = await read(unread)
            except Exception:  # a page that isn't live is no reason to end anything
                log.exception("live_read_failed", topic=topic.name)
                found = {}
            for key in unread:
                feed = self._feeds[topic.name].get(key)
                if isinstance(feed, Events):
                    feed.add(found[key]) if key in found else feed.skip()
        del self._unread[topic.name]


class Outbox:
    """Events of one topic that are told with the next batch."""

    def __init__(self) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._events: deque[tuple[int, Any]] = deque(maxlen=MAX_BATCH)
        self._missed = False
        self._numbers = count(1)

    def add(self, tenant_id: int, event: Any) -> None:
        """The oldest makes room where there are too many."""
        self._missed |= len(self._events) == MAX_BATCH
        self._events.append((tenant_id, event))

    def take(self) -> Batch:
        """All of them; none are left."""
        batch = Batch(next(self._numbers), list(self._events), self._missed)
        self._events.clear()
        self._missed, self.timer = False, None
        return batch
