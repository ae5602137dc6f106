"""One attempt of a request: what the gateway knows about its run on one engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from inference.gateway.fleet.dispatches import Bounds
from inference.gateway.routing.engine_state import EngineState
from inference.link.wire import Done
from inference.tracing import Attributes, Span

if TYPE_CHECKING:
    from inference.gateway.fleet.engine_link import EngineLink


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a request, on the link of its engine.

    `most` bounds the usage accepted from its engine, of this attempt and lower ones together.
    """

    link: EngineLink
    number: int
    """1 for the first, and higher for each later one of the request (`accounts.turn_of`)."""
    most: Bounds
    sent_at: float
    """Monotonic time in seconds, as all times here."""
    prefill_s: float | None = None
    """Set if it only computes the prompt: how long that may take (`routing.prefill`)."""
    keeps: bool = False
    """Whether its engine keeps the answer for other gateways."""
    has_begun: bool = False
    """Whether its engine has sent any output."""
    recalled: bool = False
    """Whether its engine was asked to give it back, if it has not begun it."""
    last_output_at: float = 0.0
    span: Span | None = None
    """Set if the request is traced."""

    @property
    def prefills(self) -> bool:
        """Whether it only computes the prompt, and has no reader."""
        return self.prefill_s is not None

    @property
    def engine(self) -> EngineState:
        return self.link.engine

    def end_span(self, error: str) -> None:
        """End the attempt's span; `error` says why the engine did not complete the request."""
        if self.span is not None:
            engine: Attributes = {
                "lorikeet.engine": self.engine.id,
                "lorikeet.attempt": self.number,
            }
            self.span.end(attributes=engine, error=error)

    def clamped(self, done: Done) -> Done:
        """`done` with its usage clamped to `most`: limits are charged with that usage, so an engine
        could otherwise use up a tenant's budget."""
        usage = self.most.clamped(done.usage)
        return done if usage is done.usage else msgspec.structs.replace(done, usage=usage)
