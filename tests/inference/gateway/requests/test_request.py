"""The life of one request, without a gateway: random events, judged by the table in its module."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from inference.errors import EngineFailed, NoEngine, Overloaded, RateLimitExceeded
from inference.gateway.fleet.dispatches import Bounds
from inference.gateway.requests import request as module
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.attempt import Attempt
from inference.gateway.requests.journey import MoveReason, MoveResult, reason_to_move
from inference.gateway.requests.request import (
    WAITING,
    Begun,
    Commands,
    Forget,
    Moved,
    Place,
    Request,
    RequestState,
    Settle,
    Timer,
)
from inference.gateway.routing.engine_state import EngineState
from inference.interfaces.limiter import Reservation
from inference.link.accounts import Usage
from inference.link.wire import (
    GONE,
    LEFT,
    MOVED,
    PREFILLED,
    Cancel,
    Delta,
    Done,
    Fault,
    Retention,
    Wait,
)
from tests.inference.samples import BASE, GRANT, MODEL

pytestmark = pytest.mark.pure

HOLDING_S, TIMEOUT_S, PREFILL_S = 5.0, 60.0, 20.0
BODY = b"{}"


def table() -> dict[str, dict[RequestState, set[RequestState]]]:
    """The next states by event and state, as the module's docstring has them."""
    lines = (module.__doc__ or "").splitlines()
    head = next(i for i, line in enumerate(lines) if line.strip().startswith("event "))
    starts = [found.start() for found in re.finditer(r"\S+( \S+)*", lines[head])]
    names = re.findall(r"\S+(?: \S+)*", lines[head])
    found: dict[str, dict[RequestState, set[RequestState]]] = {}
    event = ""
    for line in lines[head + 2 :]:
        if not line.strip():
            break
        cells = [line[a:b].strip(" ,") for a, b in zip(starts, [*starts[1:], None], strict=True)]
        event = cells[0] or event
        row = found.setdefault(event, {})
        for name, cell in zip(names[1:], cells[1:], strict=True):
            states = {
                RequestState[one.strip().upper().replace(" ", "_")]
                for one in cell.split(",")
                if one.strip(" -")
            }
            row.setdefault(RequestState[name.upper().replace(" ", "_")], set()).update(states)
    return found


TABLE = table()


def order(**fields: Any) -> AdmittedRequest:
    given: dict[str, Any] = {"kind": "chat", "body": BODY, "lane": "", "timeout_s": TIMEOUT_S}
    given |= {"grant": GRANT, "target": BASE, "reservation": Reservation("r1", None)}
    return AdmittedRequest(**(given | fields))


class World:
    """What surrounds one request: engines, a clock, and a record of its commands."""

    def __init__(self, **fields: Any) -> None:
        self.now = 100.0
        self.request = Request(order(**fields), began=self.now, holding_s=HOLDING_S)
        self.request.kept = len(BODY)
        self.engines = [EngineState(f"e{n}", MODEL, run=f"run-{n}") for n in range(4)]
        self.log: list[Any] = []
        self.sent = self.shown = ""
        """What engines sent in the present attempt and those before, and what the reader got."""

    def happens(self, event: str, *args: Any) -> Commands:
        """Pass the event on, and compare what it did with the table."""
        before, was = self.request.state, dict(vars(self.request))
        method = cast(Callable[..., Commands], getattr(self.request, event))
        commands = method(*args, self.now)
        allowed = TABLE[event][before]
        if allowed:
            assert self.request.state in allowed, (event, before)
        else:
            assert not commands and vars(self.request) == was, (event, before)
        self.log += commands
        for command in commands:
            if isinstance(command, Delta) and self.request.is_wanted:
                self.shown += command.text
        return commands

    def attempt(self, engine: int, prefill_s: float | None = None) -> Attempt:
        link = cast(Any, SimpleNamespace(engine=self.engines[engine]))
        number = self.request.attempts + 1
        return Attempt(link, number, Bounds(1000, 1000), self.now, prefill_s, keeps=True)

    def does(self, event: str, number: int) -> None:
        """One event, with arguments that vary with the number."""
        request = self.request
        self.now += number / 2
        match event:
            case "place":
                first = self.request.state is RequestState.NEW and number == 9
                self.happens(event, self.attempt(number % 4, PREFILL_S if first else None))
            case "output":
                ids = {0: [number]} if number % 5 else {}
                text = chr(97 + number)
                self.happens(event, Delta("r1", text, 1, attempt=request.attempts, ids=ids))
                attempt = request.attempt
                if request.state is RequestState.RUNNING and attempt and not attempt.prefills:
                    self.sent += text
            case "stop":
                self._stop(number)
            case "refuse" | "reject":
                self.happens(event, NoEngine() if number % 2 else Overloaded())
            case "extend":
                refusal = RateLimitExceeded("no") if number % 2 else None
                self.happens(event, refusal)
            case "time_out":
                self.happens(event, {"run-0", "run-1"} if number % 2 else set())
            case "cancel":
                self.happens(event, "cancelled")
            case _:
                self.happens(event)

    def _stop(self, number: int) -> None:
        attempt = self.request.attempt
        reasons = ["stop", "length", GONE, LEFT, MOVED]
        done: Done | None = None
        if attempt is not None and attempt.prefills:
            reasons[0] = PREFILLED
        if number < len(reasons):
            done = Done("r1", Usage(1, 0, len(self.sent)), reasons[number])
        elif number < 7:
            error = EngineFailed() if number == 5 else Overloaded()
            done = Done("r1", Usage(), fault=Fault.of(error))
        why = None
        if attempt is not None:
            why = MoveReason.LOST if done is None else reason_to_move(attempt, done)
        self.happens("stop", why, done)

    def judge(self) -> None:
        request = self.request
        ended = request.state is RequestState.ENDED
        settled = [command for command in self.log if isinstance(command, Settle)]
        forgotten = [command for command in self.log if isinstance(command, Forget)]
        assert len(settled) == ended and (request.done is not None) == ended
        assert len(forgotten) == (request.order is None) <= 1
        assert not forgotten or forgotten[0].bytes == len(BODY)
        assert request.attempt is None or request.state in (
            RequestState.RUNNING,
            RequestState.ENDING,
        )
        assert self.sent.startswith(self.shown), "in order, and once"
        if request.state is RequestState.RUNNING:
            assert self.shown == self.sent


EVENTS = st.sampled_from([*TABLE, *["place", "output", "stop", "refuse"] * 3])


@st.composite
def histories(draw: DrawFn) -> list[tuple[str, int]]:
    return draw(st.lists(st.tuples(EVENTS, st.integers(0, 9)), max_size=30))


@given(histories(), st.booleans(), st.sampled_from([None, 8]))
def test_random_events_follow_the_table(
    history: list[tuple[str, int]], grows: bool, reserved: int | None
) -> None:
    world = World(grows=grows, reservation=Reservation("r1", reserved), retention=Retention(9.0))
    for event, number in history:
        world.does(event, number)
        world.judge()
    world.happens("crash")
    world.judge()
    for event in TABLE:
        world.does(event, 1)
    world.judge()


def test_the_table_has_every_event_and_every_state() -> None:
    assert len(TABLE) == 12 and all(list(row) == list(RequestState) for row in TABLE.values())
    reached = {state for row in TABLE.values() for states in row.values() for state in states}
    assert reached == set(RequestState) - {RequestState.NEW}


def test_a_request_that_is_held_gets_an_engine_and_ends() -> None:
    world = World()
    assert world.happens("hold") == [Wait("r1", "held"), Timer(HOLDING_S)]
    world.now += 2
    assert world.happens("place", world.attempt(0)) == []
    assert world.request.held_s == 2
    delta = Delta("r1", "a", 1)
    assert world.happens("output", delta) == [Begun(None), delta, Forget(2)], "it has no ids"
    done = Done("r1", Usage(1, 0, 1), "stop")
    assert world.happens("stop", None, done) == [Settle(done)]
    assert world.request.done == done and not world.request.is_estimated


def test_a_request_moves_once_its_engine_is_lost_and_waits_if_none_takes_it() -> None:
    world = World()
    world.happens("place", world.attempt(0))
    world.happens("output", Delta("r1", "a", 1, ids={0: [1]}))
    world.now += 1
    moving = world.happens("stop", MoveReason.LOST, None)
    assert moving == [Wait("r1", "moving", 0, 1), Place(paced=True)]
    assert world.happens("refuse", NoEngine()) == [Timer(HOLDING_S)]
    world.now += 2
    (moved,) = world.happens("place", world.attempt(1))
    assert moved == Moved(MoveReason.LOST, MoveResult.RESUMED)
    begun, *_ = world.happens("output", Delta("r1", "b", 1, attempt=2, ids={0: [2]}))
    assert begun == Begun(2)


def test_its_wait_is_bounded_by_what_is_left_of_its_timeout() -> None:
    world = World(timeout_s=3.0)
    world.now += 1
    assert world.happens("hold")[1] == Timer(2.0)
    assert world.request.state in WAITING


def test_a_crash_while_it_crashes_ends_it_all_the_same() -> None:
    world = World()
    world.happens("place", world.attempt(0))
    world.request.reservation = world.request.delivered = cast(Any, None)
    with pytest.raises(AttributeError):
        world.request.crash(world.now)
    world.request.order = None
    cancel, *_, settle = world.happens("crash")
    assert cancel == Cancel("r1", "internal_error", 1)
    assert isinstance(settle, Settle) and settle.done.fault is not None
