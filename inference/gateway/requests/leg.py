"""One attempt of a request, on the link of its engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from inference.gateway.fleet.dispatches import Bounds
from inference.link.wire import Done
from inference.tracing import Attributes, Span

if TYPE_CHECKING:
    from inference.gateway.fleet.engine_link import EngineLink
    from inference.gateway.requests.stream import Stream


class LegOwner(Protocol):
    """Sends requests to engines; called back by their links."""

    def begun(self, leg: Leg) -> None:
        """The engine sent the first output of this attempt."""
        ...

    def ended(self, leg: Leg, done: Done) -> None:
        """The engine sent `done` for this attempt."""
        ...

    def lost(self, leg: Leg) -> None:
        """The link to the engine ended."""
        ...


@dataclass(slots=True, eq=False)
class Leg:
    """`most` bounds the usage accepted from its engine, of this attempt and lower ones together."""

    owner: LegOwner
    stream: Stream
    link: EngineLink
    attempt: int
    most: Bounds
    keeps: bool = False
    """Whether its engine keeps the answer for other gateways."""
    has_begun: bool = False
    news_at: float = 0.0
    """Monotonic time at which its engine last sent some of its output."""
    span: Span | None = None
    """Set if the request is traced."""
    sent_at: float = field(default_factory=time.monotonic)

    def end_span(self, error: str) -> None:
        """End the attempt's span; `error` says why the engine did not complete the request."""
        if self.span is not None:
            engine: Attributes = {
                "lorikeet.engine": self.link.engine.id,
                "lorikeet.attempt": self.attempt,
            }
            self.span.end(attributes=engine, error=error)

    def believed(self, done: Done) -> Done:
        """`done` with its usage clamped to `most`: limits are charged with that usage, so an engine
        could otherwise use up a tenant's budget."""
        usage = self.most.clamped(done.usage)
        return done if usage is done.usage else msgspec.structs.replace(done, usage=usage)
