"""Rows of a validation file as rows of an eval: what is asked, and the answer that is expected.

A child process (`tenants.adapters.checks`) reads the files; free of Django.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import IO

import msgspec

from tenants.evals.sources import EvalRow
from tenants.tuning.child.rows import Row, rows
from tenants.tuning_states import Method

SEED = 1

_json = msgspec.json.Encoder().encode


@dataclass
class HeldOutRows:
    """How many rows were written, of how many `usable` ones; and how many others there were: those
    that were `trained` on, and `unusable` ones, with tools or without an answer in text."""

    written: int = 0
    usable: int = 0
    trained: int = 0
    unusable: int = 0


def select(
    held: IO[bytes], trained: IO[bytes], method: Method, most: int, out: IO[bytes]
) -> HeldOutRows:
    """Write at most so many rows of a validation file that are not in the training file. They are
    drawn at random, the same ones each time, and written in the file's order. Both files are valid.
    """
    known = {_digest(line) for line in _lines(trained, method) if line is not None}
    found, chosen, random = HeldOutRows(), dict[int, tuple[int, bytes]](), Random(SEED)
    for line in _lines(held, method):
        if line is None:
            found.unusable += 1
        elif _digest(line) in known:
            found.trained += 1
        else:  # reservoir sampling: each row so far is in it with the same probability
            found.usable += 1
            place = len(chosen) if len(chosen) < most else random.randrange(found.usable)
            if place < most:
                chosen[place] = found.usable, line
    for _, line in sorted(chosen.values()):
        out.write(line + b"\n")
    found.written = len(chosen)
    return found


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()


def _lines(file: IO[bytes], method: Method) -> Iterator[bytes | None]:
    """Each row as a line of an eval's file; None if it is not usable."""
    for _, row in rows(file, method):
        item = _item(row)
        yield None if item is None else _json(EvalRow(item))


def _item(row: Row) -> dict[str, object] | None:
    """What is asked, and the last answer that is learned: in a row of preferences, the preferred
    output. None if there are tools, or no such text."""
    dialogue = row.dialogues[0]
    messages = dialogue.messages
    last = max(at for at, one in enumerate(messages) if one.learned)
    asked = [one.rendered() for one in messages[:last]]
    expected = messages[last].rendered()["content"]
    if dialogue.tools or any(one.tool_calls for one in messages) or not asked or not expected:
        return None
    return {"messages": asked, "expected": expected}
