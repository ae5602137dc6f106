"""Keeps answers for other gateways to adopt when their own gateway is gone. No IO, no tasks.

Rules
    1. For a request that came with a grace (`Retention.grace_s`), everything that its gateway is
       sent is kept, until the grace has passed after its end.
    2. When its gateway is gone, or leaves it, it is an *orphan*: it goes on for the grace. Other
       gateways are told of it only if its own does not come back at once (`ANNOUNCED_AFTER_S`, or
       a failed dial): one that merely lost the link has moved the request to another engine by
       then, and says so by a cancel.
    3. The first gateway that adopts it gets it, as if it had asked for it; to others it is gone.
    4. What is kept is bounded: in bytes per answer, per tenant and in total, and in the number of
       orphans. When there is no room, ended answers are dropped first, the oldest first; then the
       one that needs more is no longer kept, and ends with its gateway.

Times are monotonic, in seconds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import StringIO

from inference.agent.job import CANCELLED, Job
from inference.link.session import AttemptKey
from inference.link.wire import MAX_KEPT_BYTES, MOVED, Delta, Done, Orphan, Resume
from inference.shared_capacity import TENANT_SHARE

KEPT_BYTES = 64 << 20
MAX_ORPHANS = 1024
"""Of both, a tenant may have one part in TENANT_SHARE."""
MAX_GRACE_S = 600.0
ANNOUNCED_AFTER_S = 1.0
"""Long enough for the agent to dial again, which it does within a third of a second."""
UTF8_BYTES, ID_BYTES, PIECE_BYTES = 4, 4, 64
"""Size of a character at most, of a token id, and of the Python object around a chunk."""


class Text:
    """Everything that the reader of one answer was sent, as one delta."""

    __slots__ = ("_cached_tokens", "_chunks", "_ids", "_prompt_tokens", "_text", "_tokens")

    def __init__(self, resume: Resume | None) -> None:
        """`resume` is what lower attempts sent, if the attempt continues some."""
        self._text, self._chunks = StringIO(), list[bytes]()
        self._ids: dict[int, array[int]] = {}
        self._tokens = self._prompt_tokens = self._cached_tokens = 0
        if resume is not None:
            tokens = sum(map(len, resume.ids.values()))
            prompt, cached = resume.usage.prompt_tokens, resume.usage.cached_tokens
            self.add(Delta("", resume.text, tokens, resume.chunks, prompt, cached, 1, resume.ids))

    def __bool__(self) -> bool:
        """Whether anything was sent."""
        return bool(self._tokens or self._chunks or self._ids or self._text.tell())

    def add(self, delta: Delta) -> None:
        """The reader is sent this too."""
        self._text.write(delta.text)
        self._chunks += delta.chunks
        self._tokens += delta.tokens
        self._prompt_tokens += delta.prompt_tokens
        self._cached_tokens += delta.cached_tokens
        for choice, ids in delta.ids.items():
            self._ids.setdefault(choice, array("I")).fromlist(ids)

    def delta(self, id: str, attempt: int) -> Delta:
        """All of it, as a delta of this attempt."""
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
class KeptOutput:
    """One kept answer."""

    job: Job
    text: Text
    bytes: int = 0
    done: Done | None = None
    """How it ended; None while it runs."""
    until: float | None = None
    """When it is dropped; None while it runs and has a gateway."""
    announce_at: float | None = None
    """When it is announced to other gateways; None while it has a gateway."""
    announced: bool = False
    url: str = ""
    """Base URL of the gateway that it had."""

    @property
    def attempt(self) -> AttemptKey:
        return self.job.id, self.job.attempt

    @property
    def is_orphan(self) -> bool:
        return self.announce_at is not None


@dataclass(slots=True)
class OrphanNews:
    """What is due: orphans to announce, announced attempts that are gone, and jobs to cancel
    because they are no longer kept."""

    orphans: list[Orphan] = field(default_factory=list)
    withdrawn: list[AttemptKey] = field(default_factory=list)
    expired: list[Job] = field(default_factory=list)


class KeptAnswers:
    """All answers that one agent keeps."""

    def __init__(self, most_bytes: int = KEPT_BYTES, max_orphans: int = MAX_ORPHANS) -> None:
        self._most_bytes, self._max_orphans = most_bytes, max_orphans
        self._kept: dict[str, KeptOutput] = {}
        """By job key; the ended ones are in the order in which they ended."""
        self._bytes: Counter[str] = Counter()
        """By tenant."""
        self._total = 0
        self._withdrawn: list[AttemptKey] = []
        """Announced orphans that were adopted or dropped since the last `news`."""
        self._expired: list[Job] = []

    def __len__(self) -> int:
        """Number of orphans."""
        return sum(kept.is_orphan for kept in self._kept.values())

    @property
    def bytes(self) -> int:
        """Total size of what is kept."""
        return self._total

    def begin(self, job: Job, resume: Resume | None) -> None:
        """Keep the answer of a request that came with a grace."""
        kept = self._kept[job.key] = KeptOutput(job, Text(resume))
        if resume is not None:
            ids = sum(map(len, resume.ids.values()))
            self._grow(kept, _size(resume.text, resume.chunks, ids))

    def note(self, job: Job, delta: Delta) -> None:
        """The job's gateway is sent this, or would be if it were there."""
        if (kept := self._kept.get(job.key)) is not None:
            kept.text.add(delta)
            ids = sum(map(len, delta.ids.values()))
            self._grow(kept, _size(delta.text, delta.chunks, ids))

    def ended(self, job: Job, done: Done, now: float) -> None:
        """The job ended with this frame, which its gateway is sent if it has one."""
        kept = self._kept.get(job.key)
        if kept is None:
            return
        if done.finish_reason in (CANCELLED, MOVED):
            self._drop(kept)
            return
        kept.done = done
        if kept.until is None:
            kept.until = now + min(job.request.retention.grace_s, MAX_GRACE_S)
        self._kept[job.key] = self._kept.pop(job.key)
        self._grow(kept, len(done.response or b""))

    def lost(self, job: Job, now: float, *, at_once: bool = False) -> bool:
        """The job's gateway is gone, or has left it (`at_once`). Returns whether it is an orphan
        now, which another gateway may adopt; `job.link` is then None."""
        kept = self._kept.get(job.key)
        if kept is None or not self._make_room(job.request.tenant):
            return False
        kept.announce_at = now if at_once else now + ANNOUNCED_AFTER_S
        kept.until = now + min(job.request.retention.grace_s, MAX_GRACE_S)
        kept.url = job.link.url if job.link is not None else ""
        job.link = None
        return True

    def left_behind(self, url: str, now: float) -> None:
        """The gateway at this URL is gone: its answers that had ended are orphans too."""
        for kept in list(self._kept.values()):
            job = kept.job
            if kept.done is not None and job.link is not None and job.link.url == url:
                self.lost(job, now)

    def not_dialled(self, url: str, now: float) -> None:
        """A dial of the gateway at this URL failed: its orphans may be announced now."""
        for kept in self._orphans():
            if kept.url == url:
                kept.announce_at = now

    def adopt(self, attempt: AttemptKey) -> KeptOutput | None:
        """Take the orphan, which is none from now on; None if there is no such orphan."""
        for kept in self._orphans():
            if kept.attempt == attempt:
                if kept.announced:
                    self._withdrawn.append(attempt)
                kept.announce_at, kept.announced = None, False
                if kept.done is None:
                    kept.until = None
                return kept
        return None

    def cancel(self, attempt: AttemptKey) -> None:
        """Drop this orphan if it has ended: its client no longer wants it."""
        for kept in self._orphans():
            if kept.attempt == attempt and kept.done is not None:
                return self._drop(kept)

    def orphans(self) -> list[Orphan]:
        """All orphans, for a gateway that has just joined."""
        return [_named(kept.job) for kept in self._orphans()]

    def news(self, now: float) -> OrphanNews:
        """What is due by now. The caller cancels the `expired` jobs, which are kept no longer."""
        news = OrphanNews()
        for kept in list(self._kept.values()):
            if kept.until is not None and kept.until <= now:
                self._drop(kept)
            elif kept.announce_at is not None and kept.announce_at <= now and not kept.announced:
                kept.announced = True
                news.orphans.append(_named(kept.job))
        news.withdrawn, self._withdrawn = self._withdrawn, []
        news.expired, self._expired = self._expired, []
        return news

    def _orphans(self) -> Iterator[KeptOutput]:
        return (kept for kept in self._kept.values() if kept.is_orphan)

    def _make_room(self, tenant: str) -> bool:
        """Whether the tenant may have one more orphan; ended ones are dropped to make room."""
        while True:
            orphans = list(self._orphans())
            own = [kept for kept in orphans if kept.job.request.tenant == tenant]
            most_own = self._max_orphans // TENANT_SHARE
            if len(orphans) < self._max_orphans and len(own) < most_own:
                return True
            if not self._drop_ended(own if len(own) >= most_own else orphans):
                return False

    def _grow(self, kept: KeptOutput, size: int) -> None:
        tenant = kept.job.request.tenant
        kept.bytes += size
        self._bytes[tenant] += size
        self._total += size
        if kept.bytes > MAX_KEPT_BYTES:
            return self._drop(kept)
        while self._total > self._most_bytes or self._bytes[tenant] > self._share:
            mine = self._bytes[tenant] > self._share
            others = (one for one in self._kept.values() if one is not kept)
            if not self._drop_ended(
                o for o in others if not mine or o.job.request.tenant == tenant
            ):
                return self._drop(kept)

    @property
    def _share(self) -> int:
        return self._most_bytes // TENANT_SHARE

    def _drop_ended(self, some: Iterable[KeptOutput]) -> bool:
        """Drop the one of these that ended first; False if none has ended."""
        ended = next((kept for kept in some if kept.done is not None), None)
        if ended is not None:
            self._drop(ended)
        return ended is not None

    def _drop(self, kept: KeptOutput) -> None:
        del self._kept[kept.job.key]
        self._total -= kept.bytes
        self._bytes[kept.job.request.tenant] -= kept.bytes
        if not self._bytes[kept.job.request.tenant]:
            del self._bytes[kept.job.request.tenant]
        if kept.announced:
            self._withdrawn.append(kept.attempt)
        if kept.is_orphan and kept.done is None:
            self._expired.append(kept.job)


def _size(text: str, chunks: list[bytes], ids: int) -> int:
    pieces = sum(map(len, chunks)) + PIECE_BYTES * len(chunks)
    return UTF8_BYTES * len(text) + pieces + ID_BYTES * ids


def _named(job: Job) -> Orphan:
    return Orphan(job.id, job.attempt, job.account, job.request.model, job.request.retention.label)
