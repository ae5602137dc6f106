"""Counts the values and nesting of a JSON body as its bytes arrive, before any parser, and checks
that it is UTF-8.

A parser makes an object of each value: 600,000 keys in 7 MB take a third of a second of a loop that
all clients' streams share. Counting takes a few nanoseconds per byte, one part of the body at a
time, and stops at the bounds.

The counts are exact for JSON. For anything else, a parser stops at the first wrong byte, and up to
there the counts are right.
"""

from __future__ import annotations

from codecs import utf_8_decode
from itertools import accumulate

from inference.errors import InvalidRequest

MAX_VALUES = 50_000
"""Most values in a body, not counting a prompt's tokens: each becomes an object in gateway and
agent, and vLLM's validation reports each wrong one several times."""
MAX_DEPTH = 128
"""Most levels of nested objects and arrays: parsers, templates and grammars recurse."""

_OPEN, _CLOSE = b"[{", b"]}"
_STEPS = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(set(range(256)) - set(_OPEN + _CLOSE))
PART_BYTES = 1 << 16
"""Counted at a time. In larger parts the work for each byte can be fifty times as much: a list of
their brackets no longer fits the processor's cache, and a bound is found later."""


class BodyShape:
    """The counts of one body: `feed` it part by part. To count several texts together, call `begin`
    before each.

    There may be `numbers` in arrays in addition to MAX_VALUES other values.
    """

    def __init__(self, numbers: int = 0) -> None:
        self._most = MAX_VALUES + numbers
        self._elements_left = self._most
        self._containers_left = MAX_VALUES
        self._strings_left = 2 * MAX_VALUES
        """Twice as many, because an object's entry may have two."""
        self.begin()

    def begin(self) -> None:
        """Begin another text; the counts so far are kept."""
        self._depth = 0
        self._ended = False
        """Something is closed that was never opened: a parser reads no further."""
        self._in_string = False
        self._carried = b""
        """A backslash at the end of a part: the next part has the character that it escapes."""
        self._cut, self._read = b"", 0
        """The beginning of a character at the end of a part, and the bytes before it."""

    def feed(self, part: bytes) -> None:
        """Count the next bytes.

        Raises:
            InvalidRequest: a bound is exceeded, or it is not UTF-8.
        """
        for start in range(0, len(part), PART_BYTES):
            piece = part[start : start + PART_BYTES]
            self._check_text(piece)
            if not self._ended:
                self._count(piece)

    def _check_text(self, part: bytes) -> None:
        """What a character lacks at the end of a body is no matter: no JSON ends in one."""
        text = self._cut + part
        try:
            read = len(text) if text.isascii() else utf_8_decode(text, "strict", False)[1]
        except UnicodeDecodeError as error:
            at = self._read + error.start
            raise InvalidRequest(f"The body is not UTF-8: {error.reason} at byte {at}.") from None
        self._cut, self._read = text[read:], self._read + read

    def _count(self, part: bytes) -> None:
        outside = self._outside_strings(part)
        containers = outside.count(b"{") + outside.count(b"[")
        self._elements_left -= containers + outside.count(b",")
        self._containers_left -= containers
        if self._elements_left < 0:
            raise InvalidRequest(f"The body has more than {self._most} values.")
        if min(self._containers_left, self._strings_left) < 0:
            raise InvalidRequest(f"The body has more than {MAX_VALUES} values besides numbers.")
        if self._depth + containers > MAX_DEPTH:
            self._descend(outside)
        else:
            self._depth += containers - outside.count(b"}") - outside.count(b"]")
        self._ended = self._depth < 0

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
            raise InvalidRequest(f"The body is nested more than {MAX_DEPTH} levels deep.")
        self._depth = depths[-1]
