"""Whole chat answers as engines return them, for operations that convert them."""

from __future__ import annotations

import json
from typing import Any


def answer(reason: str = "stop", *, logprobs: Any = None, **message: Any) -> bytes:
    """An answer with one choice that has this message."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    choice = {"index": 0, "message": message, "finish_reason": reason}
    choice |= {"stop_reason": None, "logprobs": logprobs}
    return json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode()
