"""What a gateway measures of its requests, by engine and model; `planes.monitoring` exports it.

It covers this gateway's requests only, so the figures of several gateways can be summed. Everything
is a plain number, used on one event loop. The histogram that is updated per token is looked up once
per engine.

The bounds of each measure are those of OpenTelemetry's conventions for generative AI:
https://github.com/open-telemetry/semantic-conventions/blob/main/docs/gen-ai/gen-ai-metrics.md
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from inference.errors import BY_CODE, ClientDisconnected, InferenceError
from inference.gateway.measuring.busiest import Busiest
from inference.gateway.measuring.histogram import Histogram, HistogramExample
from inference.link.accounts import Usage
from inference.operations.structure import StructureOutcome

DURATION_S = tuple(0.01 * 2**n for n in range(14))
"""Bounds for whole operations and their parts: 0.01 s, doubling to 81.92 s."""
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
INTER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = tuple(float(4**n) for n in range(14))

OF_ENGINES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "queue_seconds": (
        (
            "Time from an engine's receipt of a request to its admission, including fetching "
            "the adapter's files."
        ),
        DURATION_S,
    ),
    "adapter_load_seconds": (
        (
            "Time from a request's admission by the engine until its adapter is loaded; only "
            "requests for adapters."
        ),
        DURATION_S,
    ),
    "time_to_first_token_seconds": (
        "Time from a request's admission by the gateway to its first token.",
        FIRST_TOKEN_S,
    ),
    "inter_token_seconds": (
        (
            "Time between output tokens as they arrive at the gateway; tokens that arrive "
            "together share the time."
        ),
        INTER_TOKEN_S,
    ),
    "end_to_end_seconds": (
        (
            "Time from a request's admission by the gateway to the end of its answer; only "
            "completed requests."
        ),
        DURATION_S,
    ),
    "prompt_tokens": ("Prompt tokens of a request, including cached ones.", TOKENS),
    "output_tokens": ("Output tokens of a request.", TOKENS),
}
"""The histograms of each engine, with help texts and bounds. The metrics are `lorikeet_...`."""

COMPLETED, CANCELLED, REFUSED, FAILED = "completed", "cancelled", "refused", "failed"
"""How requests end: `refused` are requests with faults of their own, or that limits or missing
engines turned away before any engine had them; `failed` are faults of Lorikeet."""
EXPECTED = (
    (COMPLETED, "stop"), (COMPLETED, "length"), (FAILED, "engine_lost"), (FAILED, "engine_failed"),
    (FAILED, "generation_timeout"), (FAILED, "internal_error"),
)  # fmt: skip
"""Outcomes counted from 0 on for each engine; TURNED_AWAY are those without an engine. Prometheus
would otherwise miss the first of each, as it sees no increase when a counter appears."""
TURNED_AWAY = ("no_engine_available", "server_is_overloaded", "service_unavailable")
REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "cancelled"})
"""Finish reasons that are told apart. Engines set them, so others may occur."""

FORGET_S = 900.0
"""How long the figures of an engine stay after it is gone: enough for several scrapes."""
MAX_ENGINES = 1_000
"""Engines with figures of their own; further ones share the figures of `other`."""
OTHER = "other"


@dataclass(slots=True, eq=False)
class OnEngine:
    """The histograms of one engine, by the names and in the order of `OF_ENGINES`."""

    queue_seconds: Histogram
    adapter_load_seconds: Histogram
    time_to_first_token_seconds: Histogram
    inter_token_seconds: Histogram
    end_to_end_seconds: Histogram
    prompt_tokens: Histogram
    output_tokens: Histogram
    used_at: float = field(default=0.0, init=False)
    """Monotonic time at which the engine was last connected."""

    @classmethod
    def empty(cls) -> OnEngine:
        """Histograms without values."""
        return cls(*(Histogram(bounds) for _, bounds in OF_ENGINES.values()))


class EndedRequest(msgspec.Struct, frozen=True):
    """A request that ended on an engine. `ttft_s` and `total_s` are from its admission at the
    gateway; `usage` is what its engine reported, with times only if `reported`."""

    usage: Usage
    reported: bool
    has_adapter: bool
    completed: bool
    ttft_s: float | None
    total_s: float
    trace_id: str = ""
    """Empty if the request is not traced."""


@dataclass(slots=True, eq=False)
class Measures:
    """All measures of one gateway. Counters only grow."""

    busiest: Busiest = field(default_factory=lambda: Busiest(0))
    engines: dict[tuple[str, str], OnEngine] = field(default_factory=dict)
    """By base model and engine."""
    hold_seconds: dict[str, Histogram] = field(default_factory=dict)
    """How long held requests were held, by base model."""
    requests: Counter[tuple[str, str, str, str]] = field(
        default_factory=lambda: Counter({("", "", REFUSED, code): 0 for code in TURNED_AWAY})
    )
    """By base model and engine (empty if no engine had the request), outcome, and code."""
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests refused by limits, by the limit's kind and scope."""
    structures: Counter[tuple[str, StructureOutcome]] = field(default_factory=Counter)
    """Answers that should have a structure, by base model and what was found."""
    engines_lost: Counter[str] = field(default_factory=Counter)
    """Engines that left without draining first, by base model."""
    _used_at: dict[str, float] = field(default_factory=dict)
    """When `forget` last found an engine's figures of each base model, or figures of it alone."""

    def engine(self, base_model: str, id: str) -> OnEngine:
        """The histograms of requests on this engine; callers keep them."""
        if (base_model, id) not in self.engines and len(self.engines) >= MAX_ENGINES:
            id = OTHER
        for outcome, code in EXPECTED:
            self.requests[base_model, id, outcome, code] += 0
        self.engines_lost[base_model] += 0
        for found in StructureOutcome:
            self.structures[base_model, found] += 0
        return self.engines.setdefault((base_model, id), OnEngine.empty())

    def held(self, base_model: str, seconds: float) -> None:
        """A request is no longer held; it was held for this long."""
        if base_model not in self.hold_seconds:
            self.hold_seconds[base_model] = Histogram(DURATION_S)
        self.hold_seconds[base_model].add(seconds)

    def ended(self, on: OnEngine, request: EndedRequest) -> None:
        """A request that an engine had has ended."""
        usage = request.usage
        found: list[tuple[Histogram, float | None]] = [
            (on.queue_seconds, usage.queue_s if request.reported else None),
            (
                on.adapter_load_seconds,
                usage.load_s if request.reported and request.has_adapter else None,
            ),
            (on.time_to_first_token_seconds, request.ttft_s),
            (on.end_to_end_seconds, request.total_s if request.completed else None),
            (on.prompt_tokens, float(usage.prompt_tokens) or None),
            (on.output_tokens, float(usage.completion_tokens) or None),
        ]
        at = time.time() if request.trace_id else 0.0
        for histogram, value in found:
            if value is None:
                continue
            if request.trace_id:
                histogram.add_example(HistogramExample(request.trace_id, value, at))
            else:
                histogram.add(value)

    def counted(self, base_model: str, engine: str, outcome: str, code: str) -> None:
        """Count a request that was answered, was refused, or failed."""
        if engine and (base_model, engine) not in self.engines:
            engine = OTHER
        self.requests[base_model, engine, outcome, code] += 1

    def refused(self, error: InferenceError) -> None:
        """Count a request that ended in this error, if a limit refused it."""
        if error.limit_kind:
            self.refusals[error.limit_kind, error.limit_scope] += 1

    def checked(self, base_model: str, found: StructureOutcome) -> None:
        """Count an answer that should have a structure."""
        self.structures[base_model, found] += 1

    def forget(self, connected: Collection[tuple[str, str]], now: float) -> None:
        """Drop the figures of engines that have been gone for FORGET_S, because an engine may have
        a new id at each start, and FORGET_S later those of a base model without any. Call it from
        time to time with the connected engines, by base model and id."""
        for key, on in list(self.engines.items()):
            if key in connected or not on.used_at:
                on.used_at = now
            elif now - on.used_at > FORGET_S:
                del self.engines[key]
        for counted in list(self.requests):
            if counted[1] not in ("", OTHER) and counted[:2] not in self.engines:
                del self.requests[counted]
        served = {base_model for base_model, _ in self.engines}
        for base_model in {*self.hold_seconds, *self.engines_lost}:
            if base_model in served:
                self._used_at[base_model] = now
            elif now - self._used_at.setdefault(base_model, now) > FORGET_S:
                del self._used_at[base_model]
                self.hold_seconds.pop(base_model, None)
                self.engines_lost.pop(base_model, None)
                for found in StructureOutcome:
                    self.structures.pop((base_model, found), None)

    def histograms(self, name: str) -> Iterator[tuple[str, str, Histogram]]:
        """The histogram of this name of each engine, with base model and engine id."""
        for (base_model, engine), on in self.engines.items():
            yield base_model, engine, getattr(on, name)


def outcome_of(error: InferenceError | None, finish_reason: str | None, *, begun: bool) -> str:
    """How a request ended, by its error; `begun` says whether an engine had it."""
    if error is None:
        return CANCELLED if finish_reason == CANCELLED else COMPLETED
    if isinstance(error, ClientDisconnected):
        return CANCELLED
    if error.http_status < 500 or (error.http_status == 503 and not begun):
        return REFUSED
    return FAILED


REFUSED_BY_ENGINES = tuple(
    code
    for code, kind in sorted(BY_CODE.items())
    if outcome_of(kind(), code, begun=True) == REFUSED
)
"""The codes of errors with which an engine ends a request that has a fault of its own. The ledger
has them as finish reasons."""


def code_of(error: InferenceError | None, finish_reason: str | None) -> str:
    """Why it ended: the error's code, or the finish reason."""
    if error is not None:
        return error.code
    return finish_reason if finish_reason in REASONS else OTHER
