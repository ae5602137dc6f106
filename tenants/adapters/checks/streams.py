"""How the checks read a file, however it is stored."""

from __future__ import annotations

from typing import Protocol

COPY_BYTES = 256 << 10
"""How much of a file is in memory at once."""


class Readable(Protocol):
    """A seekable file open for reading; `read` returns fewer bytes only at the file's end."""

    def read(self, size: int = ..., /) -> bytes: ...

    def seek(self, offset: int, whence: int = ..., /) -> int: ...
