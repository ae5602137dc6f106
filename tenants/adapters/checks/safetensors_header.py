"""Reads and checks the header of a safetensors file; never the tensors.

The format (huggingface/safetensors, README): 8 bytes of header length (little-endian), that many
bytes of JSON which begin with `{` and may end in spaces, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tenants.adapters.checks.findings import Code, Findings, shown
from tenants.adapters.checks.streams import Readable
from tenants.adapters.checks.strict_json import BadJson, DuplicateKey, load_object

MAX_HEADER_BYTES = 8 << 20
"""A tensor's entry takes about 150 bytes; a mixture of experts has tens of thousands of them."""
MAX_DIMENSIONS = 8
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""The dtypes that LoRA weights may have; the engine would also load integers, as garbage."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's entry; its bytes lie from `begin` to before `end` in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read(
    stream: Readable, file_bytes: int, *, max_tensors: int, findings: Findings
) -> list[Tensor] | None:
    """The tensors in the order of their bytes, or None with the reasons in `findings`.

    `stream` is at the file's start. Every tensor returned has a supported dtype, a shape that fits
    its byte count, and all of them together cover the file after its header exactly once.
    """
    before = findings.total
    header_bytes = _header_length(stream, file_bytes, findings)
    if header_bytes is None:
        return None
    entries = _entries(stream.read(header_bytes), findings)
    if len(entries) > max_tensors:
        findings.add(
            Code.TOO_MANY_TENSORS,
            f"There are {len(entries)} tensors, but the base model supports at most {max_tensors}.",
        )
    if findings.total > before:
        return None
    start = 8 + header_bytes
    tensors = [_tensor(name, entry, start, findings) for name, entry in entries.items()]
    if findings.total > before:
        return None
    ordered = sorted((t for t in tensors if t), key=lambda t: (t.begin, t.end))
    _check_cover(ordered, start, file_bytes, findings)
    return None if findings.total > before else ordered


def _header_length(stream: Readable, file_bytes: int, findings: Findings) -> int | None:
    prefix = stream.read(8)
    if len(prefix) < 8:
        findings.add(
            Code.HEADER_INVALID, f"The file has {file_bytes} bytes, too few for safetensors."
        )
        return None
    length = int.from_bytes(prefix, "little")
    if length > file_bytes - 8:
        findings.add(
            Code.HEADER_INVALID,
            f"The header's length is given as {length} bytes, but only {file_bytes - 8} follow.",
        )
        return None
    if length > MAX_HEADER_BYTES:
        findings.add(
            Code.HEADER_TOO_LARGE,
            f"The header has {length} bytes; at most {MAX_HEADER_BYTES} are allowed.",
        )
        return None
    return length


def _entries(raw: bytes, findings: Findings) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        findings.add(Code.HEADER_INVALID, "The header does not begin with an opening brace.")
        return {}
    try:
        entries = load_object(raw)
    except DuplicateKey as error:
        findings.add(Code.HEADER_DUPLICATE_KEY, f"In the header, {error}.")
        return {}
    except BadJson as error:
        findings.add(Code.HEADER_INVALID, f"The header is not a valid JSON object: {error}.")
        return {}
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        findings.add(Code.HEADER_INVALID, "__metadata__ must map strings to strings.")
    return entries


def _tensor(name: str, entry: object, start: int, findings: Findings) -> Tensor | None:
    """One checked entry; `start` is where the tensors' bytes begin in the file."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        findings.add(
            Code.TENSOR_INVALID,
            f"The entry of {shown(name)} must have exactly dtype, shape and data_offsets.",
        )
        return None
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        findings.add(
            Code.DTYPE_UNSUPPORTED,
            f"{shown(name)} has dtype {shown(dtype)}: it must be one of {', '.join(DTYPE_BYTES)}.",
        )
        return None
    if not _naturals(shape, MAX_DIMENSIONS) or not _naturals(offsets, 2) or len(offsets) != 2:
        findings.add(
            Code.TENSOR_INVALID,
            f"{shown(name)} has shape {shown(shape)} and data_offsets {shown(offsets)}: "
            "they must be a list and a pair of integers.",
        )
        return None
    begin, end = offsets
    needed = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != needed:
        findings.add(
            Code.OFFSETS_INVALID,
            f"{shown(name)} needs {needed} bytes, which its offsets {shown(offsets)} do not span.",
        )
        return None
    return Tensor(name, dtype, tuple(shape), start + begin, start + end)


def _naturals(value: object, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(n) is int and 0 <= n < 1 << 53 for n in value)
    )


def _check_cover(tensors: list[Tensor], start: int, file_bytes: int, findings: Findings) -> None:
    position = start
    for tensor in tensors:
        if tensor.begin != position:
            relation = "overlaps" if tensor.begin < position else "leaves a gap after"
            findings.add(
                Code.OFFSETS_INVALID, f"{shown(tensor.name)} {relation} the preceding tensor."
            )
            return
        position = tensor.end
    if position != file_bytes:
        findings.add(
            Code.FILE_LENGTH_MISMATCH,
            f"The header describes a file of {position} bytes, but it has {file_bytes}.",
        )
