"""The live topics of one gateway process: subscriptions, and one poll per topic for all of them.

While anybody watches a state topic, it is polled every `every_s` for all watched keys at once, and
readers are told when the state has changed. Requests that begin and end are announced to this
process's readers and, through the `Relay`, to those of other gateways. Nothing is rendered here and
no database is asked. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

import structlog

from frontend.live.feeds import Events, Feed, FeedState, Key
from frontend.live.relay import Layer, Relay, RelayBatch, stopped
from frontend.live.signals import Signals
from frontend.live.tail import MOST, TailEnded, hears
from frontend.live.topics import TOPICS, Topic
from inference.process.supervision import supervised

log = structlog.get_logger(__name__)

LINGER_S = 60.0
"""How long the events of a key are kept after its last watcher left, in case it reconnects."""
FLUSH_S = 0.5
"""Requests that end within this time are announced in one batch."""
MAX_BATCH = 500
"""API keys in one batch; if requests of more keys ended in FLUSH_S, the newest are announced."""

MAX_DIGITS = 18
"""Digits of a sequence number that a page sends back."""


class Board:
    """The pages' subscriptions in this process. A context manager, which ends the board's tasks."""

    def __init__(
        self,
        signals: Signals,
        layer: Layer | None = None,
        *,
        topics: Mapping[str, Topic] = TOPICS,
        linger_s: float = LINGER_S,
    ) -> None:
        """`layer` connects to the other gateways; None if there are none."""
        self.id = secrets.token_hex(4)
        self.signals, self.topics = signals, topics
        self._relay = Relay(self.id, layer) if layer is not None else None
        self._linger_s = linger_s
        self._numbers = count(1)
        self._feeds: dict[str, dict[Key, Feed]] = {name: {} for name in topics}
        self._forgetting: dict[Key, asyncio.TimerHandle] = {}
        self._polling: dict[str, asyncio.Task[None]] = {}
        """The polling task of each state topic that is watched."""
        self._listening: asyncio.Task[None] | None = None
        """Receives batches of other gateways, while anything is watched."""
        self._ending: set[asyncio.Task[None]] = set()
        self._outbox = BoardOutbox()

    async def __aenter__(self) -> Board:
        return self

    async def __aexit__(self, *_: object) -> None:
        for timer in (*self._forgetting.values(), self._outbox.timer):
            if timer is not None:
                timer.cancel()
        tasks = [*self._polling.values(), *self._ending]
        tasks += [self._listening] if self._listening else []
        tasks += [self._relay.sending] if self._relay and self._relay.sending else []
        await stopped(tasks)

    # --- Watching --------------------------------------------------------------------------------

    def watch(self, key: Key, tell: Callable[[], None]) -> Feed:
        """Call `tell` whenever there is something new under this key, until `unwatch`."""
        if (feed := self._feeds[key.topic].get(key)) is None:
            feed = self._feeds[key.topic][key] = self._begin(key)
        if timer := self._forgetting.pop(key, None):
            timer.cancel()
        feed.readers.add(tell)
        return feed

    def unwatch(self, feed: Feed, tell: Callable[[], None]) -> None:
        """Unsubscribe. State that nobody watches is dropped at once, events after LINGER_S."""
        feed.readers.discard(tell)
        if feed.readers or feed.key in self._forgetting:
            return
        if isinstance(feed, FeedState):
            self._forget(feed.key)
        else:
            later = asyncio.get_running_loop().call_later(self._linger_s, self._forget, feed.key)
            self._forgetting[feed.key] = later

    def watched(self, topic: str) -> list[Key]:
        """The keys of a topic that are watched, or were within LINGER_S."""
        return list(self._feeds[topic])

    @property
    def idle(self) -> bool:
        """Whether no batch for other gateways is being sent."""
        return self._relay is None or self._relay.sending is None

    def seq(self, number: int) -> str:
        """A sequence number as sent to pages: prefixed with this board's id."""
        return f"{self.id}-{number}"

    def number(self, seq: str) -> int | None:
        """The sequence number in a page's `seq`; None if it is from another board, or from before a
        restart."""
        board, _, number = seq.partition("-")
        known = board == self.id and number.isdecimal() and len(number) <= MAX_DIGITS
        return int(number) if known else None

    def _begin(self, key: Key) -> Feed:
        if self._relay is not None and self._listening is None:
            self._listening = asyncio.create_task(self._relay.listen(self._deliver))
        topic = self.topics[key.topic]
        if topic.signal is None:
            return Events(key, self._numbers)
        feed = FeedState(key, self._numbers)
        feed.begin(self._signal(topic, [key]).get(key))
        if topic.name not in self._polling:
            polling = partial(self._keep_polling, topic)
            self._polling[topic.name] = asyncio.create_task(
                supervised(f"live {topic.name}", polling, may_return=True)
            )
        return feed

    def _forget(self, key: Key) -> None:
        self._forgetting.pop(key, None)
        del self._feeds[key.topic][key]
        if self._listening is not None and not any(self._feeds.values()):
            ending = asyncio.create_task(stopped([self._listening]))
            self._listening = None
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    # --- State -----------------------------------------------------------------------------------

    async def _keep_polling(self, topic: Topic) -> None:
        """Poll until nobody watches."""
        while True:
            await asyncio.sleep(topic.every_s)
            if not (feeds := self._feeds[topic.name]):
                break
            self._poll(topic, feeds)
        del self._polling[topic.name]

    def _poll(self, topic: Topic, feeds: Mapping[Key, Feed]) -> None:
        for key, state in self._signal(topic, list(feeds)).items():
            feed = feeds[key]
            assert isinstance(feed, FeedState)
            feed.put(state)

    def _signal(self, topic: Topic, keys: Sequence[Key]) -> Mapping[Key, object]:
        assert topic.signal is not None
        try:
            return topic.signal(self.signals, keys, time.time())
        except Exception:  # pages that miss a live update must not stop the process
            log.exception("live_look_failed", topic=topic.name)
            return {}

    # --- Requests --------------------------------------------------------------------------------

    @property
    def _wanted(self) -> bool:
        return self._relay is not None or any(self._feeds.values())

    def began(self, tenant_id: int) -> None:
        """A request of this tenant was admitted and counts against its limits. Never blocks."""
        if self._wanted:
            self._outbox.began.add(tenant_id)
            self._flush_soon()

    def ended(self, ended: TailEnded) -> None:
        """Announce requests that ended to readers who may see them, here and on other gateways.

        Call it on the event loop; never blocks. Costs next to nothing if this is the only gateway
        and nobody watches.
        """
        if self._wanted:
            self._outbox.add(ended)
            self._flush_soon()

    def flush(self) -> None:
        """Send the current batch now."""
        batch = self._outbox.take()
        self._deliver(batch)
        if self._relay is not None:
            self._relay.post(batch)

    def _flush_soon(self) -> None:
        if self._outbox.timer is None:
            loop = asyncio.get_running_loop()
            self._outbox.timer = loop.call_later(FLUSH_S, self.flush)

    def _deliver(self, batch: RelayBatch) -> None:
        """Announce a batch to the watchers of this process."""
        self._note(batch, time.time())
        for feed in [feed for feeds in self._feeds.values() for feed in feeds.values()]:
            if isinstance(feed, Events):
                self._add(feed, batch)

    def _note(self, batch: RelayBatch, now: float) -> None:
        if batch.missed:
            self.signals.missed(now)
        for tenant_id in batch.began:
            self.signals.began(tenant_id, now)
        for ended in batch.ended:
            self.signals.ended(ended.tenant_id, now)

    def _add(self, feed: Events, batch: RelayBatch) -> None:
        if batch.missed:
            feed.skip()
        theirs = [one for one in batch.ended if _concerns(one, feed.key)]
        marks = [mark for one in theirs for mark in one.marks]
        more = sum(one.more for one in theirs) + max(0, len(marks) - MOST)
        if theirs:
            feed.add(marks[-MOST:], more)


def _concerns(ended: TailEnded, key: Key) -> bool:
    """Whether watchers of this key may learn of the requests. Watchers of the whole installation,
    who are operators, may learn of all."""
    if not key.tenant_id:
        return True
    return ended.tenant_id == key.tenant_id and hears(key.audience, ended.key_id)


class BoardOutbox:
    """Collects the next batch."""

    def __init__(self) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self.began: set[int] = set()
        self._ended: deque[TailEnded] = deque(maxlen=MAX_BATCH)
        self._missed = False
        self._numbers = count(1)

    def add(self, ended: TailEnded) -> None:
        """Drops the oldest entry if the batch is full."""
        self._missed |= len(self._ended) == MAX_BATCH
        self._ended.append(ended)

    def take(self) -> RelayBatch:
        """Return the batch and begin a new one."""
        batch = RelayBatch(next(self._numbers), list(self._ended), sorted(self.began), self._missed)
        if self.timer is not None:
            self.timer.cancel()
        self._ended.clear()
        self.began.clear()
        self._missed, self.timer = False, None
        return batch
