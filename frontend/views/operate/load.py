"""How fast engines are, from what they counted at two moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Any

WINDOW_S = 10.0
"""Rates are over this time: engines tell their counts once a second, so less would jump."""
MIN_S = 1.5
"""Two looks closer together say nothing."""
COUNTS = ("prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one engine had counted at a moment (monotonic, seconds)."""

    at: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second."""

    prompt: float
    output: float


class Rates:
    """Remembers the last WINDOW_S of samples of each connected engine; those of gone ones never."""

    def __init__(self) -> None:
        self._lock = Lock()
        """Two pages may look at once, each in its thread."""
        self._samples: dict[str, deque[Sample]] = {}

    def note(self, engines: Iterable[Mapping[str, Any]], now: float) -> dict[str, Rate]:
        """Take a sample of each engine; the rates of those known for MIN_S, by id.

        `now` is of a monotonic clock.
        """
        with self._lock:
            kept, self._samples = self._samples, {}
            for engine in engines:
                samples = kept.get(engine["id"], deque())
                samples.append(Sample(now, *(engine[name] for name in COUNTS)))
                self._samples[engine["id"]] = _recent(samples)
            rates = {id: _rate(samples) for id, samples in self._samples.items()}
        return {id: rate for id, rate in rates.items() if rate is not None}


def _recent(samples: deque[Sample]) -> deque[Sample]:
    """Those of the window; only the last where the engine began to count anew."""
    if any(later.completion_tokens < earlier.completion_tokens or
           later.prompt_tokens < earlier.prompt_tokens
           for earlier, later in pairwise(samples)):  # fmt: skip
        return deque([samples[-1]])
    while samples[-1].at - samples[0].at > WINDOW_S:
        samples.popleft()
    return samples


def _rate(samples: deque[Sample]) -> Rate | None:
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    if seconds < MIN_S:
        return None
    prompt = last.prompt_tokens - first.prompt_tokens
    return Rate(prompt / seconds, (last.completion_tokens - first.completion_tokens) / seconds)
