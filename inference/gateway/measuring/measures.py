"""What a gateway measures of its requests, by engine and base model; `planes.metrics` shows it.

All of it is of this gateway's requests alone, so over several gateways it adds up. Everything is a
plain number of one event loop. What is counted per token is looked up once per engine.

Bounds are those of OpenTelemetry's conventions for generative AI, each of the measure that it is:
https://github.com/open-telemetry/semantic-conventions/blob/main/docs/gen-ai/gen-ai-metrics.md
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from inference.errors import ClientDisconnected, InferenceError
from inference.gateway.measuring.busiest import Busiest
from inference.gateway.measuring.histogram import Example, Histogram
from inference.link.wire import Usage

DURATION_S = tuple(0.01 * 2**n for n in range(14))
"""Of whole operations and their parts: 0.01 s, doubling to 81.92 s."""
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
INTER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = tuple(float(4**n) for n in range(14))

OF_ENGINES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "queue_seconds": (
        "From an engine's receipt of a request until the engine lets it in, the fetching of its "
        "adapter's files included.",
        DURATION_S,
    ),
    "adapter_load_seconds": (
        "From then until the adapter of a request is loaded, of requests for adapters.",
        DURATION_S,
    ),
    "time_to_first_token_seconds": (
        "From a request's admission at the gateway to the first of its answer.",
        FIRST_TOKEN_S,
    ),
    "inter_token_seconds": (
        "Between the tokens of an answer, as they arrive at the gateway; those that come together "
        "share the time.",
        INTER_TOKEN_S,
    ),
    "end_to_end_seconds": (
        "From a request's admission at the gateway to the end of its answer, of completed ones.",
        DURATION_S,
    ),
    "prompt_tokens": ("Prompt tokens of a request, the cached ones included.", TOKENS),
    "output_tokens": ("Output tokens of a request.", TOKENS),
}
"""The histograms of each engine, with their texts and bounds. As metrics they are `lorikeet_...`"""

COMPLETED, CANCELLED, REFUSED, FAILED = "completed", "cancelled", "refused", "failed"
"""How requests end: `refused` are those that are at fault themselves, or that limits or missing
engines turn away before any engine had them; `failed` are ours."""
EXPECTED = (
    (COMPLETED, "stop"), (COMPLETED, "length"), (FAILED, "engine_lost"), (FAILED, "engine_failed"),
    (FAILED, "generation_timeout"), (FAILED, "internal_error"),
)  # fmt: skip
"""Of each engine, and below of no engine: counted from 0 on. Prometheus takes no notice of the
first of a kind that it sees, as it can't know when that came."""
TURNED_AWAY = ("no_engine_available", "server_is_overloaded", "service_unavailable")
REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "cancelled"})
"""Finish reasons that are told apart: engines make them, so anything might come."""

FORGET_S = 900.0
"""How long the figures of an engine stay that is gone: some scrapes."""
MAX_ENGINES = 1_000
"""Engines with figures of their own; those beyond it share one line, as `other`."""
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
    """Of the monotonic clock: when the engine was last there."""

    @classmethod
    def empty(cls) -> OnEngine:
        """Nothing was measured yet."""
        return cls(*(Histogram(bounds) for _, bounds in OF_ENGINES.values()))


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that ended on an engine. `ttft_s` and `total_s` are from its admission at the
    gateway; `usage` is what its engine said, of which times are only there if it `reported`."""

    usage: Usage
    reported: bool
    has_adapter: bool
    completed: bool
    ttft_s: float | None
    total_s: float
    trace_id: str = ""
    """Empty where there is no trace of it."""


@dataclass(slots=True, eq=False)
class Measures:
    """All of one gateway. The figures of counters only grow."""

    busiest: Busiest = field(default_factory=lambda: Busiest(0))
    engines: dict[tuple[str, str], OnEngine] = field(default_factory=dict)
    """By base model and engine."""
    hold_seconds: dict[str, Histogram] = field(default_factory=dict)
    """By base model: how long requests were held that were."""
    requests: Counter[tuple[str, str, str, str]] = field(
        default_factory=lambda: Counter({("", "", REFUSED, code): 0 for code in TURNED_AWAY})
    )
    """By base model and engine (empty where they got none), outcome, and code."""
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of limits: by their kind, and whose they are."""
    engines_lost: Counter[str] = field(default_factory=Counter)
    """By base model: engines that left without having said so."""

    def engine(self, base_model: str, id: str) -> OnEngine:
        """Where to add what is measured of requests on this engine; to be kept."""
        if (base_model, id) not in self.engines and len(self.engines) >= MAX_ENGINES:
            id = OTHER
        for outcome, code in EXPECTED:
            self.requests[base_model, id, outcome, code] += 0
        self.engines_lost[base_model] += 0
        return self.engines.setdefault((base_model, id), OnEngine.empty())

    def held(self, base_model: str, seconds: float) -> None:
        """A request was held for an engine for so long, and is not any more."""
        if base_model not in self.hold_seconds:
            self.hold_seconds[base_model] = Histogram(DURATION_S)
        self.hold_seconds[base_model].add(seconds)

    def ended(self, on: OnEngine, request: Ended) -> None:
        """A request ended that an engine had."""
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
                histogram.add_example(Example(request.trace_id, value, at))
            else:
                histogram.add(value)

    def counted(self, base_model: str, engine: str, outcome: str, code: str) -> None:
        """A request was answered, or refused, or failed."""
        if engine and (base_model, engine) not in self.engines:
            engine = OTHER
        self.requests[base_model, engine, outcome, code] += 1

    def refused(self, error: InferenceError) -> None:
        """A request was refused; only what limits refuse has a kind."""
        if error.limit_kind:
            self.refusals[error.limit_kind, error.limit_scope] += 1

    def forget(self, connected: Collection[tuple[str, str]], now: float) -> None:
        """Drop the figures of engines that have been gone for long. Call it now and then with those
        that are there, by base model and id: ids may be new at each start."""
        for key, on in list(self.engines.items()):
            if key in connected or not on.used_at:
                on.used_at = now
            elif now - on.used_at > FORGET_S:
                del self.engines[key]
        for counted in list(self.requests):
            if counted[1] not in ("", OTHER) and counted[:2] not in self.engines:
                del self.requests[counted]

    def histograms(self, name: str) -> Iterator[tuple[str, str, Histogram]]:
        """Of each engine with its base model: the one of this name."""
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


def code_of(error: InferenceError | None, finish_reason: str | None) -> str:
    """Why it ended: the error's code, or the finish reason."""
    if error is not None:
        return error.code
    return finish_reason if finish_reason in REASONS else OTHER
