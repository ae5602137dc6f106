"""Slows who sends mostly what is refused: tenants, addresses. Sans-IO: the caller passes the time.

A request that is refused costs its sender little and this process something: its body is received,
counted and read. Whoever keeps to limits and sends valid requests never notices anything of this.

- Requests that were refused for their own fault, and others, are counted per sender; the counts
  halve every HALF_LIFE_S.
- A sender with more refused ones than others, beyond the first FREE, gets a turn every SPACING_S.
  One who would have to wait for it for more than MAX_WAIT_S gets none.
- Each process counts for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

FREE = 20.0
"""A developer who tries things out."""
HALF_LIFE_S = 30.0
SPACING_S = 0.1
MAX_WAIT_S = 1.0
MAX_SENDERS = 4096
"""Of whom the counts are kept; those who were quiet longest are forgotten."""


@dataclass(slots=True)
class _Record:
    refused: float = 0.0
    others: float = 0.0
    at: float = 0.0
    """When the counts were as they are."""
    next_at: float = 0.0
    """When the next turn is."""

    def decay(self, now: float) -> None:
        factor = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        self.refused *= factor
        self.others *= factor
        self.at = now

    @property
    def is_slowed(self) -> bool:
        return self.refused > FREE + self.others


class Pacing:
    """Times are in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._records: OrderedDict[Hashable, _Record] = OrderedDict()

    def wait_s(self, sender: Hashable, now: float) -> float | None:
        """How long the sender has to wait for the next turn, which is then taken; None: longer than
        anybody waits here, and nothing is taken."""
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
        """Note a refusal, and say how long its answer is held back: until the sender's next turn,
        or as long as anybody waits."""
        self.note(sender, now, refused=True)
        wait_s = self.wait_s(sender, now)
        return MAX_WAIT_S if wait_s is None else wait_s

    def note(self, sender: Hashable, now: float, *, refused: bool) -> None:
        """A request of the sender was refused for its own fault, or was not."""
        record = self._records.get(sender)
        if record is None:
            if not refused:  # most senders, all the time
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
