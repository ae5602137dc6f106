"""Why a request ended as it did, and what to do about it, in sentences."""

from __future__ import annotations

from inference.errors import BY_CODE

REASONS = {
    "stop": "The model ended its answer or reached a stop sequence.",
    "tool_calls": "The model called a tool.",
    "function_call": "The model called a function.",
    "length": "The answer reached `max_tokens`, the end of the model's context, or one of your "
    "limits or budgets; in the last case its `finish_details` named the limit.",
    "cancelled": "The client disconnected or stopped it before the answer was complete.",
    "gateway_lost": "The gateway that was streaming the answer was lost.",
}
"""Explanations of finish reasons that are not error codes."""
AGAIN = "Try again. If it keeps failing, give the operator the request ID."
CHANGE = "Correct the request. Sending it again unchanged will fail again."
OPERATOR = "Contact the operator and give them the request ID."


def cause(code: str) -> str:
    """Why a request with this finish reason ended."""
    if code in REASONS:
        return REASONS[code]
    error = BY_CODE.get(code)
    return (error.__doc__ or "").strip() if error else f"It ended with `{code}`."


def remedy(code: str) -> str:
    """What to do about it; empty if nothing went wrong or the code is unknown."""
    if code == "gateway_lost":
        return AGAIN
    error = BY_CODE.get(code)
    if code in REASONS or error is None:
        return ""
    if error.retryable:
        return AGAIN
    return CHANGE if error.http_status < 500 else OPERATOR
