"""Puts weights that were saved in several safetensors files together into one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import IO, Any

from tenants.adapters.checks.archives import ArchiveMember
from tenants.adapters.checks.findings import shown
from tenants.adapters.checks.safetensors_header import MAX_HEADER_BYTES
from tenants.adapters.checks.streams import COPY_BYTES
from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused

Read = Callable[[int], bytes]


def join(members: Sequence[ArchiveMember], target: IO[bytes]) -> None:
    """Write one file with the tensors of all; the tensors themselves are checked later, as those of
    a file that came whole.

    Raises:
        UploadRefused: a file is not safetensors, or two have a tensor of the same name.
    """
    joined: dict[str, Any] = {}
    starts = []
    end = 0
    for member in members:
        entries, header_bytes = _header(member)
        starts.append(8 + header_bytes)
        for name, entry in entries.items():
            if name in joined:
                raise _invalid(f"{shown(name)} is in two of the weights' files")
            joined[name] = _moved(entry, end, member)
        end += member.size - starts[-1]
    head = json.dumps(joined).encode()
    if len(head) > MAX_HEADER_BYTES:
        raise _invalid(f"together their headers have more than {MAX_HEADER_BYTES} bytes")
    target.write(len(head).to_bytes(8, "little") + head)
    for member, start in zip(members, starts, strict=True):
        read = member.open()
        _exactly(read, start, member)
        while chunk := read(COPY_BYTES):
            target.write(chunk)


def _header(member: ArchiveMember) -> tuple[dict[str, Any], int]:
    """The entries of a file's tensors, and the header's length."""
    read = member.open()
    length = int.from_bytes(_exactly(read, 8, member), "little")
    if length > min(MAX_HEADER_BYTES, member.size - 8):
        raise _invalid(f"{shown(member.path)} has a header of {length} bytes")
    try:
        entries = load_object(_exactly(read, length, member))
    except BadJson as error:
        raise _invalid(f"the header of {shown(member.path)} is not JSON: {error}") from None
    entries.pop("__metadata__", None)
    return entries, length


def _moved(entry: object, by: int, member: ArchiveMember) -> dict[str, Any]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or not all(type(at) is int for at in offsets):
        raise _invalid(f"an entry of {shown(member.path)} has no data_offsets")
    return {**entry, "data_offsets": [at + by for at in offsets]}  # type: ignore[dict-item]


def _exactly(read: Read, size: int, member: ArchiveMember) -> bytes:
    found = b""
    while len(found) < size:
        if not (more := read(min(COPY_BYTES, size - len(found)))):
            raise _invalid(f"{shown(member.path)} is too short for safetensors")
        found += more
    return found


def _invalid(reason: str) -> UploadRefused:
    return UploadRefused(UploadRefusal.SHARDS_INVALID, f"The weights are damaged: {reason}.")
