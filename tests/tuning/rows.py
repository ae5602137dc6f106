"""Rows of dialogues to train on, without Django."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

NUMBERS = {"n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 20.0}


def dialogue(question: str = "Where are you?", answer: str = "In a tree!") -> dict[str, Any]:
    said = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": said}


ROWS = [dialogue(f"What is {n} plus 1?", f"Squawk! It is {n + 1}.") for n in range(1, 6)]


def jsonl(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
