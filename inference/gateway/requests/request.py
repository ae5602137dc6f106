"""The life of one request at a gateway, as a state table. No event loop, no clock, no IO.

    event       new       held      running     moving     in doubt   ending    ended
    --------    -------   -------   ---------   --------   --------   ------    -----
    hold        held      -         -           -          -          -         -
    place       running   running   -           running    -          -         -
    output      -         -         running     -          -          ending    -
    stop        -         -         moving,     -          -          ended     -
                                    in doubt,
                                    ended
    refuse      -         held,     -           moving,    -          -         -
                          ended                 ended
    time_out    -         held      running     moving     moving,    -         -
                                                           ended
    reject      -         ended     -           -          -          -         -
    cancel      -         ended     ending      ended      ended      -         -
    leave       -         -         ending      -          -          -         -
    recall      -         -         running     -          -          -         -
    extend      -         -         running,    moving,    in doubt,  -         -
                                    ending      ended      ended
    crash       ended     ended     ended       ended      ended      ended     -

An event that has `-` in the column of the present state changes nothing and has no commands.

States
    new         It has just arrived.
    held        No engine has had it yet; it waits for one.
    running     An engine has it: the current attempt.
    moving      Its engine was lost, failed with it or gave it up (`journey`); it waits for another.
    in doubt    It may have killed two engines. It waits for them to reconnect before it moves.
    ending      It was cancelled; its engine's `done` is still to come, and with it the usage.
    ended       Its usage is final (`Request.done`).

Each event returns commands, which `requests.Requests` executes in order:

    wire.Delta   give this output to the reader
    wire.Cancel  send this to the engine of the current attempt
    wire.Wait    tell the client what the request waits for
    Begun        the engine of the current attempt has sent its first output
    Place        find an engine; the answer is the event `place` or `refuse`
    Timer        after this time comes the event `time_out`
    Moved        count what became of a request that left an engine
    Extend       reserve more tokens; the answer is the event `extend`
    Forget       the body is not needed any more: free its bytes
    Settle       the usage is final

An attempt that only computes the prompt (`Attempt.prefills`, `routing.prefill`) gives no output; it
stops, and the request moves to the engine that answers it. If that takes too long, it is recalled.

A request comes near the end of its reservation, asks for more and gets none: then it ends with what
was reserved, as `length`; what the engine generates until the cancel reaches it is billed.

Times are monotonic, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from inference.errors import InferenceError, RateLimitExceeded, RequestQuarantined
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.attempt import Attempt
from inference.gateway.requests.delivered import Delivered
from inference.gateway.requests.journey import (
    MAX_MOVES,
    RETURNS_S,
    Journey,
    MoveReason,
    MoveResult,
    final_done,
    lost,
)
from inference.gateway.routing.prefill import KeptPrompt
from inference.interfaces.directory import ResolvedTarget
from inference.link.accounts import Usage, first_attempt
from inference.link.wire import LEFT, RECALLED, Cancel, Delta, Done, Fault, Wait
from inference.operations.estimate import EXTENSION_TOKENS

LOW_TOKENS = 128
"""A request asks for more when fewer output tokens are left: generating them takes seconds, against
a round trip to Redis."""


class RequestState(Enum):
    """The states of a request."""

    NEW = auto()
    HELD = auto()
    RUNNING = auto()
    MOVING = auto()
    IN_DOUBT = auto()
    ENDING = auto()
    ENDED = auto()


WAITING = frozenset({RequestState.HELD, RequestState.MOVING, RequestState.IN_DOUBT})
"""The states in which it waits for an engine."""


class Begun(NamedTuple):
    """`gap_s` is how long the reader waited since an earlier engine stopped sending; None if none
    had it before."""

    gap_s: float | None


class Place(NamedTuple):
    """If `paced`, only engines without too many unbegun requests count."""

    paced: bool


class Timer(NamedTuple):
    seconds: float


class Moved(NamedTuple):
    why: MoveReason
    outcome: MoveResult


class Extend(NamedTuple):
    tokens: int = EXTENSION_TOKENS


class Forget(NamedTuple):
    bytes: int


class Settle(NamedTuple):
    done: Done


Command = Delta | Cancel | Wait | Begun | Place | Timer | Moved | Extend | Forget | Settle
Commands = Sequence[Command]


class Request:
    """One request, from its arrival at this gateway until its usage is final."""

    def __init__(self, order: AdmittedRequest, *, began: float, holding_s: float) -> None:
        """It may wait for an engine for `holding_s` at a time. If its order `grows`, it may
        generate more than was reserved, if more can then be reserved; otherwise it is bounded by
        what the limits let each choice generate."""
        self.id, self.grant, self.target = order.request_id, order.grant, order.target
        self.reservation, self.started_at = order.reservation, order.started_at
        self.began = began
        self.trace = order.trace
        """Its span, if it is traced."""
        self.state = RequestState.NEW
        self.is_wanted = True
        """Whether it was neither cancelled nor has ended."""
        self.order: AdmittedRequest | None = order
        """None once it can't go to another engine any more: the body may be large."""
        self.kept = 0
        """Bytes of the body that are kept for a move while it runs."""
        self.journey: Journey | None = None
        """None as long as its first engine has it."""
        self.attempt: Attempt | None = None
        """The current attempt; None while it waits for an engine, and once it has ended."""
        self.attempts = first_attempt(order.turn) - 1
        """The highest attempt's number so far."""
        self.engine = self.revision = ""
        """The id of the engine that had it last, and the revision that this one serves."""
        self.price = self.target.price
        """What its tokens cost on that engine."""
        self.delivered = Delivered(
            order.workload.choices,
            logprobs=bool(order.workload.logprobs),
            keeps=order.retention.grace_s > 0,
        )
        self.kept_prompt: KeptPrompt | None = None
        """What a prefill engine handed over, for the next attempt."""
        self.held_s = 0.0
        """How long it was held."""
        self.ttft_s: float | None = None
        """Seconds to its first output; None before that."""
        self.done: Done | None = None
        """Its end, with the usage; set in the state ENDED."""
        self.total_s: float | None = None
        """Seconds from its arrival to its end."""
        self.limited: InferenceError | None = None
        """The limit that ended it early."""
        self.is_estimated = False
        """Its usage is what was seen here, because its engine reported none."""
        self.may_have_cost = False
        """An engine may have generated something for it."""
        self.handed_over = False
        """Another gateway has it, or may adopt it: its limits are not settled here."""
        self._holding_s = holding_s
        self._grows, self._bound, self._timeout_s = order.grows, order.max_tokens, order.timeout_s
        self._extending = self._refused_early = self._crashed = False
        self._waits_since: float | None = None
        """When it began to wait for an engine; None if a first attempt to place it is under way."""
        self._waits_until = 0.0
        self._unread: Done | None = None
        """With what its last engine gave it up, until it waits."""

    def may_leave(self, attempt: Attempt, why: MoveReason) -> bool:
        """Whether it may go from the engine of this attempt to another."""
        if self.order is None or not self.is_wanted:
            return False
        return self.journey is None or self.journey.may_leave(attempt, why)

    def elapsed_s(self, now: float) -> float:
        """Seconds since it arrived."""
        return now - self.began

    def left_s(self, now: float) -> float:
        """Seconds that are left of its timeout."""
        return self._timeout_s - self.elapsed_s(now)

    @property
    def overflows(self) -> bool:
        """Whether it may go to an overflow engine: no engine has begun it, or failed with it."""
        if self.order is None or not self.order.overflows or self.kept_prompt is not None:
            return False
        return self.journey is None or not self.journey.moves

    # --- engines ---------------------------------------------------------------------------------

    def hold(self, now: float) -> Commands:
        """No engine can take it yet: it is held for one."""
        if self.state is not RequestState.NEW:
            return ()
        self.state = RequestState.HELD
        return [Wait(self.id, "held"), self._wait(self._holding_s, now)]

    def place(self, attempt: Attempt, now: float) -> Commands:
        """An engine gets it, as this attempt."""
        if self.state not in (RequestState.NEW, RequestState.HELD, RequestState.MOVING):
            return ()
        if self.state is RequestState.HELD:
            self._note_held(now)
        moved: list[Command] = self._moved(self._course)
        self.state, self.attempt, self.attempts = RequestState.RUNNING, attempt, attempt.number
        self.engine, self.revision = attempt.engine.id, attempt.engine.info.revision
        self.price = self.target.price_on(overflow=attempt.engine.info.overflow)
        self._waits_since = self._unread = self.kept_prompt = None
        self.delivered.begin(attempt.most, exact=self.may_move_again)
        if self.order is not None and not self.is_kept:
            return [*moved, *self.forbid_moving()]
        return moved if attempt.prefill_s is None else [*moved, Timer(attempt.prefill_s)]

    @property
    def is_kept(self) -> bool:
        """Whether its body is kept for a move. An adopted answer may have none."""
        return self.order is not None and 0 < len(self.order.body) == self.kept

    @property
    def may_move_again(self) -> bool:
        """Whether it may go from its next engine to another, so that this one has to report token
        ids."""
        return self.is_kept and (self.journey is None or self.journey.moves < MAX_MOVES)

    def output(self, delta: Delta, now: float) -> Commands:
        """The engine of the current attempt sent output."""
        if (attempt := self.attempt) is None:
            return ()
        if attempt.prefills:
            return ()
        commands: list[Command] = [self.delivered.add(delta)]
        if not attempt.has_begun:
            attempt.has_begun = self.may_have_cost = True
            begun = Begun(None if self.journey is None else self.journey.resumed(now))
            commands.insert(0, begun)
            if self.ttft_s is None:
                self.ttft_s = self.elapsed_s(now)
        if self.order is not None and not self.delivered.can_move:
            commands += self.forbid_moving()
        if self._grows and self.state is RequestState.RUNNING and self._needs_more():
            self._extending = True
            commands.append(Extend())
        return commands

    def stop(self, why: MoveReason | None, done: Done | None, now: float) -> Commands:
        """The current attempt has ended: its engine sent `done`, or (None) was lost. `why`: another
        engine should continue (`journey.reason_to_move`)."""
        if (attempt := self.attempt) is None:
            return ()
        if done is None:
            self.may_have_cost = True
        if why is not None and self.may_leave(attempt, why):
            return self._move(attempt, why, done, now)
        if done is None:
            return self._end_estimated(None, lost(attempt), now)
        return self._end(final_done(attempt, done, is_wanted=self.is_wanted), now)

    def refuse(self, error: InferenceError, now: float) -> Commands:
        """No engine takes it now: it waits on, or ends."""
        if self.state not in (RequestState.HELD, RequestState.MOVING):
            return ()
        if now < self._waits_until:
            if self._waits_since is not None:
                return ()
            return [self._wait(self._waits_until - now, now)]
        journey, unread = self.journey, self._unread
        if journey is None:
            return self._end_estimated(None, error, now)
        refused = journey.why is MoveReason.REFUSED
        counted = [] if refused else self._moved(MoveResult.NO_ENGINE)
        if unread is not None and unread.fault is not None:
            return [*counted, *self._end(unread, now)]
        return [*counted, *self._end_estimated(None, journey.error or error, now)]

    def time_out(self, alive: Collection[str], now: float) -> Commands:
        """It has waited long enough: any engine may have it now, or else it ends. `alive` has the
        runs of all connected engines."""
        if self.state in (RequestState.HELD, RequestState.MOVING):
            self._waits_until = now
            return [Place(paced=False)]
        if self.attempt is not None and self.attempt.prefills:
            return self.recall(now)
        if self.state is not RequestState.IN_DOUBT:
            return ()
        assert self.journey is not None
        if self.journey.died_twice(alive):
            error = RequestQuarantined(
                "Two engines were lost while running this request, so it is not retried on "
                "another one."
            )
            moved = self._moved(MoveResult.QUARANTINED)
            return [*moved, *self._end_estimated(None, error, now)]
        self.state, self._waits_since = RequestState.MOVING, None
        self._waits_until = now + self._holding_s
        return [Place(paced=True)]

    # --- from outside ----------------------------------------------------------------------------

    def cancel(self, reason: str, now: float) -> Commands:
        """Abort it wherever it runs or waits; `reason` becomes its finish reason."""
        if self.state is RequestState.RUNNING:
            return self._abort(reason)
        if self.state not in WAITING:
            return ()
        moved = self._moved(MoveResult.STOPPED)
        return [*moved, *self._end_estimated("cancelled", None, now)]

    def leave(self, now: float) -> Commands:
        """Leave it to its engine, for another gateway to adopt; nothing changes if its engine does
        not keep the answer."""
        if self.state is not RequestState.RUNNING or self.attempt is None or not self.attempt.keeps:
            return ()
        self.handed_over = True
        return self._abort(LEFT)

    def recall(self, now: float) -> Commands:
        """Ask its engine to give it back for another one. If it has begun, nothing changes."""
        attempt = self.attempt
        if self.state is not RequestState.RUNNING or attempt is None or attempt.has_begun:
            return ()
        attempt.recalled = True
        return [Cancel(self.id, RECALLED, attempt.number)]

    def reject(self, error: InferenceError, now: float) -> Commands:
        """End it with this error if it is held."""
        return self._end_estimated(None, error, now) if self.state is RequestState.HELD else ()

    def extend(self, refusal: InferenceError | None, now: float) -> Commands:
        """More tokens were reserved, or were refused."""
        if self.state not in (RequestState.RUNNING, RequestState.MOVING, RequestState.IN_DOUBT):
            return ()
        self._extending, self._refused_early = False, refusal is not None
        reserved = self.reservation.output_tokens
        if refusal is None or reserved is None or self.delivered.completion_tokens < reserved:
            return ()
        self.limited = refusal
        return self.cancel("length", now)

    def crash(self, now: float) -> Commands:
        """Handling it failed, by a bug: end it with status 500."""
        if self.state is RequestState.ENDED:
            return ()
        error = InferenceError("The server had an error while processing your request.")
        cancel = [] if self.attempt is None else [Cancel(self.id, error.code, self.attempts)]
        if self._crashed:  # by what follows
            done = Done(self.id, Usage(), fault=Fault.of(error), attempt=self.attempts)
            self.is_estimated = True
            return [*cancel, *self._end(done, now)]
        self._crashed = True
        return [*cancel, *self._end_estimated(None, error, now)]

    def forbid_moving(self) -> Commands:
        """Rule out moving to another engine from now on, and free what is kept for that."""
        if self.order is None:
            return ()
        self.order = None
        self.delivered.forget()
        return [Forget(self.kept)]

    def update_target(self, target: ResolvedTarget) -> None:
        """Update on which revisions its adapter was tried, and is ready; its version stays."""
        if self.order is not None and target.version_id == self.target.version_id:
            now = msgspec.structs.replace(self.order.target, tried=target.tried, ready=target.ready)
            self.order = msgspec.structs.replace(self.order, target=now)

    # --- details ---------------------------------------------------------------------------------

    @property
    def _course(self) -> MoveResult:
        return MoveResult.BEGUN_ANEW if self.delivered.anew else MoveResult.RESUMED

    def _moved(self, outcome: MoveResult) -> list[Command]:
        """Count it, if it left an engine that should have answered it."""
        if self.journey is None or self.journey.why is MoveReason.PREFILLED:
            return []
        return [Moved(self.journey.why, outcome)]

    def _needs_more(self) -> bool:
        reserved = self.reservation.output_tokens
        if reserved is None or self._extending:
            return False
        left = reserved - self.delivered.completion_tokens
        return left <= 0 or (left < LOW_TOKENS and not self._refused_early)

    def _move(self, attempt: Attempt, why: MoveReason, done: Done | None, now: float) -> Commands:
        journey = self.journey = self.journey or Journey()
        in_doubt = journey.leave(attempt, why, done, now)
        self.attempt, self._unread = None, done
        moving = Wait(self.id, "moving", 0, attempt.number)
        if in_doubt:
            self.state = RequestState.IN_DOUBT
            return [moving, self._wait(min(RETURNS_S, self._holding_s), now)]
        self.state, self._waits_since = RequestState.MOVING, None
        refused = why is MoveReason.REFUSED and not attempt.prefills
        self._waits_until = now + (0 if refused else self._holding_s)
        if why is not MoveReason.PREFILLED:
            return [moving, Place(paced=True)]
        self.may_have_cost = True
        if done is not None and done.handover is not None:
            self.kept_prompt = KeptPrompt.of(
                done.handover, done.usage, attempt.engine, attempt.sent_at
            )
        return [Place(paced=True)]

    def _wait(self, seconds: float, now: float) -> Timer:
        """Bound the wait to this time, and to what is left of the timeout."""
        seconds = max(0.0, min(seconds, self.left_s(now)))
        self._waits_since, self._waits_until, self._unread = now, now + seconds, None
        return Timer(seconds)

    def _note_held(self, now: float) -> None:
        assert self._waits_since is not None
        self.held_s = now - self._waits_since

    def _abort(self, reason: str) -> Commands:
        assert self.attempt is not None
        self.state, self.is_wanted = RequestState.ENDING, False
        return [*self.forbid_moving(), Cancel(self.id, reason, self.attempt.number)]

    def _end_estimated(
        self, finish_reason: str | None, error: InferenceError | None, now: float
    ) -> Commands:
        """No engine will send `done`: end with the usage that was seen here."""
        usage = self.delivered.usage(self.ttft_s, self.elapsed_s(now))
        fault = None if error is None else Fault.of(error)
        self.is_estimated = True
        done = Done(self.id, usage, finish_reason, fault=fault, attempt=self.attempts)
        return self._end(done, now)

    def _end(self, done: Done, now: float) -> Commands:
        if self.state is RequestState.HELD:
            self._note_held(now)
        if self._bound is not None and _reached(self._bound, done):
            self.limited = RateLimitExceeded(
                f"The answer was cut off at {self._bound} tokens, the most that the rate "
                "limits allow for a request that sets neither `stream` nor `max_tokens`."
            )
        if self.limited is not None:
            done = msgspec.structs.replace(done, finish_reason="length", fault=None)
        commands: Commands = [*self.forbid_moving(), Settle(done)]
        self.done, self.total_s = done, self.elapsed_s(now)
        self.state, self.is_wanted, self.attempt = RequestState.ENDED, False, None
        return commands


def _reached(bound: int, done: Done) -> bool:
    """Whether the bound ended the answer, and not the model's context."""
    return done.finish_reason == "length" and done.usage.completion_tokens >= bound
