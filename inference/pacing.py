"""Slows senders (tenants, addresses) whose requests are mostly refused. Sans-IO: time is passed in.

A refused request costs its sender little, but this process has to receive, count and read its body.
A sender that keeps to its limits and sends valid requests is never affected.

- Requests refused for their own fault, and all others, are counted per sender; the counts halve
  every HALF_LIFE_S.
- A sender with more refused requests than others, beyond the first FREE, gets one turn every
  SPACING_S. If it would have to wait for its turn for more than MAX_WAIT_S, it gets none.
- Each process counts by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

FREE = 20.0
"""Refused requests that never slow a sender: enough for a developer who tries things out."""
HALF_LIFE_S = 30.0
SPACING_S = 0.1
MAX_WAIT_S = 1.0
MAX_SENDERS = 4096
"""Senders whose counts are kept; beyond that the one whose last refusal is oldest is forgotten."""


@dataclass(slots=True)
class _Record:
    refused: float = 0.0
    others: float = 0.0
    at: float = 0.0
    """When the counts were last decayed."""
    next_at: float = 0.0
    """Time of the next free turn."""

    def decay(self, now: float) -> None:
        factor = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        self.refused *= factor
        self.others *= factor
        self.at = now

    @property
    def is_slowed(self) -> bool:
        return self.refused > FREE + self.others


class Pacing:
    """Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[Hashable, _Record] = OrderedDict()

    def wait_s(self, sender: Hashable, now: float) -> float | None:
        """Seconds the sender has to wait for its next turn, which is thereby taken; None if that is
        more than MAX_WAIT_S, and then no turn is taken."""
        record = self._records.get(sender)
        if record is None:
            return 0.0
        record.decay(now)
        if not record.is_slowed:
            return 0.0
        wait_s = max(0.0, record.next_at - now)
        if wait_s > MAX_WAIT_S:
            return None
        record.next_at = max(record.next_at, now) + SPACING_S
        return wait_s

    def hold_s(self, sender: Hashable, now: float) -> float:
        """Note a refusal; returns the seconds to delay its response: until the sender's next turn,
        at most MAX_WAIT_S."""
        self.note(sender, now, refused=True)
        wait_s = self.wait_s(sender, now)
        return MAX_WAIT_S if wait_s is None else wait_s

    def note(self, sender: Hashable, now: float, *, refused: bool) -> None:
        """Count a request of the sender; `refused`: for its own fault."""
        record = self._records.get(sender)
        if record is None:
            if not refused:  # true of most senders all the time, so nothing is stored
                return
            record = self._records[sender] = _Record(at=now)
            if len(self._records) > MAX_SENDERS:
                self._records.popitem(last=False)
        record.decay(now)
        if refused:
            record.refused += 1
            self._records.move_to_end(sender)
        else:
            record.others += 1
