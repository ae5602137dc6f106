"""One attempt of a request, on the link of the engine that tries it."""

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
    """Who sends requests to engines, and hears from their links how that went."""

    def begun(self, leg: Leg) -> None:
        """Its engine sends something of it, for the first time."""
        ...

    def ended(self, leg: Leg, done: Done) -> None:
        """Its engine said the last word on it."""
        ...

    def lost(self, leg: Leg) -> None:
        """Its engine's link ended."""
        ...


@dataclass(slots=True, eq=False)
class Leg:
    """`most` is what its engine is believed, of lower attempts and this one together."""

    owner: LegOwner
    stream: Stream
    link: EngineLink
    attempt: int
    most: Bounds
    keeps: bool = False
    """Its engine keeps the answer for other gateways."""
    has_begun: bool = False
    news_at: float = 0.0
    """Of the monotonic clock: when its engine last sent something of it."""
    span: Span | None = None
    """Where it is traced."""
    sent_at: float = field(default_factory=time.monotonic)

    def end_span(self, error: str) -> None:
        """Its engine has done with it; `error` says why it was not brought to its end there."""
        if self.span is not None:
            engine: Attributes = {
                "lorikeet.engine": self.link.engine.id,
                "lorikeet.attempt": self.attempt,
            }
            self.span.end(attributes=engine, error=error)

    def believed(self, done: Done) -> Done:
        """What it says is reserved in its place, so it could use up somebody's budget."""
        usage = self.most.clamped(done.usage)
        return done if usage is done.usage else msgspec.structs.replace(done, usage=usage)
