"""Sizes in bytes as people read them."""

from __future__ import annotations

import re

from inference.process import environ

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


SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,3})?)\s*(?:bytes?|([kmgt]?b))?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """The bytes of a size as people write it: `25 GB`, `1.5 gb`, or `812`.

    Raises:
        ValueError: it is none.
    """
    form = SIZE.fullmatch(text.replace("\u00a0", " ").replace(",", "").strip())
    if form is None:
        raise ValueError(f"{text[:40]!r} is no size such as 25 GB.")
    return environ.parse_size(form[1] + (form[2] or ""))
