"""What stays counted of a request that ended. Sans-IO."""

from __future__ import annotations

from typing import NamedTuple


class Outcome(NamedTuple):
    """What stays counted of a reservation that ended. Cost in micro-units of the currency."""

    requests: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    estimated: bool = False
    """Nobody knows what it used: these are the figures that were reserved."""
    doubted: bool = False
    """It may have used something: the ledger is to be asked."""
