"""The course of a request that its first engine does not complete. No IO, no clock.

Rules
    1. A request may go to another engine if its own is lost, fails with it, gives it up or does not
       take it. At most MAX_MOVES of these are moves: a request that its engine had not begun, and
       refused or gave up, can go elsewhere without that counting as a move.
    2. A request that was on two engines when they died is not tried on a third, because it may have
       killed them. A lost link does not tell whether the engine died; but one that is alive
       reconnects within RETURNS_S, in the same run. So after the second engine was lost or failed,
       the request waits RETURNS_S before it continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from inference.errors import EngineLost, InferenceError, Overloaded
from inference.gateway.requests.attempt import Attempt
from inference.gateway.routing.engine_state import EngineState
from inference.link.wire import MOVED, PREFILLED, Done, Fault

MAX_MOVES = 2
RETURNS_S = 3.0
"""Agents reconnect within a second."""


class MoveReason(StrEnum):
    """Why a request goes to another engine."""

    LOST = "lost"
    """The engine's link ended."""
    FAILED = "failed"
    """The engine failed with it."""
    DRAINED = "drained"
    """The engine is draining, and gave it up."""
    REFUSED = "refused"
    """The engine is full and did not take it."""
    RECALLED = "recalled"
    """It waited in the engine's queue for so long that an overflow engine may have it, or for its
    prompt so long that the next engine had better compute it."""
    PREFILLED = "prefilled"
    """A prefill engine has computed its prompt, which is what it was there for."""


class MoveResult(StrEnum):
    """What became of a request that went to another engine."""

    RESUMED = "resumed"
    """Another engine continues where the reader is."""
    BEGUN_ANEW = "begun_anew"
    """Another engine starts from the beginning, because the reader was given nothing."""
    NO_ENGINE = "no_engine"
    """No engine took it in time."""
    QUARANTINED = "quarantined"
    """Two engines died with it."""
    STOPPED = "stopped"
    """It was ended meanwhile, by its client or from outside."""


@dataclass(slots=True)
class Journey:
    """State of a request that left an engine. Call `leave` for each engine that it leaves."""

    why: MoveReason = MoveReason.LOST
    error: InferenceError | None = None
    """The error it ends with if no engine takes it; None: the error of the failed placement."""
    pool: str = ""
    """Revision of the engine that it left (`EngineState.pool`)."""
    moves: int = 0
    since: float | None = None
    """When its reader began to wait; None while an engine sends."""
    avoided: set[EngineState] = field(default_factory=set)
    """Engines that failed with it, gave it up, or did not take it."""
    _failed: set[str] = field(default_factory=set)
    """Runs of engines that were lost, or failed with it (`EngineState.run`)."""

    def leave(self, attempt: Attempt, why: MoveReason, done: Done | None, now: float) -> bool:
        """The attempt's engine does not complete the request; `done` is what it sent, if anything.
        Returns whether the request is in doubt (rule 2)."""
        self.why, self.pool = why, attempt.engine.pool
        if _is_move(attempt, why):
            self.moves += 1
            fault = None if done is None else done.fault
            self.error = lost(attempt) if fault is None else fault.error()
        if self.since is None and why is not MoveReason.PREFILLED:
            self.since = now
        if why not in (MoveReason.LOST, MoveReason.RECALLED):
            self.avoided.add(attempt.engine)
        if why not in (MoveReason.LOST, MoveReason.FAILED):
            return False
        self._failed.add(attempt.engine.run)
        return len(self._failed) > 1

    def may_leave(self, attempt: Attempt, why: MoveReason) -> bool:
        """Whether the request may leave another engine (rule 1)."""
        return self.moves < MAX_MOVES or not _is_move(attempt, why)

    def died_twice(self, alive: Iterable[str]) -> bool:
        """Whether two engines died with it; `alive` has the runs of all connected engines."""
        return len(self._failed.difference(alive)) > 1

    def resumed(self, now: float) -> float | None:
        """An engine has begun to send; returns how long the reader waited, in seconds; None if it
        did not."""
        since, self.since = self.since, None
        return None if since is None else now - since


def reason_to_move(attempt: Attempt, done: Done) -> MoveReason | None:
    """Why another engine should take over the request after this `done`; None: it has ended."""
    if done.fault is None and attempt.prefills and done.finish_reason != MOVED:
        return MoveReason.PREFILLED
    if done.fault is None:
        if done.finish_reason != MOVED:
            return None
        recalled = attempt.recalled and not attempt.has_begun
        return MoveReason.RECALLED if recalled else MoveReason.DRAINED
    error = done.fault.error()
    if error.may_retry_elsewhere:
        return MoveReason.FAILED
    if not isinstance(error, Overloaded) or attempt.has_begun:
        return None
    return MoveReason.DRAINED if attempt.engine.draining else MoveReason.REFUSED


def final_done(attempt: Attempt, done: Done, *, is_wanted: bool) -> Done:
    """The `done` that the reader gets if no other engine takes over; `is_wanted`: the request was
    not cancelled."""
    if done.finish_reason not in (MOVED, PREFILLED) or done.fault is not None:
        return done
    if not is_wanted:
        return msgspec.structs.replace(done, finish_reason="cancelled")
    return msgspec.structs.replace(done, finish_reason=None, fault=Fault.of(lost(attempt)))


def lost(attempt: Attempt) -> EngineLost:
    """The error for an answer whose engine was lost."""
    return EngineLost(f"The engine `{attempt.engine.id}` was lost before this answer was complete.")


def _is_move(attempt: Attempt, why: MoveReason) -> bool:
    return attempt.has_begun or why in (MoveReason.LOST, MoveReason.FAILED)
