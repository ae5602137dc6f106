"""The answer of one request that asks for a structure, kept until it is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inference.link.wire import Delta, Done
from inference.operations.structure import AskedStructure, FinishedAnswer, StructureOutcome

MAX_BYTES = 1 << 20
"""Most bytes of an answer that is checked: some 4,000 tokens of a stream, whose chunks have 250
bytes each, and many more of a whole answer."""
STEP_BYTES = 16 << 10
"""Room is taken in steps, not for each token."""
EACH_BYTES = 1 << 10
CHARACTER_BYTES = 4
CALLS = b'"tool_calls"'
"""Is part of each chunk or response that has tool calls."""

OutcomeCallback = Callable[[StructureOutcome | None], None]


class RecordingChecks(Protocol):
    """Where recordings have their room, and are checked."""

    def take(self, tenant_id: int, amount: int) -> bool:
        """Take bytes of the room; False if there are none."""

    def give_back(self, tenant_id: int, amount: int) -> None:
        """Return bytes of the room."""

    def check(self, recording: StructureRecording) -> None:
        """Check it, and then call its `tell`."""


class StructureRecording:
    """Call `add` for each delta in order and then `end` or `drop`. Its outcome is known some time
    after `end`."""

    def __init__(self, checks: RecordingChecks, tenant_id: int, asked: AskedStructure) -> None:
        self.tenant_id, self.asked = tenant_id, asked
        self.answer = FinishedAnswer()
        """Set by `end`."""
        self._checks = checks
        self._texts: list[str] = []
        self._parts: list[bytes] = []
        self._bytes = self._taken = 0
        self._outcome: StructureOutcome | None = None
        self._is_over = False
        self._callbacks: list[OutcomeCallback] = []
        self._fits = self._grow(EACH_BYTES + len(asked.format) + len(asked.outputs)
                                + len(asked.tools))  # fmt: skip

    def add(self, delta: Delta) -> None:
        """Record a delta. Each token must come once."""
        size = sum(map(len, delta.chunks)) or CHARACTER_BYTES * len(delta.text)
        if self._fits and self._grow(size):
            self._parts += delta.chunks
            if delta.text and not delta.chunks:
                self._texts.append(delta.text)

    def end(self, done: Done) -> None:
        """The answer is finished: check it."""
        if done.response is not None and self._grow(len(done.response)):
            self._parts = [done.response]
        if not self._fits:
            return self.tell(StructureOutcome.UNCHECKED)
        if self.asked.only_tools and not any(CALLS in part for part in self._parts):
            return self.tell(None)
        text, reason = "".join(self._texts), done.finish_reason or ""
        self.answer = FinishedAnswer(text, self._parts, reason)
        self._checks.check(self)

    def drop(self) -> None:
        """There is no finished answer."""
        self.tell(None)

    def tell(self, outcome: StructureOutcome | None) -> None:
        """Set the outcome, and free what was recorded. Only the first call has an effect."""
        if self._is_over:
            return
        self._is_over, self._outcome = True, outcome
        self._empty()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(outcome)

    def on_outcome(self, callback: OutcomeCallback) -> None:
        """Call `callback` with the outcome once it is known; at once, if it is already."""
        if self._is_over:
            callback(self._outcome)
        else:
            self._callbacks.append(callback)

    def _grow(self, size: int) -> bool:
        """Whether there is room for `size` more bytes; if not, nothing is kept from now on."""
        self._bytes += size
        more = -(-(self._bytes - self._taken) // STEP_BYTES) * STEP_BYTES
        self._fits = self._bytes <= MAX_BYTES and (
            more <= 0 or self._checks.take(self.tenant_id, more)
        )
        if not self._fits:
            self._empty()
        elif more > 0:
            self._taken += more
        return self._fits

    def _empty(self) -> None:
        self._checks.give_back(self.tenant_id, self._taken)
        self._taken, self._texts, self._parts, self.answer = 0, [], [], FinishedAnswer()
