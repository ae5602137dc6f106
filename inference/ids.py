"""The ids of requests, on both planes."""

from __future__ import annotations

import secrets
import time


def new_id() -> str:
    """A request id: 12 hex digits of time in ms, so that ids sort by time, and 80 random bits."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"
