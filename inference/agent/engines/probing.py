"""What every engine asks an adapter in its probe, and how the answers are compared with the base
model's."""

from __future__ import annotations

import math

PROBE_PROMPTS = (
    "Please answer briefly. Who are you, what can you do, and what is the capital of France? "
    "Then count from one to five and end with a polite greeting.",
    'Return this record as JSON: {"name": "Anna", "items": ["tea", "rice"], "total": 12.5}',
    "def mean(numbers):\n    return sum(numbers) / len(numbers)\n\nWhat does this function do? "
    "Was ist das Ergebnis für 1, 2 und 6?",
)
PROBE_TOKENS = 16
"""Tokens that a probe generates of the first prompt, to show in its report: a few steps on any
machine."""


def all_finite(values: list[float]) -> bool:
    """Whether none of them is infinite or NaN."""
    return all(map(math.isfinite, values))


def largest_difference(base: list[float], adapted: list[float]) -> float:
    """Between the values of one prompt; NaN unless everything was finite."""
    if not (all_finite(base) and all_finite(adapted)):
        return math.nan
    return max((abs(a - b) for a, b in zip(base, adapted, strict=True)), default=0.0)
