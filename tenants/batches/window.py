"""Which lines of a batch may be sent to which gateway, and when again. Pure; time is passed in.

Rules
    1. A gateway has `most` lines of the batch with which no engine has begun, of MAX_UNBEGUN_BYTES
       together; what has begun is as much as engines run. A line that is larger than that goes
       alone.
    2. A line that meets a limit, or finds no engine, waits and is asked for again. Meanwhile
       nothing new is sent, and then a line at a time, until an engine begins with one: from then
       twice as many each time.
    3. A line with which engines failed MAX_FAILURES times has failed.
    4. A line that an engine may have had is sent in a higher turn the next time, be it that the
       gateway is lost: of all turns the ledger bills the last.
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
    Answer,
)

MAX_FAILURES = 3
PATIENT = (RateLimitExceeded, InsufficientQuota, Overloaded)
"""Errors that are no fault of a line's."""
ENDING = (InvalidApiKey, PermissionDenied)
"""Errors after which no line of the batch can have an answer."""


class Verdict(Enum):
    """What an answer means."""

    DONE = "done"
    """It is the line's."""
    AGAIN = "again"
    """The line is asked for again."""
    KEY_ENDED = "key ended"
    """The batch is over."""
    STALE = "stale"
    """It is of a line that is not under way there."""


class OutOfTurns(Exception):
    """A line was sent too often by who has the batch: the next one to have it goes on."""


@dataclass(slots=True)
class Line:
    """A line that was begun to be sent, where it stands in the file, and how often engines had it
    and failed with it."""

    number: int
    offset: int
    size: int
    turns: int = 0
    failures: int = 0
    gateway: str = ""
    begun: bool = False


@dataclass(slots=True)
class Share:
    """What one gateway has of the batch that has not begun."""

    lines: int = 0
    bytes: int = 0


@dataclass(order=True, slots=True)
class _Due:
    at: float
    number: int
    line: Line = field(compare=False)


class Window:
    """The lines of one batch that are under way, while one worker has it for the `run`th time."""

    def __init__(self, run: int) -> None:
        self._first_turn = run * TURNS_OF_A_RUN
        self._shares: dict[str, Share] = {}
        self._lines: dict[int, Line] = {}
        self._due: list[_Due] = []
        self._most = MAX_UNBEGUN
        self._held_until = 0.0
        self.closed = False
        """Nothing more is sent."""

    @property
    def empty(self) -> bool:
        """Nothing is under way, and nothing is to be asked for again."""
        return not self._lines and (self.closed or not self._due)

    def joined(self, gateway: str) -> None:
        """Lines can be sent there."""
        self._shares[gateway] = Share()

    def lost(self, gateway: str, now: float) -> None:
        """What it had is to be sent again; engines may have begun with any of it."""
        self._shares.pop(gateway, None)
        for line in [one for one in self._lines.values() if one.gateway == gateway]:
            line.turns += 1
            self._put_back(line, now)

    def gateway(self, now: float) -> str | None:
        """Where a line may be sent now, if anywhere."""
        if self.closed or now < self._held_until:
            return None
        open_ones = [
            (share.lines, name)
            for name, share in self._shares.items()
            if not share.lines or (share.lines < self._most and share.bytes < MAX_UNBEGUN_BYTES)
        ]
        return min(open_ones, default=(0, None))[1]

    def again(self, now: float) -> Line | None:
        """A line that is to be sent again now, if there is one."""
        return heapq.heappop(self._due).line if self._due and self._due[0].at <= now else None

    def next_at(self, now: float) -> float | None:
        """When more can be sent though nothing is heard; None: only then."""
        if self.closed or not self._shares:
            return None
        if now < self._held_until:
            return self._held_until
        return self._due[0].at if self._due else None

    def sent(self, line: Line, gateway: str) -> int:
        """The line goes there; the turn that it is sent in.

        Raises:
            OutOfTurns: there are no more.
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
        """An engine has begun with it."""
        line = self._lines.get(number)
        if line is not None and line.gateway == gateway and not line.begun:
            self._begin(line)
            self._most = min(MAX_UNBEGUN, 2 * self._most)

    def answered(self, gateway: str, answer: Answer, now: float) -> Verdict:
        """A gateway has said what became of a line."""
        line = self._lines.get(answer.number)
        if line is None or line.gateway != gateway:
            return Verdict.STALE
        if not line.begun:
            self._begin(line)
        kind = BY_CODE.get(answer.code, InferenceError)
        line.turns += answer.sent
        if answer.again_s is not None and not self._has_failed(line, answer, kind):
            if issubclass(kind, PATIENT) and answer.again_s:
                self._hold(now + answer.again_s)
            self._put_back(line, now + answer.again_s)
            return Verdict.AGAIN
        if issubclass(kind, ENDING):
            self._put_back(line, now)
            return Verdict.KEY_ENDED
        del self._lines[line.number]
        return Verdict.DONE

    @staticmethod
    def _has_failed(line: Line, answer: Answer, kind: type[InferenceError]) -> bool:
        line.failures += answer.sent and not issubclass(kind, PATIENT)
        return line.failures >= MAX_FAILURES

    def _hold(self, until: float) -> None:
        self._held_until = max(self._held_until, until)
        self._most = 1

    def _begin(self, line: Line) -> None:
        line.begun = True
        share = self._shares[line.gateway]
        share.lines -= 1
        share.bytes -= line.size

    def _put_back(self, line: Line, at: float) -> None:
        self._lines.pop(line.number, None)
        heapq.heappush(self._due, _Due(at, line.number, line))
