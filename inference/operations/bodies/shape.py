"""How much a JSON body holds besides its bytes, counted as they arrive and before any parser.

A parser makes an object of each value: 600,000 keys in 7 MB are a third of a second of a loop that
everybody's streams share. Counting takes a few nanoseconds a byte, a part of the body at a time,
and ends at the bounds.

Exact for JSON. In what is none, a parser stops at the first wrong byte, and up to there the counts
are right.
"""

from __future__ import annotations

from itertools import accumulate

from inference.errors import InvalidRequest

MAX_VALUES = 50_000
"""Of a body, apart from a prompt's tokens: each makes an object in gateway and agent, and vLLM's
reader finds fault with each wrong one, several times."""
MAX_DEPTH = 128
"""Objects and arrays within each other. Readers, templates and grammars recurse."""

_OPEN, _CLOSE = b"[{", b"]}"
_STEPS = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(set(range(256)) - set(_OPEN + _CLOSE))


class Shape:
    """The counts of one body: `feed` it part by part. With `begin` before each, of several texts.

    `numbers` may come in arrays beside MAX_VALUES other values.
    """

    def __init__(self, numbers: int = 0) -> None:
        self._elements_left = MAX_VALUES + numbers
        self._containers_left = MAX_VALUES
        self._strings_left = 2 * MAX_VALUES
        """An object's entry has two."""
        self.begin()

    def begin(self) -> None:
        """Another text comes; what was counted stays."""
        self._depth = 0
        self._in_string = False
        self._carried = b""
        """A backslash of which the next part says what it escapes."""

    def feed(self, part: bytes) -> None:
        """Count the next bytes.

        Raises:
            InvalidRequest: with them it is too much.
        """
        outside = self._outside_strings(part)
        containers = outside.count(b"{") + outside.count(b"[")
        self._elements_left -= containers + outside.count(b",")
        self._containers_left -= containers
        if min(self._elements_left, self._containers_left, self._strings_left) < 0:
            raise InvalidRequest(f"The body holds more than {MAX_VALUES} values.")
        if containers:
            self._descend(outside)
        else:
            self._depth -= outside.count(b"}") + outside.count(b"]")

    def _outside_strings(self, part: bytes) -> bytes:
        part = self._carried + part
        self._carried = b""
        if b"\\" in part:
            if (len(part) - len(part.rstrip(b"\\"))) % 2:
                part, self._carried = part[:-1], b"\\"
            part = part.replace(rb"\\", b"").replace(rb"\"", b"")
        pieces = part.split(b'"')
        outside = b'"'.join(pieces[self._in_string :: 2])
        self._strings_left -= len(pieces) // 2
        self._in_string ^= len(pieces) % 2 == 0
        return outside

    def _descend(self, outside: bytes) -> None:
        steps = memoryview(outside.translate(_STEPS, _NOT_BRACKETS)).cast("b")
        depths = list(accumulate(steps, initial=self._depth))
        if max(depths) > MAX_DEPTH:
            raise InvalidRequest(f"The body nests more than {MAX_DEPTH} levels deep.")
        self._depth = depths[-1]
