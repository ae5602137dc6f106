"""Which lines of a batch may be sent to which gateway, and when again. Pure; time is passed in.

Rules
    1. A gateway has at most `_most` lines of the batch that no engine has begun, of about
       MAX_UNBEGUN_BYTES together; lines that have begun are bounded by what engines run. A line
       that is larger than MAX_UNBEGUN_BYTES goes alone.
    2. A line that hits a limit, or finds no engine, waits and is sent again. Meanwhile nothing is
       sent; after that one line at a time goes to each gateway until an engine begins one, and each
       line that begins doubles the number.
    3. A line with which engines failed MAX_FAILURES times has failed.
    4. A line that an engine may have had, also one whose gateway was lost, is sent in a higher turn
       the next time: the ledger bills only the last turn.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum

from inference.errors import (
    BY_CODE,
    InferenceError,
    InsufficientQuota,
    InvalidApiKey,
    Overloaded,
    PermissionDenied,
    RateLimitExceeded,
)
from inference.gateway.lines.frames import (
    MAX_UNBEGUN,
    MAX_UNBEGUN_BYTES,
    TURNS_OF_A_RUN,
    LineAnswer,
)

MAX_FAILURES = 3
CAPACITY_ERRORS = (RateLimitExceeded, InsufficientQuota, Overloaded)
"""Errors that are not the line's fault."""
ENDING = (InvalidApiKey, PermissionDenied)
"""Errors after which no line of the batch can be answered."""


class LineVerdict(Enum):
    """What an answer means."""

    DONE = "done"
    """It is the line's final answer."""
    AGAIN = "again"
    """The line is sent again."""
    KEY_ENDED = "key ended"
    """The batch's API key can't be used any more, so the batch ends."""
    STALE = "stale"
    """The line is not under way at that gateway."""


class OutOfTurns(Exception):
    """This worker has sent a line too often: the worker that leases the batch next continues."""


@dataclass(slots=True)
class WindowLine:
    """A line that is or was sent: its position in the file in bytes, in how many turns engines may
    have had it, and how often they failed with it."""

    number: int
    offset: int
    size: int
    turns: int = 0
    failures: int = 0
    gateway: str = ""
    begun: bool = False


@dataclass(slots=True)
class Share:
    """The lines of the batch at one gateway that no engine has begun."""

    lines: int = 0
    bytes: int = 0


@dataclass(order=True, slots=True)
class _Due:
    at: float
    number: int
    line: WindowLine = field(compare=False)


class BatchWindow:
    """The lines of one batch that are under way, during its lease number `run`."""

    def __init__(self, run: int) -> None:
        self._first_turn = run * TURNS_OF_A_RUN
        self._shares: dict[str, Share] = {}
        self._lines: dict[int, WindowLine] = {}
        self._due: list[_Due] = []
        self._most = MAX_UNBEGUN
        self._held_until = 0.0
        self.closed = False
        """Whether no more lines are sent."""

    @property
    def empty(self) -> bool:
        """Whether no line is under way and none is to be sent again."""
        return not self._lines and (self.closed or not self._due)

    def joined(self, gateway: str) -> None:
        """Lines can now be sent to the gateway."""
        self._shares[gateway] = Share()

    def lost(self, gateway: str, now: float) -> None:
        """Put the gateway's lines back, each for a higher turn: an engine may have begun it."""
        self._shares.pop(gateway, None)
        for line in [one for one in self._lines.values() if one.gateway == gateway]:
            line.turns += 1
            self._put_back(line, now)

    def gateway(self, now: float) -> str | None:
        """The gateway to which a line may be sent now, if there is one."""
        if self.closed or now < self._held_until:
            return None
        open_ones = [
            (share.lines, name)
            for name, share in self._shares.items()
            if not share.lines or (share.lines < self._most and share.bytes < MAX_UNBEGUN_BYTES)
        ]
        return min(open_ones, default=(0, None))[1]

    def again(self, now: float) -> WindowLine | None:
        """Remove and return a line that is due to be sent again, if there is one."""
        return heapq.heappop(self._due).line if self._due and self._due[0].at <= now else None

    def next_at(self, now: float) -> float | None:
        """When more can be sent even without news from a gateway; None if only news allow it."""
        if self.closed or not self._shares:
            return None
        if now < self._held_until:
            return self._held_until
        return self._due[0].at if self._due else None

    def sent(self, line: WindowLine, gateway: str) -> int:
        """Note that the line is sent to the gateway. Returns the turn to send it in.

        Raises:
            OutOfTurns: no turn is left in this run.
        """
        if line.turns >= TURNS_OF_A_RUN:
            raise OutOfTurns(f"line {line.number}")
        line.gateway, line.begun = gateway, False
        share = self._shares[gateway]
        share.lines += 1
        share.bytes += line.size
        self._lines[line.number] = line
        return self._first_turn + line.turns

    def begun(self, gateway: str, number: int) -> None:
        """Note that an engine has begun the line."""
        line = self._lines.get(number)
        if line is not None and line.gateway == gateway and not line.begun:
            self._begin(line)
            self._most = min(MAX_UNBEGUN, 2 * self._most)

    def answered(self, gateway: str, answer: LineAnswer, now: float) -> LineVerdict:
        """Take a gateway's answer to a line. Returns what it means."""
        line = self._lines.get(answer.number)
        if line is None or line.gateway != gateway:
            return LineVerdict.STALE
        if not line.begun:
            self._begin(line)
        kind = BY_CODE.get(answer.code, InferenceError)
        line.turns += answer.sent
        if answer.again_s is not None and not self._has_failed(line, answer, kind):
            if issubclass(kind, CAPACITY_ERRORS) and answer.again_s:
                self._hold(now + answer.again_s)
            self._put_back(line, now + answer.again_s)
            return LineVerdict.AGAIN
        if issubclass(kind, ENDING):
            self._put_back(line, now)
            return LineVerdict.KEY_ENDED
        del self._lines[line.number]
        return LineVerdict.DONE

    @staticmethod
    def _has_failed(line: WindowLine, answer: LineAnswer, kind: type[InferenceError]) -> bool:
        line.failures += answer.sent and not issubclass(kind, CAPACITY_ERRORS)
        return line.failures >= MAX_FAILURES

    def _hold(self, until: float) -> None:
        self._held_until = max(self._held_until, until)
        self._most = 1

    def _begin(self, line: WindowLine) -> None:
        line.begun = True
        share = self._shares[line.gateway]
        share.lines -= 1
        share.bytes -= line.size

    def _put_back(self, line: WindowLine, at: float) -> None:
        self._lines.pop(line.number, None)
        heapq.heappush(self._due, _Due(at, line.number, line))
