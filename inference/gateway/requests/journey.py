"""What a request goes through that its engine does not bring to its end. No IO, no clock.

Rules
    1. A request may go to another engine where its own one is lost, fails with it, gives it up or
       does not take it. Of that MAX_MOVES are moves: what no engine had begun, and one that ends
       did not take, has not moved by going elsewhere.
    2. One that was on two engines when they died is not tried on a third: it may have killed them.
       Nobody says that an engine died; but one whose link was cut comes back within RETURNS_S, in
       the same run, if it lives. So the second time a request waits so long before it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from inference.errors import EngineLost, InferenceError, Overloaded
from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.requests.leg import Leg
from inference.link.wire import MOVED, Done, Fault

MAX_MOVES = 2
RETURNS_S = 3.0
"""Agents dial again within a second."""


class Why(StrEnum):
    """Why a request goes to another engine."""

    LOST = "lost"
    """The engine's link ended."""
    FAILED = "failed"
    """The engine failed with it."""
    DRAINED = "drained"
    """The engine ends, and gave it up."""
    REFUSED = "refused"
    """The engine did not take it: it is full."""


class Outcome(StrEnum):
    """What became of that."""

    RESUMED = "resumed"
    """Another engine goes on where the reader is."""
    BEGUN_ANEW = "begun_anew"
    """Another engine begins from nothing, as the reader has nothing."""
    NO_ENGINE = "no_engine"
    """None took it in time."""
    QUARANTINED = "quarantined"
    """Two engines died with it."""
    STOPPED = "stopped"
    """Somebody ended it meanwhile."""


@dataclass(slots=True)
class Journey:
    """`leave` notes each engine that it leaves."""

    why: Why = Why.LOST
    error: InferenceError | None = None
    """How it ends where no engine takes it; None: as that."""
    pool: str = ""
    """Of the engine that it comes from (`EngineState.pool`)."""
    moves: int = 0
    since: float | None = None
    """When its reader began to wait; None while an engine sends."""
    avoided: set[EngineLink] = field(default_factory=set)
    """Links whose engines gave it up, or did not take it."""
    in_doubt: bool = False
    """Rule 2: it waits for engines to come back."""
    _failed: set[str] = field(default_factory=set)
    """Runs of engines that were lost, or failed with it (`EngineState.life`)."""

    def leave(self, leg: Leg, why: Why, done: Done | None, now: float) -> None:
        """Its engine does not bring it to its end; `done` is what it said of that, if anything."""
        self.why, self.pool = why, leg.link.engine.pool
        if _is_move(leg, why):
            self.moves += 1
            fault = None if done is None else done.fault
            self.error = lost(leg) if fault is None else fault.error()
        if self.since is None:
            self.since = now
        if why is not Why.LOST:
            self.avoided.add(leg.link)
        if why in (Why.LOST, Why.FAILED):
            self._failed.add(leg.link.engine.life)
            self.in_doubt = len(self._failed) > 1

    def died_twice(self, alive: Iterable[str]) -> bool:
        """Whether two engines died with it, where these runs are alive."""
        return len(self._failed.difference(alive)) > 1

    def goes_on(self, now: float) -> float:
        """Another engine sends now; how long its reader waited for that."""
        waited_s, self.since = now - (now if self.since is None else self.since), None
        return waited_s


def why_elsewhere(leg: Leg, done: Done) -> Why | None:
    """Why another engine should have what this one said its last word on; None: it is the end."""
    if done.fault is None:
        return Why.DRAINED if done.finish_reason == MOVED else None
    error = done.fault.error()
    if error.elsewhere:
        return Why.FAILED
    if not isinstance(error, Overloaded) or leg.has_begun:
        return None
    return Why.DRAINED if leg.link.engine.draining else Why.REFUSED


def may_leave(leg: Leg, why: Why) -> bool:
    """Whether another engine may have it."""
    stream = leg.stream
    if stream.order is None or not stream.is_wanted:
        return False
    return stream.journey is None or stream.journey.moves < MAX_MOVES or not _is_move(leg, why)


def last_word(leg: Leg, done: Done) -> Done:
    """What its reader gets, where no other engine has it."""
    if done.finish_reason != MOVED or done.fault is not None:
        return done
    if not leg.stream.is_wanted:
        return msgspec.structs.replace(done, finish_reason="cancelled")
    return msgspec.structs.replace(done, finish_reason=None, fault=Fault.of(lost(leg)))


def lost(leg: Leg) -> EngineLost:
    """That its engine is no longer there."""
    return EngineLost(
        f"The engine `{leg.link.engine.id}` was lost before this answer was complete."
    )


def _is_move(leg: Leg, why: Why) -> bool:
    return leg.has_begun or why in (Why.LOST, Why.FAILED)
