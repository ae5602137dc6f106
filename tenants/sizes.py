"""Sizes in bytes as people read them."""

from __future__ import annotations

UNITS = ("bytes", "KB", "MB", "GB", "TB")
"""Each is 1024 times the one before."""


def size(value: int, beside: int = 0) -> str:
    """`812 bytes`, `25 MB`, `1.5 GB`. In a column of sizes, `beside` is the largest, whose unit all
    have: `0.3 MB`."""
    power = min(max((max(value, beside).bit_length() - 1) // 10, 0), len(UNITS) - 1)
    rounded = f"{value / 1024**power:,.1f}" if power else f"{value:,}"
    if rounded == "0.0" and value:
        rounded = "<0.1"
    return f"{rounded if beside else rounded.removesuffix('.0')}\u00a0{UNITS[power]}"
