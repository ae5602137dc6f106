"""What each protocol version knows, and how a frame is told to a peer that speaks an older one.

A peer is never sent a frame or a field that its version lacks. Fields are only ever appended, so an
older peer's view of a struct is its first fields; what is left out has a default that means what
that version did. `Hello` is said before a version is agreed on and is whole: every version reads
the fields that it knows and passes over the rest.

To add something: append it in `wire` with a default, name it here with the version that brings it,
and raise `PROTOCOL_VERSION` if that version is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inference.link import wire
from inference.link.wire import Frame

FRAMES: Mapping[type[Frame], int] = {}
"""The version that brought each frame; those not named are of version 1."""

FIELDS: Mapping[type, Mapping[str, int]] = {
    wire.AdapterRef: {"rank": 2, "modules": 2},
    wire.ModelInfo: {"revision": 2, "engine_version": 2, "operations": 2, "parsers": 2},
    wire.Account: {"price": 2},
    wire.LedgerEntry: {"attempt": 2, "inherited_tokens": 2},
    wire.Delta: {"attempt": 2, "ids": 2},
    wire.Wait: {"attempt": 2},
    wire.Hello: {"run": 2},
    wire.Submit: {"attempt": 2, "ids": 2},
    wire.Done: {"attempt": 2},
    wire.Cancel: {"attempt": 2},
    wire.Stats: {"loaded": 2, "evicted": 2},
    wire.UsageAck: {"attempts": 2},
}
"""The version that brought each appended field; those not named came with their struct."""


def _acknowledged_by_id(ack: wire.UsageAck) -> wire.UsageAck:
    return wire.UsageAck([id for id, _ in ack.attempts])


REWORDED: Mapping[type[Frame], tuple[int, Callable[[Any], Frame]]] = {
    wire.UsageAck: (2, _acknowledged_by_id),
}
"""Frames that say the same in other fields since a version, and how older peers are told."""


class Encoder:
    """Encodes for peers of one version. For the newest that is `wire.encode`, which costs less."""

    def __init__(
        self,
        version: int,
        frames: Mapping[type[Frame], int] = FRAMES,
        fields: Mapping[type, Mapping[str, int]] = FIELDS,
    ) -> None:
        self._version, self._frames, self._fields = version, frames, fields
        self._known: dict[type, tuple[str, ...]] = {}

    def encode(self, frame: Frame) -> bytes | None:
        """The message; None if peers of this version don't know the frame."""
        kind = type(frame)
        if self._frames.get(kind, 1) > self._version:
            return None
        since, reword = REWORDED.get(kind, (1, None))
        if reword is not None and since > self._version:
            frame = reword(frame)
        return wire.encode(self._trimmed(frame))

    def _trimmed(self, value: Any) -> Any:
        """The value without newer fields, at whatever depth; structs as the arrays they become."""
        if isinstance(value, wire.Value | Frame):
            tag = value.__struct_config__.tag
            known = [self._trimmed(getattr(value, name)) for name in self._known_of(type(value))]
            return known if tag is None else [tag, *known]
        if isinstance(value, list | tuple):
            return [self._trimmed(one) for one in value]
        if isinstance(value, dict):
            return {key: self._trimmed(one) for key, one in value.items()}
        return value

    def _known_of(self, kind: type) -> tuple[str, ...]:
        if (known := self._known.get(kind)) is None:
            since = self._fields.get(kind, {})
            names: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
            known = tuple(name for name in names if since.get(name, 1) <= self._version)
            self._known[kind] = known
        return known


_ENCODERS = {
    version: Encoder(version) for version in range(wire.OLDEST_VERSION, wire.PROTOCOL_VERSION)
}


def encode(frame: Frame, version: int | None) -> bytes | None:
    """The message for a peer of this version (None: not agreed on yet); None: it is not sent."""
    if version is None or version >= wire.PROTOCOL_VERSION:
        return wire.encode(frame)
    return _ENCODERS[version].encode(frame)
