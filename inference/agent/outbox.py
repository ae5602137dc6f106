"""The frames that an agent has for one gateway, merged while the gateway is slow to read.

Bounded whatever the gateway does: deltas of one stream are merged, and so are statistics; only the
last thing that a request waits for counts; everything else is at most one frame per request.

No frame is longer than the link takes, whatever was merged: long contents are split over several.
So only a single chunk of an answer can be too long, which `too_long` finds before it is added.

A delta with token ids is never split: a link may break after any frame, and the reader must then
have been given exactly what follows from the ids that were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import msgspec

from inference.errors import InvalidRequest
from inference.link.session import AttemptKey
from inference.link.wire import MAX_FRAME_BYTES, Delta, Error, Frame, Stats, Step, Wait, Waits

STEP_BYTES = 1 << 20
"""Approximate size of a step frame, so that one does not hold up either end's event loop."""
PIECE_BYTES = STEP_BYTES // 4
"""Approximate size of a delta: no more is merged, and a longer one is split, but never within a
chunk. One with token ids is as long as what the engine sent at once."""
MAX_CHUNK_BYTES = MAX_FRAME_BYTES // 2
MAX_SERVED = 8192
"""Tenants in one statistics frame."""
MAX_WAITS = 8192
UTF8_BYTES = 4
"""Size of a character, at most."""
ID_BYTES = 5
"""Size of a token id, at most."""
DELTA_BYTES = 128
"""Approximate size of a delta without its contents."""


T = TypeVar("T")


class Outbox:
    """Frames for one link; the order within each stream is kept."""

    def __init__(self) -> None:
        self._waits: dict[AttemptKey, Wait] = {}
        self._deltas: dict[AttemptKey, _Gains] = {}
        self._frames: list[Frame] = []
        self._stats: Stats | None = None
        self._error: Error | None = None

    def __bool__(self) -> bool:
        return bool(self._waits or self._deltas or self._frames or self._stats or self._error)

    def add(self, delta: Delta) -> None:
        """Add what a stream gained."""
        attempt = delta.id, delta.attempt
        if (gains := self._deltas.get(attempt)) is None:
            self._deltas[attempt] = _Gains(delta)
        else:
            gains.add(delta)

    def note(self, wait: Wait) -> None:
        """Replace what a request waits for."""
        self._waits[wait.id, wait.attempt] = wait

    def put(self, frame: Frame) -> None:
        """Add any other frame; it is sent after all deltas added before it."""
        if isinstance(frame, Stats):
            self._stats = frame if self._stats is None else _merged(self._stats, frame)
        elif isinstance(frame, Error):
            self._error = frame
        else:
            self._frames.append(frame)

    def take(self) -> list[Frame]:
        """Remove and return everything: waits, all deltas, then the rest, an error last."""
        taken: list[Frame] = [Waits(some) for some in _batches(self._waits.values(), MAX_WAITS)]
        taken += steps_of(delta for gains in self._deltas.values() for delta in gains.deltas)
        taken += self._frames
        if self._stats is not None:
            taken += _parts(self._stats)
        if self._error is not None:
            taken.append(self._error)
        self._waits, self._deltas, self._frames = {}, {}, []
        self._stats = self._error = None
        return taken


class _Gains:
    """What one stream gained, merged into one delta unless token ids would make it too long."""

    __slots__ = ("_bytes", "deltas")

    def __init__(self, delta: Delta) -> None:
        self.deltas, self._bytes = [delta], 0

    def add(self, delta: Delta) -> None:
        last = self.deltas[-1]
        if delta.ids:
            self._bytes = (self._bytes or _size(last)) + _size(delta)
        if self._bytes > PIECE_BYTES:
            self.deltas.append(delta)
            self._bytes = 0
        else:
            self.deltas[-1] = last.merged(delta)


def steps_of(deltas: Iterable[Delta]) -> Iterator[Step]:
    """Step frames with these deltas, in their order."""
    pieces: list[Delta] = []
    for delta in deltas:
        if delta.ids or _size(delta) <= PIECE_BYTES:
            pieces.append(delta)
        else:
            pieces += _pieces(delta)
    return map(Step, _packed(pieces, _size, STEP_BYTES))


def too_long(delta: Delta) -> InvalidRequest | None:
    """The error of a delta that can't be sent because one of its chunks does not fit a frame."""
    if not delta.chunks or (longest := max(map(len, delta.chunks))) <= MAX_CHUNK_BYTES:
        return None
    return InvalidRequest(
        f"One chunk of the answer has {longest} bytes: at most {MAX_CHUNK_BYTES} are "
        "allowed. Reduce `logprobs`.",
        param="logprobs",
    )


def _size(delta: Delta) -> int:
    """Upper bound of its bytes in a frame."""
    ids = sum(map(len, delta.ids.values())) + len(delta.ids) if delta.ids else 0
    chunks = sum(map(len, delta.chunks)) + ID_BYTES * len(delta.chunks) if delta.chunks else 0
    return DELTA_BYTES + UTF8_BYTES * len(delta.text) + chunks + 2 * ID_BYTES * ids


def _pieces(delta: Delta) -> Iterator[Delta]:
    """Split a delta into several that add up to it; the first has all the counts."""
    yield msgspec.structs.replace(delta, text="", chunks=[])
    piece = Delta(delta.id, attempt=delta.attempt)
    for text in _cut(delta.text, PIECE_BYTES // UTF8_BYTES):
        yield msgspec.structs.replace(piece, text=text)
    for chunks in _packed(delta.chunks, len, PIECE_BYTES):
        yield msgspec.structs.replace(piece, chunks=chunks)


def _cut(text: str, chars: int) -> Iterator[str]:
    return (text[at : at + chars] for at in range(0, len(text), chars))


def _merged(old: Stats, new: Stats) -> Stats:
    """Both as one frame."""
    gained = dict(old.gained)
    for name, more in new.gained.items():
        gained[name] = gained.get(name, 0.0) + more
    return msgspec.structs.replace(
        new,
        gained=gained,
        between=old.between and new.between,
        asks=old.asks if new.asks is None else new.asks,
    )


def _parts(stats: Stats) -> Iterator[Stats]:
    """Split a statistics frame into several that add up to it."""
    for gained in list(_batches(stats.gained.items(), MAX_SERVED)) or [[]]:
        yield msgspec.structs.replace(stats, gained=dict(gained))


def _packed(values: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Group the values in their order, up to a total size of `most`; a larger one is alone."""
    held, total = list[T](), 0
    for value in values:
        more = size(value)
        if held and total + more > most:
            yield held
            held, total = [], 0
        held.append(value)
        total += more
    if held:
        yield held


def _batches(values: Iterable[T], count: int) -> list[list[T]]:
    rest = iter(values)
    return list(iter(lambda: list(islice(rest, count)), []))


def residency_change(before: list[str], now: list[str]) -> tuple[list[str], list[str]]:
    """What changed from `before`, which a peer knows, to `now`: loaded or used, evicted.

    Both are LoRA names, least recently used first. A peer that removes the evicted ones, and moves
    those loaded or used to the end, has `now` in its order.
    """
    if before == now:
        return [], []
    here, rest, kept = set(now), iter(before), 0
    for name in now:  # the longest prefix of `now` with the same order in `before`
        if not any(name == other for other in rest):
            break
        kept += 1
    return now[kept:], [name for name in before if name not in here]
