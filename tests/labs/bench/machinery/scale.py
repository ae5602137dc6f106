"""How much each benchmark does, and the parameters that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`key` is a tenant's, with the scope `inference`; `model` is served by vLLM instead of the
    demo model; the rest are counts."""

    key: str
    model: str | None = None
    rounds: int = 7
    single_requests: int = 500
    requests: int = 3_000
    streams: int = 320
    paced_streams: int = 192
    engine_rounds: int = 7
    engine_streams: int = 96
    open_streams: int = 2_000
    fairness_rounds: int = 3
    questions: int = 100
    crowd_questions: int = 1_000
    thrash_rounds: int = 3
    thrash_streams: int = 96
    traffic_rounds: int = 3
    traffic_s: float = 60.0
    traffic_rate: float = 6.0
    sizing_rounds: int = 5
    sizing_batches: int = 8
    sizing_s: float = 60.0
    ledger_rows: int = 50_000
    events: int = 10_000_000
    page_tenants: int = 1_000
    page_adapters: int = 10_000
    page_rounds: int = 3
    batch_rounds: int = 2
    batch_lines: int = 50_000
    plane_rounds: int = 5
    plane_streams: int = 64
    deciding: tuple[int, ...] = (4, 64, 512)
    """Fleet sizes for which a routing decision is timed."""
    fleets: tuple[tuple[int, int], ...] = tuple(product((4, 64, 512), (1, 3, 16)))
    """Simulated fleets: engines and gateways."""
    fleet_s: float = 120
    whole_engines: int = 512


QUICK: dict[str, Any] = {
    "rounds": 3,
    "single_requests": 200,
    "requests": 1_000,
    "streams": 128,
    "paced_streams": 64,
    "engine_rounds": 2,
    "engine_streams": 64,
    "open_streams": 500,
    "fairness_rounds": 1,
    "questions": 40,
    "crowd_questions": 400,
    "thrash_rounds": 1,
    "thrash_streams": 64,
    "traffic_rounds": 1,
    "traffic_s": 30.0,
    "traffic_rate": 2.0,
    "sizing_rounds": 2,
    "sizing_batches": 4,
    "sizing_s": 30.0,
    "ledger_rows": 20_000,
    "events": 500_000,
    "page_tenants": 100,
    "page_adapters": 1_000,
    "page_rounds": 1,
    "batch_rounds": 1,
    "batch_lines": 10_000,
    "plane_rounds": 2,
    "plane_streams": 32,
    "deciding": (4, 64),
    "fleets": ((4, 3), (64, 3)),
    "fleet_s": 30,
    "whole_engines": 32,
}
"""Enough for a smoke test and rough figures: two or three minutes."""
