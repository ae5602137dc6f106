"""What an agent has to tell one gateway, merged while the gateway is slow to read.

Bounded whatever the gateway does: deltas of one stream become one, only the last statistics
and the last that a request waits for count, and everything else is at most one frame per request.
"""

from __future__ import annotations

import msgspec

from inference.link.session import Attempt
from inference.link.wire import Delta, Frame, Stats, Step, Wait, Waits


class Outbox:
    """Frames for one link, in an order that keeps each stream's."""

    def __init__(self) -> None:
        self._waits: dict[Attempt, Wait] = {}
        self._deltas: dict[Attempt, Delta] = {}
        self._frames: list[Frame] = []
        self._stats: Stats | None = None

    def __bool__(self) -> bool:
        return bool(self._waits or self._deltas or self._frames or self._stats)

    def add(self, delta: Delta) -> None:
        """A stream gained something."""
        attempt = delta.id, delta.attempt
        pending = self._deltas.get(attempt)
        self._deltas[attempt] = delta if pending is None else pending.merged(delta)

    def note(self, wait: Wait) -> None:
        """A request waits for something else now."""
        self._waits[wait.id, wait.attempt] = wait

    def put(self, frame: Frame) -> None:
        """Any other frame. It leaves after all deltas added before it."""
        if isinstance(frame, Stats):
            served = self._stats.served | frame.served if self._stats else frame.served
            self._stats = msgspec.structs.replace(frame, served=served)
        else:
            self._frames.append(frame)

    def take(self) -> list[Frame]:
        """Everything so far: what is waited for, one step with all deltas, then the rest."""
        taken: list[Frame] = [Waits(list(self._waits.values()))] if self._waits else []
        if self._deltas:
            taken.append(Step(list(self._deltas.values())))
        taken += self._frames
        if self._stats is not None:
            taken.append(self._stats)
        self._waits, self._deltas, self._frames, self._stats = {}, {}, [], None
        return taken


def residency_change(told: list[str], now: list[str]) -> tuple[list[str], list[str]]:
    """What a peer that knows `told` must hear so that it knows `now`: loaded or used, evicted.

    Both are LoRA names, least recently used first. Who removes what was evicted, and puts what was
    loaded or used at the end, has `now` in its order.
    """
    if told == now:
        return [], []
    here, rest, kept = set(now), iter(told), 0
    for name in now:  # the longest beginning of `now` whose order was told already
        if not any(name == other for other in rest):
            break
        kept += 1
    return now[kept:], [name for name in told if name not in here]
