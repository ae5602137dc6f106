"""Which prompts' beginnings one engine's prefix cache holds, as far as a gateway knows.

What the engine tells is exact and as old as its last report. What was dispatched to it is taken to
be warm from that moment on, so that the next request that begins alike follows it at once. Of an
engine that tells, such a guess holds until it should have been confirmed; of one that doesn't,
until the engine's cache must have been filled anew.

A beginning is a hash over all that comes before its end
(`inference.operations.bodies.beginnings`), so whoever holds a long one holds the shorter ones too,
unless they were forgotten first: therefore the shortest is always the freshest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from inference.link.wire import HASH_BYTES, numbers_of

MAX_TOLD = 4096
"""Beginnings that are taken from an engine: half a million tokens, in strides of 512 characters,
and 0.3 MB. Agents tell no more."""
MAX_HEARD_BYTES = 2 * MAX_TOLD * HASH_BYTES
"""Of one report: as many changes as an agent keeps. More than that is not heard."""
MAX_GUESSED = 2048
"""0.3 MB."""
CONFIRMED_WITHIN = 10
"""Reports, of which there is one a second: a guess that none of so many confirms was wrong, or its
request still waits."""


class Warmth:
    """The beginnings that one engine holds. Bounded in number, and in tokens as far as guessed."""

    __slots__ = ("_capacity_tokens", "_guessed", "_guessed_tokens", "_reports", "known", "tells")

    def __init__(self, capacity_tokens: int, told: bytes | None) -> None:
        """`told` are the hashes of what the engine says that it holds (`wire.Hello`), None if it
        never does."""
        self.known: set[int] = set()
        """All of them, for whoever asks for one."""
        self.tells = told is not None
        self._capacity_tokens = capacity_tokens
        self._guessed: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Those that the engine did not tell, with their tokens since the next shorter one, and the
        number of the report before; the oldest first."""
        self._guessed_tokens = 0
        self._reports = 0
        self._add(told or b"")

    def longest(self, hashes: Sequence[int]) -> int:
        """How many of these beginnings of one prompt, the shortest first, the engine holds."""
        known = self.known
        if not hashes or hashes[0] not in known:
            return 0
        held, missing = 0, len(hashes)
        while missing - held > 1:
            middle = (held + missing) // 2
            if hashes[middle] in known:
                held = middle
            else:
                missing = middle
        return held + 1

    def guess(self, hashes: Sequence[int], tokens: Sequence[int]) -> None:
        """A prompt with these beginnings, the shortest first, was dispatched to it; `tokens` says
        how many each has."""
        before = (0, *tokens)
        for at in reversed(range(len(hashes))):
            hash = hashes[at]
            if hash not in self.known or hash in self._guessed:
                self._forget(hash)
                more = before[at + 1] - before[at]
                self._guessed[hash] = more, self._reports
                self._guessed_tokens += more
                self.known.add(hash)
        while len(self._guessed) > MAX_GUESSED or self._guessed_tokens > self._capacity_tokens:
            self._forget(next(iter(self._guessed)))

    def hear(self, warm: bytes, cold: bytes, *, anew: bool, between: bool = False) -> None:
        """The engine reports (`wire.Stats`): these became warm and those cold, since the last time
        or, `anew`, since it began."""
        self._reports += not between
        if anew:
            self.known = set(self._guessed)
        for hash in numbers_of(cold[:MAX_HEARD_BYTES]):
            self._forget(hash)
        self._add(warm)
        while self.tells and self._guessed:
            oldest = next(iter(self._guessed))
            if self._reports - self._guessed[oldest][1] <= CONFIRMED_WITHIN:
                break
            self._forget(oldest)

    def _add(self, told: bytes) -> None:
        known, guessed = self.known, self._guessed
        for hash in numbers_of(told[:MAX_HEARD_BYTES]):
            if hash in guessed:
                self._forget(hash)
            if len(known) - len(guessed) < MAX_TOLD:
                known.add(hash)

    def _forget(self, hash: int) -> None:
        self.known.discard(hash)
        if (guess := self._guessed.pop(hash, None)) is not None:
            self._guessed_tokens -= guess[0]
