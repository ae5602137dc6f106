"""What engines did in the last quarter of an hour, computed from their counters.

One sampler per gateway process runs once a second, as often as engines report. It runs even while
no page shows the history, because a page that is opened has to show the past.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

SAMPLE_S = 1.0
WINDOW_S = 10.0
"""Rates are averaged over this time; over a single second they would jump."""
MIN_S = 1.5
"""Samples closer together give no rate."""
STEP_S = 10.0
"""Time between two points of the history."""
MAX_POINTS = 90


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine's counters at a moment (unix seconds)."""

    at: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class RequestRate:
    """Tokens per second."""

    prompt: float
    output: float


@dataclass(frozen=True, slots=True)
class LoadSample:
    """What one engine did in the step that ends at a point. The rate is None in its first step."""

    rate: RequestRate | None
    running: int
    queued: int
    """Requests in the agent's own queue and in vLLM's."""
    kv_usage: float


@dataclass(frozen=True, slots=True)
class Point:
    """The engines that were connected at a moment (unix seconds), by id."""

    at: float
    loads: Mapping[str, LoadSample]


class History:
    """Samples of the connected engines. Safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._samples: dict[str, deque[Sample]] = {}
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._stepped: dict[str, Sample] = {}
        """The sample of each engine at the last point."""

    def note(self, found: Sequence[Mapping[str, Any]], at: float) -> None:
        """Add a sample: the connected engines and their counters at this moment."""
        with self._lock:
            if self._points and at < self._points[-1].at:  # the clock was set back
                for past in (self._points, self._samples, self._stepped):
                    past.clear()
            kept, self._samples = self._samples, {}
            for engine in found:
                sample = Sample(at, engine["prompt_tokens"], engine["completion_tokens"])
                self._samples[engine["id"]] = _added(kept.get(engine["id"], deque()), sample)
            if not self._points or at - self._points[-1].at >= STEP_S:
                self._step(found, at)

    def rates(self) -> dict[str, RequestRate]:
        """The current rate of each engine that has samples over at least MIN_S, by id."""
        with self._lock:
            rates = {id: _rate(one[0], one[-1]) for id, one in self._samples.items()}
        return {id: rate for id, rate in rates.items() if rate is not None}

    def points(self) -> list[Point]:
        """The history, oldest point first."""
        with self._lock:
            return list(self._points)

    def _step(self, found: Sequence[Mapping[str, Any]], at: float) -> None:
        before, self._stepped = self._stepped, {id: one[-1] for id, one in self._samples.items()}
        loads = {}
        for engine in found:
            first, last = before.get(engine["id"]), self._stepped[engine["id"]]
            rate = _rate(first, last) if first is not None else None
            queued = engine["queued"] + engine["waiting"]
            loads[engine["id"]] = LoadSample(rate, engine["running"], queued, engine["kv_usage"])
        self._points.append(Point(at, loads))


def _added(samples: deque[Sample], sample: Sample) -> deque[Sample]:
    """The samples within the window, with the new one; only that if the counters were reset."""
    if samples and _anew(samples[-1], sample):
        samples.clear()
    samples.append(sample)
    while sample.at - samples[0].at > WINDOW_S:
        samples.popleft()
    return samples


def _anew(first: Sample, last: Sample) -> bool:
    prompt, output = first.prompt_tokens, first.completion_tokens
    return last.prompt_tokens < prompt or last.completion_tokens < output


def _rate(first: Sample, last: Sample) -> RequestRate | None:
    seconds = last.at - first.at
    if seconds < MIN_S or _anew(first, last):
        return None
    prompt = last.prompt_tokens - first.prompt_tokens
    return RequestRate(
        prompt / seconds, (last.completion_tokens - first.completion_tokens) / seconds
    )


async def keep(history: History, snapshot: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
    """Sample the connected engines until cancelled."""
    while True:
        history.note(snapshot(), time.time())
        await asyncio.sleep(SAMPLE_S)
