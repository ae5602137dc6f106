"""Generates the rows of a busy installation: a thousand tenants and ten million requests.

For viewing and measuring pages at that size (`manage.py make_crowd`). In an empty installation the
same size and seed make the same rows, apart from secrets. Only rows are made: no adapter has files,
so none of them can be served, and nobody knows the text of a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

HOURS = 24 * 395
"""The time span that is filled: thirteen months."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is made, and up to which full hour (`until`)."""

    tenants: int
    adapters: int
    events: int
    audit_entries: int
    until: datetime
    seed: int = 1
