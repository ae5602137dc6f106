"""Answers that are kept for whoever comes for them when their gateway is gone. No IO, no tasks.

Rules
    1. A request that came with a grace (`Submit.grace_s`) has all kept that its gateway is told,
       and for the grace after its end.
    2. When its gateway is gone, or leaves it, it is an *orphan*: it goes on for the grace. Other
       gateways are told of it once its own one did not come back at once (`ANNOUNCED_AFTER_S`, or
       a dial in vain): one whose link was cut alone has moved it to another engine by then, and
       says so by a cancel.
    3. The first gateway that adopts it has it, as if it had asked; to others it is gone.
    4. What is kept is bounded: in bytes for each answer, for each tenant and in all, and orphans in
       number. Where there is no room, answers that have ended go first, the oldest first; then the
       one that wants more is no longer kept, and ends with its gateway.

Times are of a monotonic clock, in seconds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import StringIO

from inference.agent.job import CANCELLED, Job
from inference.link.session import Attempt
from inference.link.wire import MAX_KEPT_BYTES, MOVED, Delta, Done, Orphan, Resume

KEPT_BYTES = 64 << 20
TENANT_SHARE = 4
"""Of the bytes and the orphans, a tenant may have a quarter."""
MAX_ORPHANS = 1024
MAX_GRACE_S = 600.0
ANNOUNCED_AFTER_S = 1.0
"""Agents dial again within a third of a second."""
UTF8_BYTES, ID_BYTES, PIECE_BYTES = 4, 4, 64
"""Of a character at the most, of a token's id, and of an object about a piece."""


class Text:
    """All that the reader of one answer was told, as one delta."""

    __slots__ = ("_cached_tokens", "_chunks", "_ids", "_prompt_tokens", "_text", "_tokens")

    def __init__(self, resume: Resume | None) -> None:
        """Of an attempt that goes on from there."""
        self._text, self._chunks = StringIO(), list[bytes]()
        self._ids: dict[int, array[int]] = {}
        self._tokens = self._prompt_tokens = self._cached_tokens = 0
        if resume is not None:
            tokens = sum(map(len, resume.ids.values()))
            prompt, cached = resume.usage.prompt_tokens, resume.usage.cached_tokens
            self.add(Delta("", resume.text, tokens, resume.chunks, prompt, cached, 1, resume.ids))

    def __bool__(self) -> bool:
        """Whether it was told anything."""
        return bool(self._tokens or self._chunks or self._ids or self._text.tell())

    def add(self, delta: Delta) -> None:
        """It was told this."""
        self._text.write(delta.text)
        self._chunks += delta.chunks
        self._tokens += delta.tokens
        self._prompt_tokens += delta.prompt_tokens
        self._cached_tokens += delta.cached_tokens
        for choice, ids in delta.ids.items():
            self._ids.setdefault(choice, array("I")).fromlist(ids)

    def delta(self, id: str, attempt: int) -> Delta:
        """All of it."""
        return Delta(
            id,
            self._text.getvalue(),
            self._tokens,
            list(self._chunks),
            self._prompt_tokens,
            self._cached_tokens,
            attempt,
            {choice: list(ids) for choice, ids in self._ids.items()},
        )


@dataclass(slots=True, eq=False)
class Kept:
    """One answer."""

    job: Job
    text: Text
    bytes: int = 0
    done: Done | None = None
    """How it ended; None while it runs."""
    until: float | None = None
    """When it is kept no longer; None while it runs and has a gateway."""
    told_at: float | None = None
    """When other gateways are to be told of it; None while it has a gateway."""
    told: bool = False
    url: str = ""
    """Of the gateway that it had."""

    @property
    def attempt(self) -> Attempt:
        return self.job.id, self.job.attempt

    @property
    def is_orphan(self) -> bool:
        return self.told_at is not None


@dataclass(slots=True)
class News:
    """What changed with time: orphans that gateways hear of now, attempts that are gone, and jobs
    that end for that."""

    orphans: list[Orphan] = field(default_factory=list)
    gone: list[Attempt] = field(default_factory=list)
    over: list[Job] = field(default_factory=list)


class Keeping:
    """All that is kept on one agent."""

    def __init__(self, most_bytes: int = KEPT_BYTES, max_orphans: int = MAX_ORPHANS) -> None:
        self._most_bytes, self._max_orphans = most_bytes, max_orphans
        self._kept: dict[str, Kept] = {}
        """By the key of the job; those that ended come in the order of their ends."""
        self._bytes: Counter[str] = Counter()
        """By tenant."""
        self._total = 0
        self._gone: list[Attempt] = []
        """Of which gateways were told that they are orphans."""
        self._over: list[Job] = []

    def __len__(self) -> int:
        """Orphans."""
        return sum(kept.is_orphan for kept in self._kept.values())

    @property
    def bytes(self) -> int:
        """Of all that is kept."""
        return self._total

    def begin(self, job: Job, resume: Resume | None) -> None:
        """A request came with a grace."""
        kept = self._kept[job.key] = Kept(job, Text(resume))
        if resume is not None:
            ids = sum(map(len, resume.ids.values()))
            self._grow(kept, _size(resume.text, resume.chunks, ids))

    def note(self, job: Job, delta: Delta) -> None:
        """Its gateway is told this, or would be."""
        if (kept := self._kept.get(job.key)) is not None:
            kept.text.add(delta)
            ids = sum(map(len, delta.ids.values()))
            self._grow(kept, _size(delta.text, delta.chunks, ids))

    def ended(self, job: Job, done: Done, now: float) -> None:
        """It ended, and its gateway was told so if it has one."""
        kept = self._kept.get(job.key)
        if kept is None:
            return
        if done.finish_reason in (CANCELLED, MOVED):
            self._drop(kept)
            return
        kept.done = done
        if kept.until is None:
            kept.until = now + min(job.grace_s, MAX_GRACE_S)
        self._kept[job.key] = self._kept.pop(job.key)
        self._grow(kept, len(done.response or b""))

    def lost(self, job: Job, now: float, *, at_once: bool = False) -> bool:
        """Its gateway is gone, or has left it (`at_once`): whether somebody may come for it."""
        kept = self._kept.get(job.key)
        if kept is None or not self._make_place(job.tenant):
            return False
        kept.told_at = now if at_once else now + ANNOUNCED_AFTER_S
        kept.until = now + min(job.grace_s, MAX_GRACE_S)
        kept.url = job.link.url if job.link is not None else ""
        job.link = None
        return True

    def left_behind(self, url: str, now: float) -> None:
        """What had ended is an orphan too, if the gateway at this URL had it and is gone."""
        for kept in list(self._kept.values()):
            job = kept.job
            if kept.done is not None and job.link is not None and job.link.url == url:
                self.lost(job, now)

    def in_vain(self, url: str, now: float) -> None:
        """The gateway at this URL was dialled again in vain: others may hear of its orphans."""
        for kept in self._orphans():
            if kept.url == url:
                kept.told_at = now

    def adopt(self, attempt: Attempt) -> Kept | None:
        """The orphan, which is none from now on; None if there is no such one."""
        for kept in self._orphans():
            if kept.attempt == attempt:
                if kept.told:
                    self._gone.append(attempt)
                kept.told_at, kept.told = None, False
                if kept.done is None:
                    kept.until = None
                return kept
        return None

    def cancel(self, attempt: Attempt) -> None:
        """Nobody wants this answer, which has ended."""
        for kept in self._orphans():
            if kept.attempt == attempt and kept.done is not None:
                return self._drop(kept)

    def orphans(self) -> list[Orphan]:
        """All of them, for a gateway that has just joined."""
        return [_named(kept.job) for kept in self._orphans()]

    def look(self, now: float) -> News:
        """What is due. Jobs that are over are to be cancelled; they are kept no longer."""
        news = News()
        for kept in list(self._kept.values()):
            if kept.until is not None and kept.until <= now:
                self._drop(kept)
            elif kept.told_at is not None and kept.told_at <= now and not kept.told:
                kept.told = True
                news.orphans.append(_named(kept.job))
        news.gone, self._gone = self._gone, []
        news.over, self._over = self._over, []
        return news

    def _orphans(self) -> Iterator[Kept]:
        return (kept for kept in self._kept.values() if kept.is_orphan)

    def _make_place(self, tenant: str) -> bool:
        """Whether one more may be an orphan; ended ones give way to it."""
        while True:
            orphans = list(self._orphans())
            own = [kept for kept in orphans if kept.job.tenant == tenant]
            most_own = self._max_orphans // TENANT_SHARE
            if len(orphans) < self._max_orphans and len(own) < most_own:
                return True
            if not self._drop_ended(own if len(own) >= most_own else orphans):
                return False

    def _grow(self, kept: Kept, size: int) -> None:
        tenant = kept.job.tenant
        kept.bytes += size
        self._bytes[tenant] += size
        self._total += size
        if kept.bytes > MAX_KEPT_BYTES:
            return self._drop(kept)
        while self._total > self._most_bytes or self._bytes[tenant] > self._share:
            mine = self._bytes[tenant] > self._share
            others = (one for one in self._kept.values() if one is not kept)
            if not self._drop_ended(o for o in others if not mine or o.job.tenant == tenant):
                return self._drop(kept)

    @property
    def _share(self) -> int:
        return self._most_bytes // TENANT_SHARE

    def _drop_ended(self, some: Iterable[Kept]) -> bool:
        """Whether one of them had ended; the oldest goes."""
        ended = next((kept for kept in some if kept.done is not None), None)
        if ended is not None:
            self._drop(ended)
        return ended is not None

    def _drop(self, kept: Kept) -> None:
        del self._kept[kept.job.key]
        self._total -= kept.bytes
        self._bytes[kept.job.tenant] -= kept.bytes
        if not self._bytes[kept.job.tenant]:
            del self._bytes[kept.job.tenant]
        if kept.told:
            self._gone.append(kept.attempt)
        if kept.is_orphan and kept.done is None:
            self._over.append(kept.job)


def _size(text: str, chunks: list[bytes], ids: int) -> int:
    pieces = sum(map(len, chunks)) + PIECE_BYTES * len(chunks)
    return UTF8_BYTES * len(text) + pieces + ID_BYTES * ids


def _named(job: Job) -> Orphan:
    return Orphan(job.id, job.attempt, job.account, job.model, job.label)
