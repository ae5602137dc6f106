"""Which beginnings of prompts one engine's prefix cache holds, as far as a gateway knows.

What the engine reports is exact, but as old as its last report. The beginnings of a dispatched
prompt are guessed to be warm from that moment on, so that the next request with the same beginning
follows it at once. If the engine reports, a guess holds until it should have been confirmed;
otherwise until the engine's cache must have been refilled.

A beginning is a hash over everything before its end (`inference.operations.bodies.beginnings`), so
an engine that holds a long one also holds the shorter ones. To keep this true when the oldest
guesses are forgotten, the shortest beginning of a prompt is always the freshest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from inference.link.prefixes import HASH_BYTES, numbers_of

MAX_REPORTED = 4096
"""Beginnings kept of what an engine reports: half a million tokens in strides of 512 characters,
and 0.3 MB. Agents report no more."""
MAX_REPORT_BYTES = 2 * MAX_REPORTED * HASH_BYTES
"""Bytes read of one report: as many changes as an agent keeps. The rest is ignored."""
MAX_GUESSED = 2048
"""Guessed beginnings, 0.3 MB."""
CONFIRMED_WITHIN = 10
"""Reports, one a second: a guess that none of this many confirmed was wrong, or its request still
waits."""


class Warmth:
    """The beginnings that one engine holds. Bounded in number, and in tokens as far as guessed."""

    __slots__ = (
        "_capacity_tokens", "_guessed", "_guessed_tokens", "_reports", "is_reported", "known",
    )  # fmt: skip

    def __init__(self, capacity_tokens: int, reported: bytes | None) -> None:
        """`reported` are the hashes that the engine reports to hold (`wire.Hello`); None if it
        never reports any."""
        self.known: set[int] = set()
        """All beginnings, reported and guessed."""
        self.is_reported = reported is not None
        self._capacity_tokens = capacity_tokens
        self._guessed: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Beginnings that the engine did not report, oldest first, with their tokens beyond the
        next shorter one and the number of the report before."""
        self._guessed_tokens = 0
        self._reports = 0
        self._add(reported or b"")

    def longest(self, hashes: Sequence[int]) -> int:
        """How many of one prompt's beginnings, shortest first, the engine holds."""
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
        """A prompt with these beginnings, shortest first, was dispatched to the engine; `tokens`
        has the length of each."""
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

    def update(self, warm: bytes, cold: bytes, *, anew: bool, between: bool = False) -> None:
        """Take the engine's report (`wire.Stats`) of beginnings that became warm and cold since the
        last one. With `anew` nothing reported before still counts."""
        self._reports += not between
        if anew:
            self.known = set(self._guessed)
        for hash in numbers_of(cold[:MAX_REPORT_BYTES]):
            self._forget(hash)
        self._add(warm)
        while self.is_reported and self._guessed:
            oldest = next(iter(self._guessed))
            if self._reports - self._guessed[oldest][1] <= CONFIRMED_WITHIN:
                break
            self._forget(oldest)

    def _add(self, reported: bytes) -> None:
        known, guessed = self.known, self._guessed
        for hash in numbers_of(reported[:MAX_REPORT_BYTES]):
            if hash in guessed:
                self._forget(hash)
            if len(known) - len(guessed) < MAX_REPORTED:
                known.add(hash)

    def _forget(self, hash: int) -> None:
        self.known.discard(hash)
        if (guess := self._guessed.pop(hash, None)) is not None:
            self._guessed_tokens -= guess[0]
