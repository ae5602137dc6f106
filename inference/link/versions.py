"""The frames and fields of each protocol version, and encoding for peers of older versions.

A peer is never sent a frame or field that its version lacks. Fields are only ever appended, so an
older peer's view of a struct is its first fields; the defaults of the others mean what that version
did. `Hello` is sent before a version is agreed on, with all its fields: every version reads those
that it knows and ignores the rest.

To add something: append it in `wire` with a default, list it here with the version that adds it,
and raise `PROTOCOL_VERSION` if that version is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from inference.link import wire
from inference.link.wire import Frame

FRAMES: Mapping[type[Frame], int] = {}
"""The version that added each frame; those not listed are in version 1."""

FIELDS: Mapping[type, Mapping[str, int]] = {}
"""The version that added each appended field; those not listed came with their struct."""

Cut = Callable[[Any], None]
"""Removes newer fields from a value that `msgspec.to_builtins` made; mutates it."""


class Encoder:
    """Encodes for peers of one older version. For the newest, use `wire.encode`, which is
    cheaper."""

    def __init__(
        self,
        version: int,
        frames: Mapping[type[Frame], int] = FRAMES,
        fields: Mapping[type, Mapping[str, int]] = FIELDS,
    ) -> None:
        self._version, self._frames, self._fields = version, frames, fields
        self._cuts: dict[type[Frame], Cut | None] = {}

    def encode(self, frame: Frame) -> bytes | None:
        """The message; None if this version lacks the frame."""
        kind = type(frame)
        if self._frames.get(kind, 1) > self._version:
            return None
        if kind not in self._cuts:
            self._cuts[kind] = self._cut_of(inspect.type_info(kind))
        cut = self._cuts[kind]
        if cut is None:
            return wire.encode(frame)
        value = msgspec.to_builtins(frame, builtin_types=(bytes,))
        cut(value)
        return wire.encode(value)

    def _cut_of(self, kind: inspect.Type) -> Cut | None:
        """The cut for values of this type; None if nothing in them is newer."""
        match kind:
            case inspect.StructType():
                return self._cut_of_struct(kind)
            case inspect.ListType(item_type=item):
                return None if (cut := self._cut_of(item)) is None else _of_each(cut)
            case inspect.UnionType(types=types):
                cuts = [cut for one in types if (cut := self._cut_of(one)) is not None]
                return _unless_none(*cuts) if cuts else None  # the wire's only unions: `X | None`
            case _:
                return None

    def _cut_of_struct(self, kind: inspect.StructType) -> Cut | None:
        since, tags = self._fields.get(kind.cls, {}), int(kind.tag is not None)
        known = [one for one in kind.fields if since.get(one.name, 1) <= self._version]
        below = [
            (at, cut)
            for at, one in enumerate(known, start=tags)
            if (cut := self._cut_of(one.type)) is not None
        ]
        if len(known) == len(kind.fields) and not below:
            return None

        def cut_struct(value: list[Any]) -> None:
            del value[len(known) + tags :]
            for at, cut in below:
                cut(value[at])

        return cut_struct


def _of_each(cut: Cut) -> Cut:
    def cut_each(values: list[Any]) -> None:
        for value in values:
            cut(value)

    return cut_each


def _unless_none(cut: Cut) -> Cut:
    def cut_some(value: Any) -> None:
        if value is not None:
            cut(value)

    return cut_some


_ENCODERS = {
    version: Encoder(version) for version in range(wire.OLDEST_VERSION, wire.PROTOCOL_VERSION)
}


def encode(frame: Frame, version: int | None) -> bytes | None:
    """The message for a peer of this version (None: not agreed on yet); None if this version lacks
    the frame."""
    if version is None or version >= wire.PROTOCOL_VERSION:
        return wire.encode(frame)
    return _ENCODERS[version].encode(frame)
