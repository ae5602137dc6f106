"""One end of an engine link as a state table: no sockets, no loop, no clock of its own.

Rules
    1. The agent starts with `hello`. The gateway answers `welcome` with the version both speak.
    2. After that each side sends only the frames of its column in `_MAY_SEND`.
    3. An attempt of a request lives from `submit` or `adopt` to `done`, an adapter load from `load`
       to `loaded`; `step`, `cancel` and the ending frames name a living one. A request may have two
       living attempts, with different numbers. A `cancel` may cross the `done` it asks for, or name
       an orphan, so the agent ignores one that names nothing.
    4. A side that sent or received `drain` sends no `submit` and no `load`; one that was already on
       its way is still legal, and the agent refuses it with a `done`.
    5. Each side sends something at least every HEARTBEAT_S; a peer silent for LOST_S is lost. Time
       in which this side itself was stalled, as on a suspended machine, does not count.
    6. `error` is the last frame of a link.
    7. A frame of an open link with an unknown tag is of a newer version: counted, then ignored.

Theory of operation: the shell passes each frame through `sent` before writing it and through
`received` after decoding it. Both either change the state by the rules, or raise and change
nothing. A frame of this side that breaks a rule is `LinkMisuse`, one of the peer's is
`ProtocolViolation`.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import TypeVar

from inference.errors import InferenceError, LinkMisuse, ProtocolViolation
from inference.link.wire import (
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    Adopt,
    Cancel,
    Done,
    Drain,
    Error,
    Frame,
    Gateways,
    Heartbeat,
    Hello,
    Load,
    Loaded,
    OrphanList,
    Others,
    PinnedAdapters,
    Stats,
    Step,
    Submit,
    SuspectList,
    UnknownFrame,
    Unload,
    UsageAck,
    UsageReport,
    Waits,
    Welcome,
)

HEARTBEAT_S = 3.0
LOST_S = 10.0

AttemptKey = tuple[str, int]
"""A request's id, and the number of the attempt."""

T = TypeVar("T")


class LinkSide(Enum):
    """One end of the link."""

    AGENT = "agent"
    GATEWAY = "gateway"

    @property
    def other(self) -> LinkSide:
        return LinkSide.GATEWAY if self is LinkSide.AGENT else LinkSide.AGENT


class LinkState(Enum):
    """The state of the link."""

    CONNECTED = "connected"
    """Nothing was sent; the agent's `hello` is next."""
    GREETED = "greeted"
    """`hello` was sent; the gateway's `welcome` is next."""
    OPEN = "open"
    CLOSED = "closed"


_MAY_SEND: dict[tuple[LinkSide, LinkState], frozenset[type[Frame]]] = {
    (LinkSide.AGENT, LinkState.CONNECTED): frozenset({Hello, Error}),
    (LinkSide.AGENT, LinkState.GREETED): frozenset({Heartbeat, Error}),
    (LinkSide.AGENT, LinkState.OPEN): frozenset(
        {
            Heartbeat,
            Step,
            Waits,
            Done,
            Stats,
            SuspectList,
            OrphanList,
            UsageReport,
            Loaded,
            Drain,
            Error,
        }
    ),
    (LinkSide.GATEWAY, LinkState.CONNECTED): frozenset({Error}),
    (LinkSide.GATEWAY, LinkState.GREETED): frozenset({Welcome, Error}),
    (LinkSide.GATEWAY, LinkState.OPEN): frozenset(
        {
            Heartbeat,
            Gateways,
            Submit,
            Adopt,
            Cancel,
            Others,
            SuspectList,
            UsageAck,
            PinnedAdapters,
            Load,
            Unload,
            Drain,
            Error,
        }
    ),
}

NOTHING: frozenset[type[Frame]] = frozenset()


def negotiate(hello: Hello) -> int:
    """The newest version that both ends speak.

    Raises:
        ProtocolViolation: there is none.
    """
    version = min(hello.newest_version, PROTOCOL_VERSION)
    if version < max(hello.oldest_version, OLDEST_VERSION):
        raise ProtocolViolation(
            f"the engine supports versions {hello.oldest_version} to "
            f"{hello.newest_version}, this gateway {OLDEST_VERSION} to {PROTOCOL_VERSION}"
        )
    return version


class Session:
    """One end of one link. All times are of the caller's monotonic clock, in seconds."""

    def __init__(self, side: LinkSide, now: float) -> None:
        self.side = side
        self._enter(LinkState.CONNECTED)
        self.draining = False
        self.version: int | None = None
        """The version both speak; None until `welcome`."""
        self.unknown = 0
        """Number of received frames with an unknown tag."""
        self._requests: set[AttemptKey] = set()
        self._loads: set[str] = set()
        self._sent_at = now
        self.received_at = now
        """When the peer last sent something."""

    @property
    def requests(self) -> frozenset[AttemptKey]:
        """The living attempts on this link."""
        return frozenset(self._requests)

    def sent(self, frame: Frame, now: float) -> None:
        """Record a frame about to be written.

        Raises:
            LinkMisuse: the rules forbid it now; nothing changed.
        """
        if self.draining and isinstance(frame, Submit | Load):
            raise LinkMisuse(f"{_name(frame)} on a draining link")
        if type(frame) not in self._may_send:
            raise LinkMisuse(self._illegal(frame, self.side))
        self._pass(frame, LinkMisuse)
        self._sent_at = now

    def received(self, frame: Frame, now: float) -> None:
        """Record a received frame.

        Raises:
            ProtocolViolation: the rules forbid it now; nothing changed.
        """
        if isinstance(frame, UnknownFrame) and self.state is LinkState.OPEN:
            self.unknown += 1
        elif type(frame) not in self._may_receive:
            raise ProtocolViolation(self._illegal(frame, self.side.other))
        else:
            self._pass(frame, ProtocolViolation)
        self.received_at = now

    def heartbeat_due(self, now: float) -> bool:
        """Whether the shell should send a heartbeat now."""
        return self.state is LinkState.OPEN and now - self._sent_at >= HEARTBEAT_S

    def held_up(self, late_s: float, now: float) -> None:
        """This side was stalled for `late_s`, so the peer's frames of that time may be unread."""
        self.received_at = min(now, self.received_at + late_s)

    def lost(self, now: float) -> bool:
        """Whether the peer has been silent for too long."""
        return self.state is not LinkState.CLOSED and now - self.received_at >= LOST_S

    def close(self) -> None:
        """The connection ended, for any reason. Nothing may follow."""
        self._enter(LinkState.CLOSED)
        self._requests.clear()
        self._loads.clear()

    def _enter(self, state: LinkState) -> None:
        self.state = state
        self._may_send = _MAY_SEND.get((self.side, state), NOTHING)
        self._may_receive = _MAY_SEND.get((self.side.other, state), NOTHING)

    def _illegal(self, frame: Frame, sender: LinkSide) -> str:
        return f"{sender.value} may not send {_name(frame)} while {self.state.value}"

    def _pass(self, frame: Frame, wrong: type[InferenceError]) -> None:
        self._track(frame, wrong)
        if isinstance(frame, Hello):
            self._enter(LinkState.GREETED)
        elif isinstance(frame, Welcome):
            self._enter(LinkState.OPEN)
            self.version = frame.version
        elif isinstance(frame, Drain):
            self.draining = True
        elif isinstance(frame, Error):
            self.close()

    def _track(self, frame: Frame, wrong: type[InferenceError]) -> None:
        """Apply rule 3."""
        match frame:
            case Step(deltas=deltas):
                for delta in deltas:
                    if (delta.id, delta.attempt) not in self._requests:
                        raise _not_alive((delta.id, delta.attempt), frame, wrong)
            case Submit(id=id, attempt=attempt) | Adopt(id=id, attempt=attempt):
                _begin(self._requests, (id, attempt), frame, wrong)
            case Done(id=id, attempt=attempt):
                _end(self._requests, (id, attempt), frame, wrong)
            case Load(id=id):
                _begin(self._loads, id, frame, wrong)
            case Loaded(id=id):
                _end(self._loads, id, frame, wrong)
            case _:
                pass


def _name(frame: Frame) -> str:
    return type(frame).__name__.lower()


def _begin(living: set[T], name: T, frame: Frame, wrong: type[InferenceError]) -> None:
    if name in living:
        raise wrong(f"{_name(frame)} with the id {name!r}, which is in use")
    living.add(name)


def _end(living: set[T], name: T, frame: Frame, wrong: type[InferenceError]) -> None:
    if name not in living:
        raise _not_alive(name, frame, wrong)
    living.remove(name)


def _not_alive(name: Hashable, frame: Frame, wrong: type[InferenceError]) -> InferenceError:
    return wrong(f"{_name(frame)} for {name!r}, which is not alive")
