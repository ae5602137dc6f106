"""Where the lines of a leased batch or background response come from."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import IO, Protocol

from tenants.batches.reading import MAX_BYTES, lines, request_of
from tenants.batches.window import WindowLine

READ_AT_ONCE, READ_BYTES = 64, 1 << 20
"""Most lines read from a file at a time, and their total size unless it is a single line."""


class BatchSource(Protocol):
    """Lines with their requests' bodies, in order. The methods may block on files."""

    exhausted: bool
    """Whether all lines have been read."""

    def ahead(self) -> list[tuple[WindowLine, bytes]]:
        """The next lines that have no answers yet."""
        ...

    def body(self, line: WindowLine) -> bytes:
        """The body of a line that was read before."""
        ...

    def close(self) -> None: ...


class FileLines:
    """The lines of a batch's file, except those that are `done`."""

    def __init__(self, file: IO[bytes], done: Collection[int]) -> None:
        self.exhausted = False
        self._file, self._done = file, done
        self._unread = lines(file, MAX_BYTES)

    def ahead(self) -> list[tuple[WindowLine, bytes]]:
        """See `BatchSource.ahead`."""
        found: list[tuple[WindowLine, bytes]] = []
        size = 0
        while len(found) < READ_AT_ONCE and size < READ_BYTES:
            if (new := next(self._unread, None)) is None:
                self.exhausted = True
                break
            if new.number not in self._done:
                line = WindowLine(new.number, new.offset, len(new.text))
                found.append((line, bytes(request_of(new.text).body)))
                size += line.size
        return found

    def body(self, line: WindowLine) -> bytes:
        """See `BatchSource.body`."""
        text = os.pread(self._file.fileno(), line.size, line.offset)
        return bytes(request_of(text).body)

    def close(self) -> None:
        self._file.close()


class OneLine:
    """A single line, of a background response: the gateway reads its body itself."""

    def __init__(self, size: int) -> None:
        self.exhausted = False
        self._size = size

    def ahead(self) -> list[tuple[WindowLine, bytes]]:
        """See `BatchSource.ahead`."""
        self.exhausted = True
        return [(WindowLine(1, 0, self._size), b"")]

    def body(self, line: WindowLine) -> bytes:
        """See `BatchSource.body`; always empty."""
        return b""

    def close(self) -> None:
        """Nothing is open."""
