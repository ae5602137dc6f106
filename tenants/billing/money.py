"""Sums of money as they are shown."""

from __future__ import annotations

from inference.interfaces.directory import PICO


def amount(cost: int) -> str:
    """A cost in pico-units as a decimal number of the currency, exact: twelve places, no exponent.

    Raises:
        ValueError: the cost is negative.
    """
    if cost < 0:
        raise ValueError(f"a cost of {cost}")
    return f"{cost // PICO}.{cost % PICO:012d}"
