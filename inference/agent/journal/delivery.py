"""Delivers ended attempts from the journal to the ledger: which gateway gets which, when. No IO.

Each entry is sent to one gateway, which writes it to the ledger and acknowledges it. Writing one
twice changes nothing there, so in doubt an entry is sent again:

- An entry goes to the link it was meant for while that has room, else to the first that asks.
- A link has room while fewer than `window` entries that were sent over it are unacknowledged by
  it, so a gateway that can't write never has more than that to remember.
- Entries that a lost link did not acknowledge go first, over any other link.
- An entry that a link has not acknowledged for `resend_after_s` is also sent over one other link,
  and so on.
- A gateway that had no room for an entry has dropped it. So an entry that no gateway acknowledged
  for `repeat_after_s` is sent again over a link that had it, and one that another gateway
  acknowledged meanwhile no longer takes room there.

The oldest go first. An entry is forgotten when it is acknowledged over any link.
Links are named by the gateway's base URL; `now` is monotonic time, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile

from inference.link.accounts import LedgerEntry
from inference.link.session import AttemptKey


@dataclass(slots=True)
class _Link:
    """Entries of one link by attempt; `waiting` ones are assigned to it and not taken yet."""

    waiting: dict[AttemptKey, None] = field(default_factory=dict)
    sent: dict[AttemptKey, float] = field(default_factory=dict)
    """When each was last sent, the oldest first."""

    def __contains__(self, attempt: AttemptKey) -> bool:
        return attempt in self.waiting or attempt in self.sent

    def __len__(self) -> int:
        return len(self.waiting) + len(self.sent)


class EntryDelivery:
    """The journal's backlog; each entry is unassigned, or at one or more links.

    Call `take` for each connected link after any other call, and periodically: entries become due
    again by time alone.
    """

    def __init__(
        self,
        entries: Iterable[LedgerEntry] = (),
        *,
        window: int = 2000,
        batch: int = 500,
        resend_after_s: float = 30.0,
        repeat_after_s: float = 300.0,
    ) -> None:
        """`entries`, oldest first, go to any link; `batch` is the most that `take` returns."""
        self._window, self._batch = window, batch
        self._resend_after_s, self._repeat_after_s = resend_after_s, repeat_after_s
        self._entries = {(entry.id, entry.attempt): entry for entry in entries}
        self._unassigned = OrderedDict.fromkeys(self._entries)
        self._given_at: OrderedDict[AttemptKey, float] = OrderedDict()
        """When each assigned entry was last given to a link, the oldest first."""
        self._links: dict[str, _Link] = {}

    def __len__(self) -> int:
        """Entries that were not acknowledged."""
        return len(self._entries)

    def add(self, entry: LedgerEntry, link: str | None, now: float) -> None:
        """A request ended; its entry goes over `link` if that is connected and has room."""
        attempt = entry.id, entry.attempt
        self._entries[attempt] = entry
        at = None if link is None else self._links.get(link)
        if at is None or len(at) >= self._window:
            self._unassigned[attempt] = None
        else:
            at.waiting[attempt] = None
            self._given_at[attempt] = now

    def link_up(self, link: str) -> None:
        """The link is open."""
        self._links.setdefault(link, _Link())

    def link_down(self, link: str) -> None:
        """The link is lost, and maybe what was sent over it; no error if it wasn't open."""
        lost = self._links.pop(link, _Link())
        for attempt in reversed([*lost.sent, *lost.waiting]):
            if attempt in self._entries and not any(attempt in at for at in self._links.values()):
                del self._given_at[attempt]
                self._unassigned[attempt] = None
                self._unassigned.move_to_end(attempt, last=False)

    def take(self, link: str, now: float) -> list[LedgerEntry]:
        """The entries to send over this link now; empty if it has no room or is not open."""
        if (at := self._links.get(link)) is None:
            return []
        self._make_room(at, now)
        taken = list(islice(at.waiting, self._batch))
        room = min(self._window - len(at), self._batch - len(taken))
        taken += islice(chain(self._overdue(at, now), self._unassigned), room)
        taken += islice(self._given_up(at, now), self._batch - len(taken))
        for attempt in taken:
            self._give(attempt, at, now)
        return [self._entries[attempt] for attempt in taken]

    def acknowledged(self, attempts: Iterable[AttemptKey], link: str) -> None:
        """The gateway at `link` has durably written these to the ledger; unknown ones are ignored.

        An entry keeps its place in the window of any other link for a while, because the gateway
        there still tries to write it.
        """
        link_state = self._links.get(link, _Link())
        for attempt in attempts:
            link_state.sent.pop(attempt, None)
            if self._entries.pop(attempt, None) is not None:
                self._forget(attempt)

    def _make_room(self, at: _Link, now: float) -> None:
        """Drop what was sent `repeat_after_s` ago and acknowledged by other gateways."""
        then = now - self._repeat_after_s
        old = (attempt for attempt, _ in takewhile(lambda sent: sent[1] <= then, at.sent.items()))
        for attempt in [attempt for attempt in old if attempt not in self._entries]:
            del at.sent[attempt]

    def _overdue(self, at: _Link, now: float) -> Iterator[AttemptKey]:
        return (
            attempt
            for attempt in self._given_before(now - self._resend_after_s)
            if attempt not in at
        )

    def _given_up(self, at: _Link, now: float) -> Iterator[AttemptKey]:
        return (
            attempt
            for attempt in self._given_before(now - self._repeat_after_s)
            if attempt in at.sent
        )

    def _given_before(self, then: float) -> Iterator[AttemptKey]:
        return (
            attempt
            for attempt, _ in takewhile(lambda given: given[1] <= then, self._given_at.items())
        )

    def _give(self, attempt: AttemptKey, at: _Link, now: float) -> None:
        self._unassigned.pop(attempt, None)
        at.waiting.pop(attempt, None)
        at.sent.pop(attempt, None)
        at.sent[attempt] = now
        self._given_at[attempt] = now
        self._given_at.move_to_end(attempt)

    def _forget(self, attempt: AttemptKey) -> None:
        self._unassigned.pop(attempt, None)
        self._given_at.pop(attempt, None)
        for at in self._links.values():
            at.waiting.pop(attempt, None)
