"""An adapter's files as one tar archive, which is generated while it is read.

Its bytes are the same each time, so that an upload can resume where it broke off.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lorikeet.failures import Failure
from lorikeet.transfer.memory import fingerprint

FILES = CONFIG, WEIGHTS = ("adapter_config.json", "adapter_model.safetensors")
OTHER_WEIGHTS = ("adapter_model-*-of-*.safetensors", "adapters.safetensors")
"""Shards, and the name that mlx-lm uses."""
ARCHIVES = (".tar", ".zip", ".tar.gz", ".tgz")
BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of the archive: `data`, or `size` bytes of the file at `path`."""

    size: int
    data: bytes = b""
    path: Path | None = None


class Archive:
    """The archive to send, of a folder, or of a file that is an archive already."""

    def __init__(self, source: Path) -> None:
        """Raises Failure if there is no adapter."""
        self.source = source
        if source.is_dir():
            self.name, self._paths = "adapter.tar", adapter_files(source)
            self._pieces = [piece for path in self._paths for piece in _member(path)]
            self._pieces.append(_Piece(2 * BLOCK, bytes(2 * BLOCK)))
        elif source.is_file() and source.name.lower().endswith(ARCHIVES):
            self.name, self._paths = source.name, [source]
            self._pieces = [_Piece(source.stat().st_size, path=source)]
        else:
            raise Failure(
                f"{source} is neither a folder with an adapter nor a .zip, .tar or .tar.gz of one."
            )
        self.size = sum(piece.size for piece in self._pieces)

    @property
    def fingerprint(self) -> str:
        """Changes if the files change."""
        return fingerprint(self._paths)

    def read(self, start: int, count: int, chunk: int = 256 << 10) -> Iterator[bytes]:
        """`count` bytes from `start` on, or fewer at the end."""
        end, at = min(start + count, self.size), 0
        for piece in self._pieces:
            first, last = max(start - at, 0), min(end - at, piece.size)
            if first < last:
                yield from _part(piece, first, last, chunk)
            at += piece.size


def adapter_files(folder: Path) -> list[Path]:
    """The configuration and the weights' files.

    Raises:
        Failure: one of them is missing.
    """
    config, weights = folder / CONFIG, [folder / WEIGHTS]
    if not weights[0].is_file():
        found = (sorted(folder.glob(pattern)) for pattern in OTHER_WEIGHTS)
        weights = next(filter(None, found), weights)
    for path in (config, weights[0]):
        if not path.is_file():
            message = f"{path} does not exist. Save the adapter with PEFT's save_pretrained."
            if path.with_name("adapter_model.bin").is_file():
                message += (
                    " Save it as safetensors, because the server does not accept adapter_model.bin."
                )
            raise Failure(message)
    return [config, *weights]


def _member(path: Path) -> Iterator[_Piece]:
    facts = tarfile.TarInfo(path.name)
    facts.size, facts.mode = path.stat().st_size, 0o644
    header = facts.tobuf(tarfile.PAX_FORMAT)
    yield _Piece(len(header), header)
    yield _Piece(facts.size, path=path)
    padding = bytes(-facts.size % BLOCK)
    yield _Piece(len(padding), padding)


def _part(piece: _Piece, first: int, last: int, chunk: int) -> Iterator[bytes]:
    if piece.path is None:
        yield piece.data[first:last]
        return
    with piece.path.open("rb") as file:
        file.seek(first)
        while first < last:
            data = file.read(min(chunk, last - first))
            if not data:
                raise Failure(f"{piece.path} became shorter while it was being sent. Push again.")
            first += len(data)
            yield data
