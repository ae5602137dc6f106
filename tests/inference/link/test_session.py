"""The session as a state table: frames in, state or an error out."""

from __future__ import annotations

import msgspec
import pytest

from inference.errors import EngineLost, InvalidRequest, LinkMisuse, ProtocolViolation
from inference.link import wire
from inference.link.accounts import NOBODY, Usage
from inference.link.engine_info import EngineStats
from inference.link.session import HEARTBEAT_S, LOST_S, LinkSide, LinkState, Session, negotiate
from inference.link.wire import Frame
from tests.inference.samples import MODEL, REF

pytestmark = pytest.mark.pure

HELLO = wire.Hello(1, 1, "engine-1", MODEL)
WELCOME = wire.Welcome(1, "http://gateway", [])
NEWER = wire.PROTOCOL_VERSION + 1
SUBMIT = wire.Submit("r1", "chat", b"{}", "m", "acme", "salt")
ADOPT = wire.Adopt("r1", 1001, 1, NOBODY)
STEP = wire.Step([wire.Delta("r1", "hi", 1)])
DONE = wire.Done("r1", Usage())
LOAD = wire.Load("l1", REF)
LOADED = wire.Loaded("l1", {})
ERROR = wire.Error(wire.Fault.of(EngineLost()))
FRAMES: list[Frame] = [
    HELLO, WELCOME, wire.Gateways([]), wire.Heartbeat(), SUBMIT, STEP, DONE,
    wire.Cancel("r1", "stop"), wire.Stats(EngineStats()), LOAD, LOADED,
    wire.Unload("d"), wire.Drain(), ERROR, wire.Waits([wire.Wait("r1", "prefill")]),
    wire.OrphanList(), ADOPT,
]  # fmt: skip
FROM_AGENT = (
    wire.Heartbeat, wire.Step, wire.Waits, wire.Done, wire.Stats, wire.Loaded, wire.Drain,
    wire.Error, wire.OrphanList,
)  # fmt: skip
FROM_GATEWAY = (
    wire.Heartbeat, wire.Gateways, wire.Submit, wire.Cancel, wire.Load, wire.Unload, wire.Drain,
    wire.Error, wire.Adopt,
)  # fmt: skip
LEGAL = {
    (LinkSide.AGENT, LinkState.CONNECTED): (wire.Hello, wire.Error),
    (LinkSide.AGENT, LinkState.GREETED): (wire.Heartbeat, wire.Error),
    (LinkSide.AGENT, LinkState.OPEN): FROM_AGENT,
    (LinkSide.AGENT, LinkState.CLOSED): (),
    (LinkSide.GATEWAY, LinkState.CONNECTED): (wire.Error,),
    (LinkSide.GATEWAY, LinkState.GREETED): (wire.Welcome, wire.Error),
    (LinkSide.GATEWAY, LinkState.OPEN): FROM_GATEWAY,
    (LinkSide.GATEWAY, LinkState.CLOSED): (),
}


def pair(state: LinkState) -> tuple[Session, Session]:
    """Both ends of a link in this state; open ones have one request and one load alive."""
    agent, gateway = Session(LinkSide.AGENT, 0.0), Session(LinkSide.GATEWAY, 0.0)
    if state is not LinkState.CONNECTED:
        tell(agent, gateway, HELLO)
    if state in (LinkState.OPEN, LinkState.CLOSED):
        tell(gateway, agent, WELCOME)
        tell(gateway, agent, SUBMIT)
        tell(gateway, agent, LOAD)
    if state is LinkState.CLOSED:
        agent.close()
        gateway.close()
    return agent, gateway


def tell(sender: Session, receiver: Session, frame: Frame, now: float = 0.0) -> None:
    sender.sent(frame, now)
    receiver.received(frame, now)


def facts(session: Session) -> tuple[object, ...]:
    return (session.state, session.draining, session.version, session.requests)


def fresh_ids(frame: Frame) -> Frame:
    """The frame, with an unused id if it begins a request or a load."""
    if isinstance(frame, wire.Submit):
        return wire.Submit("r2", "chat", b"{}", "m", "acme", "salt")
    return wire.Load("l2", REF) if isinstance(frame, wire.Load) else frame


@pytest.mark.parametrize("side", LinkSide)
@pytest.mark.parametrize("state", LinkState)
@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_in_every_state_from_either_side(
    side: LinkSide, state: LinkState, frame: Frame
) -> None:
    agent, gateway = pair(state)
    sender, receiver = (agent, gateway) if side is LinkSide.AGENT else (gateway, agent)
    before = facts(sender), facts(receiver)
    frame = fresh_ids(frame)
    if isinstance(frame, LEGAL[side, state]):
        tell(sender, receiver, frame)
        return
    with pytest.raises(LinkMisuse):
        sender.sent(frame, 1.0)
    with pytest.raises(ProtocolViolation):
        receiver.received(frame, 1.0)
    assert (facts(sender), facts(receiver)) == before


def test_a_link_opens_with_hello_and_welcome() -> None:
    agent, gateway = pair(LinkState.CONNECTED)
    tell(agent, gateway, HELLO)
    assert (agent.state, gateway.state) == (LinkState.GREETED, LinkState.GREETED)
    tell(gateway, agent, WELCOME)
    assert (agent.state, gateway.state) == (LinkState.OPEN, LinkState.OPEN)
    assert agent.version == gateway.version == 1


@pytest.mark.parametrize(
    "frame", [STEP, DONE, LOADED, wire.Step([STEP.deltas[0], wire.Delta("r9")])]
)
def test_frames_about_unknown_requests_are_refused_and_change_nothing(frame: Frame) -> None:
    agent, gateway = pair(LinkState.OPEN)
    tell(agent, gateway, DONE)
    tell(agent, gateway, LOADED)
    before = facts(gateway)
    with pytest.raises(ProtocolViolation, match="not alive"):
        gateway.received(frame, 0.0)
    with pytest.raises(LinkMisuse, match="not alive"):
        agent.sent(frame, 0.0)
    assert facts(gateway) == before


@pytest.mark.parametrize("frame", [SUBMIT, LOAD])
def test_an_id_in_use_may_not_begin_again(frame: Frame) -> None:
    agent, gateway = pair(LinkState.OPEN)
    with pytest.raises(ProtocolViolation, match="in use"):
        agent.received(frame, 0.0)
    with pytest.raises(LinkMisuse, match="in use"):
        gateway.sent(frame, 0.0)


def test_a_request_lives_from_submit_to_done_and_its_id_may_then_return() -> None:
    agent, gateway = pair(LinkState.OPEN)
    assert gateway.requests == agent.requests == {("r1", 1)}
    tell(agent, gateway, STEP)
    tell(agent, gateway, DONE)
    assert gateway.requests == agent.requests == frozenset()
    tell(gateway, agent, SUBMIT)
    assert agent.requests == {("r1", 1)}


def test_a_request_may_live_under_two_attempts_but_not_twice_under_one() -> None:
    agent, gateway = pair(LinkState.OPEN)
    again = msgspec.structs.replace(SUBMIT, attempt=2)
    tell(gateway, agent, again)
    with pytest.raises(LinkMisuse, match="in use"):
        gateway.sent(again, 0.0)
    tell(agent, gateway, wire.Done("r1", Usage(), "stop", attempt=2))
    assert gateway.requests == agent.requests == {("r1", 1)}
    with pytest.raises(ProtocolViolation, match="not alive"):
        gateway.received(wire.Step([wire.Delta("r1", attempt=2)]), 0.0)
    tell(agent, gateway, STEP)


def test_an_adopted_request_lives_to_its_done_and_may_begin_on_a_draining_link() -> None:
    agent, gateway = pair(LinkState.OPEN)
    tell(agent, gateway, wire.Drain())
    tell(gateway, agent, ADOPT)
    assert ("r1", 1001) in agent.requests
    with pytest.raises(LinkMisuse):
        gateway.sent(ADOPT, 0.0)
    tell(agent, gateway, wire.Step([wire.Delta("r1", "all", 1, attempt=1001)]))
    tell(agent, gateway, wire.Done("r1", Usage(), attempt=1001))
    assert ("r1", 1001) not in gateway.requests


def test_an_unknown_frame_is_counted_and_a_sign_of_life() -> None:
    agent, gateway = pair(LinkState.OPEN)
    before = facts(gateway)
    unknown = wire.decode(b"\x92\xa5hullo\x01")
    assert unknown == wire.UnknownFrame("hullo")
    gateway.received(unknown, LOST_S)
    agent.received(unknown, LOST_S)
    assert (gateway.unknown, agent.unknown) == (1, 1)
    assert facts(gateway) == before
    assert not gateway.lost(LOST_S + 1)


@pytest.mark.parametrize("state", [LinkState.CONNECTED, LinkState.GREETED, LinkState.CLOSED])
def test_an_unknown_frame_does_not_open_a_link(state: LinkState) -> None:
    _, gateway = pair(state)
    with pytest.raises(ProtocolViolation):
        gateway.received(wire.UnknownFrame("hullo"), 0.0)
    assert gateway.unknown == 0


def test_a_cancel_may_cross_the_done_that_it_asks_for() -> None:
    agent, gateway = pair(LinkState.OPEN)
    agent.sent(DONE, 0.0)
    tell(gateway, agent, wire.Cancel("r1", "cancelled"))
    gateway.received(DONE, 0.0)


@pytest.mark.parametrize("drainer", LinkSide)
@pytest.mark.parametrize("frame", [SUBMIT, LOAD])
def test_nothing_new_is_sent_on_a_draining_link(drainer: LinkSide, frame: Frame) -> None:
    agent, gateway = pair(LinkState.OPEN)
    if drainer is LinkSide.AGENT:
        tell(agent, gateway, wire.Drain())
    else:
        tell(gateway, agent, wire.Drain())
    with pytest.raises(LinkMisuse, match="draining"):
        gateway.sent(fresh_ids(frame), 0.0)
    tell(agent, gateway, DONE)


def test_a_submit_that_crossed_the_drain_is_legal_for_the_agent() -> None:
    agent, gateway = pair(LinkState.OPEN)
    agent.sent(wire.Drain(), 0.0)
    tell(gateway, agent, fresh_ids(SUBMIT))
    assert agent.requests == {("r1", 1), ("r2", 1)}


def test_heartbeats_are_due_after_silence_of_ours() -> None:
    agent, gateway = pair(LinkState.OPEN)
    assert not agent.heartbeat_due(HEARTBEAT_S - 0.01)
    assert agent.heartbeat_due(HEARTBEAT_S)
    tell(agent, gateway, wire.Heartbeat(), HEARTBEAT_S)
    assert not agent.heartbeat_due(HEARTBEAT_S + 0.01)


def test_no_heartbeat_before_the_link_is_open() -> None:
    agent, _ = pair(LinkState.GREETED)
    assert not agent.heartbeat_due(HEARTBEAT_S * 2)


def test_a_silent_peer_is_lost_and_any_frame_of_its_saves_it() -> None:
    agent, gateway = pair(LinkState.OPEN)
    assert not gateway.lost(LOST_S - 0.01)
    assert gateway.lost(LOST_S)
    tell(agent, gateway, wire.Heartbeat(), LOST_S)
    assert not gateway.lost(LOST_S + 1)
    gateway.close()
    assert not gateway.lost(LOST_S * 9)


def test_a_blocked_process_does_not_count_its_peer_as_silent() -> None:
    _, gateway = pair(LinkState.OPEN)
    gateway.held_up(3 * LOST_S, 3 * LOST_S)
    assert not gateway.lost(4 * LOST_S - 0.01)
    gateway.held_up(2 * LOST_S, 4 * LOST_S - 0.01)
    assert gateway.lost(5 * LOST_S), "nothing is heard before it is said"


def test_a_refused_frame_does_not_count_as_a_sign_of_life() -> None:
    _, gateway = pair(LinkState.OPEN)
    with pytest.raises(ProtocolViolation):
        gateway.received(SUBMIT, LOST_S)
    assert gateway.lost(LOST_S)


def test_error_ends_the_link() -> None:
    agent, gateway = pair(LinkState.OPEN)
    tell(gateway, agent, ERROR)
    assert agent.state is gateway.state is LinkState.CLOSED
    assert agent.requests == frozenset()


@pytest.mark.parametrize(
    ("oldest", "newest", "spoken"),
    [(1, 1, 1), (1, NEWER, wire.PROTOCOL_VERSION), (0, 1, 1)],
)
def test_the_newest_common_version_is_spoken(oldest: int, newest: int, spoken: int) -> None:
    assert negotiate(wire.Hello(oldest, newest, "e", MODEL)) == spoken


@pytest.mark.parametrize(("oldest", "newest"), [(NEWER, NEWER + 1), (0, 0)])
def test_no_common_version_is_a_violation(oldest: int, newest: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"{oldest} to {newest}"):
        negotiate(wire.Hello(oldest, newest, "e", MODEL))


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_each_frame_survives_the_wire(frame: Frame) -> None:
    assert wire.decode(wire.encode(frame)) == frame


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"\x90", b"\x91\x01", b"\x93\xa4step\x01\x02", b"{}"]
)
def test_garbage_is_a_violation(message: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not a frame"):
        wire.decode(message)


def test_an_oversized_message_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="over"):
        wire.decode(bytes(wire.MAX_FRAME_BYTES + 1))


def test_deltas_merge_in_order() -> None:
    first = wire.Delta("r", "a", 1, [b"1"], 5, 3)
    later = wire.Delta("r", "b", 2, [b"2"])
    assert first.merged(later) == wire.Delta("r", "ab", 3, [b"1", b"2"], 5, 3)
    assert first.merged(wire.Delta("r", "b", 2)).chunks == [b"1"]


def test_deltas_merge_the_ids_of_each_choice() -> None:
    first = wire.Delta("r", tokens=3, attempt=2, ids={0: [1, 2], 1: [3]})
    later = wire.Delta("r", tokens=2, attempt=2, ids={1: [4], 2: [5]})
    merged = first.merged(later)
    assert (merged.attempt, merged.ids) == (2, {0: [1, 2], 1: [3, 4], 2: [5]})
    assert first.ids == {0: [1, 2], 1: [3]}, "it is not changed"


def test_a_fault_becomes_the_error_it_came_from() -> None:
    error = wire.Fault.of(InvalidRequest("no", param="n", retry_after_s=2)).error()
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.param, error.retry_after_s) == ("no", "n", 2)
    assert wire.Fault("from-the-future", "x").error().code == "internal_error"


def test_an_answer_too_long_for_a_frame_is_an_error_of_its_request() -> None:
    def done(length: int) -> wire.Done:
        return wire.Done("r", Usage(5, 0, 3), "stop", bytes(length))

    longest = done(wire.MAX_FRAME_BYTES // 2)
    assert longest.sendable() is longest
    sent = done(wire.MAX_FRAME_BYTES // 2 + 1).sendable()
    assert (sent.id, sent.usage, sent.response) == ("r", longest.usage, None)
    assert sent.fault is not None and sent.fault.error().param == "stream"
