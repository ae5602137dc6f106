"""Where the lines of something that is leased come from."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import IO, Protocol

from tenants.batches.reading import MAX_BYTES, lines, request_of
from tenants.batches.window import Line

READ_AT_ONCE, READ_BYTES = 64, 1 << 20
"""Lines that are read from a file at a time, and their size unless it is one line."""


class Source(Protocol):
    """Lines with their requests' bodies, in order; its methods may read files."""

    exhausted: bool
    """Whether there are no further ones."""

    def ahead(self) -> list[tuple[Line, bytes]]:
        """The next ones that have no answers yet."""
        ...

    def body(self, line: Line) -> bytes:
        """That of a line which was read before."""
        ...

    def close(self) -> None: ...


class FileLines:
    """Those of a batch's file, but for those that are `done`."""

    def __init__(self, file: IO[bytes], done: Collection[int]) -> None:
        self.exhausted = False
        self._file, self._done = file, done
        self._unread = lines(file, MAX_BYTES)

    def ahead(self) -> list[tuple[Line, bytes]]:
        """As the source says."""
        found: list[tuple[Line, bytes]] = []
        size = 0
        while len(found) < READ_AT_ONCE and size < READ_BYTES:
            if (new := next(self._unread, None)) is None:
                self.exhausted = True
                break
            if new.number not in self._done:
                line = Line(new.number, new.offset, len(new.text))
                found.append((line, bytes(request_of(new.text).body)))
                size += line.size
        return found

    def body(self, line: Line) -> bytes:
        """As the source says."""
        text = os.pread(self._file.fileno(), line.size, line.offset)
        return bytes(request_of(text).body)

    def close(self) -> None:
        self._file.close()


class OneLine:
    """A line whose body gateways know."""

    def __init__(self, size: int) -> None:
        self.exhausted = False
        self._size = size

    def ahead(self) -> list[tuple[Line, bytes]]:
        """As the source says."""
        self.exhausted = True
        return [(Line(1, 0, self._size), b"")]

    def body(self, line: Line) -> bytes:
        """As the source says."""
        return b""

    def close(self) -> None:
        """Nothing is open."""
