"""Recorded traffic in two public formats, read line by line.

- `mooncake`: JSON lines with `timestamp` in milliseconds, `input_length`, `output_length` and
  `hash_ids`, one for each 512 tokens of the prompt; equal ids are equal text after equal ids
  (kvcache-ai/Mooncake, FAST25-release/traces).
- `azure`: CSV with TIMESTAMP, ContextTokens, GeneratedTokens
  (Azure/AzurePublicDataset, AzureLLMInferenceTrace_*.csv).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from inference.load.planned import MOST_REQUESTS, BadLoadPlan

MAX_LINE_BYTES = 1 << 20
"""Mooncake's longest line has 2 KB, for a prompt of 126,000 tokens."""
MAX_TOKENS = 10_000_000
"""Of a prompt or an answer."""
BLOCK_TOKENS = 512
AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request; `at_s` is as the file has it. Azure's has no `blocks`."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class _BadLine(Exception):
    """The message names the field and its value."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_mooncake_line = msgspec.json.Decoder(_MooncakeLine)


def read_trace(path: Path, limit: int = MOST_REQUESTS) -> Iterator[TraceRow]:
    """The first `limit` requests, with times from the first one's on; what follows is not read.

    Raises:
        BadLoadPlan: a line is not of the format, or earlier than the one before; the message names
            file, line and field.
    """
    began, before = None, -math.inf
    for number, row in _rows(path, limit):
        if row.at_s < before:
            raise BadLoadPlan(f"{path}, line {number}: its time is before that of the last line")
        began, before = row.at_s if began is None else began, row.at_s
        yield TraceRow(row.at_s - began, row.prompt_tokens, row.output_tokens, row.blocks)
    if began is None:
        raise BadLoadPlan(f"{path} has no requests")


def _rows(path: Path, limit: int) -> Iterator[tuple[int, TraceRow]]:
    number = 1
    try:
        with path.open("rb") as file:
            row_of, skipped = _format(file.readline(MAX_LINE_BYTES + 1))
            if not skipped:
                file.seek(0)
            for number in range(1 + skipped, limit + skipped + 1):
                if not (line := file.readline(MAX_LINE_BYTES + 1)):
                    return
                if len(line) > MAX_LINE_BYTES:
                    raise _BadLine(f"is longer than {MAX_LINE_BYTES} bytes")
                yield number, row_of(line)
    except OSError as error:
        raise BadLoadPlan(f"{path} can't be read: {error}") from None
    except _BadLine as error:
        raise BadLoadPlan(f"{path}, line {number}: {error}") from None


def _format(first: bytes) -> tuple[Callable[[bytes], TraceRow], int]:
    """By the first line: how lines are read, and how many are skipped."""
    names = first.decode("utf-8-sig", "replace").strip().split(",")
    if names == AZURE_COLUMNS:
        return _azure, 1
    if names[0] == AZURE_COLUMNS[0]:
        raise _BadLine(f"the columns must be {','.join(AZURE_COLUMNS)}")
    return _mooncake, 0


def _mooncake(line: bytes) -> TraceRow:
    try:
        found = _mooncake_line.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _BadLine(str(error)) from None
    _require_count("input_length", found.input_length)
    _require_count("output_length", found.output_length)
    if (blocks := len(found.hash_ids)) != -(-found.input_length // BLOCK_TOKENS):
        raise _BadLine(
            f"hash_ids has {blocks} ids: {found.input_length} tokens are "
            f"{-(-found.input_length // BLOCK_TOKENS)} blocks of {BLOCK_TOKENS}"
        )
    if not 0 <= found.timestamp < 1e15:  # 30,000 years
        raise _BadLine(f"timestamp is {found.timestamp}: it must be from 0 to 1e15 ms")
    return TraceRow(found.timestamp / 1000, found.input_length, found.output_length, found.hash_ids)


def _azure(line: bytes) -> TraceRow:
    values = next(csv.reader([line.decode(errors="replace").rstrip("\r\n")]), [])
    if len(values) != len(AZURE_COLUMNS):
        raise _BadLine(f"has {len(values)} columns: there must be {len(AZURE_COLUMNS)}")
    try:
        moment = datetime.fromisoformat(values[0])
    except ValueError:
        raise _BadLine(f"TIMESTAMP is {values[0][:40]!r}: it must be a date and time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    prompt, output = (
        _count_of(name, value) for name, value in zip(AZURE_COLUMNS[1:], values[1:], strict=True)
    )
    return TraceRow(moment.timestamp(), prompt, output)


def _count_of(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise _BadLine(f"{name} is {text[:40]!r}: it must be a number of tokens")
    return _require_count(name, int(text))


def _require_count(name: str, count: int) -> int:
    if not 0 <= count <= MAX_TOKENS:
        raise _BadLine(f"{name} is {count}: it must be from 0 to {MAX_TOKENS}")
    return count
