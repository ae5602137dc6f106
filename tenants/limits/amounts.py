"""What a request takes of its limits, and what stays counted of it. Sans-IO.

Costs are in micro-units of the currency.
"""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, gc=False):
    """What is reserved at one moment, a unix time in seconds."""

    second: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    tokens: int
    """Both together."""
    cost: int


KINDS = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
    "prompt_tokens_per_minute": "prompt_tokens",
    "output_tokens_per_minute": "output_tokens",
    "concurrent_streams": "requests",
    "tokens_per_day": "tokens",
    "tokens_per_month": "tokens",
    "cost_per_day": "cost",
    "cost_per_month": "cost",
}
"""Which field of a Part each limit counts."""
WITHOUT_OUTPUT = ("requests", "prompt_tokens")
"""Those that no output token adds to."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What stays counted of a reservation that ended."""

    requests: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    rest: int = 0
    """Of the cost, below a micro-unit: in pico-units."""
    estimated: bool = False
    """Nobody knows what it used: these are the figures that were reserved."""
    doubted: bool = False
    """It may have used something: the ledger is to be asked."""
