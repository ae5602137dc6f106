"""What a tenant is charged for a request, in tokens. Arithmetic alone."""

from __future__ import annotations

from inference.agent.scheduler.lane import QueuedRequest

LEAST_CHARGE = 32
"""Tokens that every request counts as, at least: starting and ending one costs the engine steps
too, even if its client leaves at once and its prompt is cached."""
RETURN_CHARGE = 1
"""At the start of a request that continues from another engine."""


def at_start(request: QueuedRequest) -> int:
    """The charge when it starts, by the estimate of its prompt."""
    return RETURN_CHARGE if request.paid else max(LEAST_CHARGE, request.workload.prompt_tokens)


def so_far(request: QueuedRequest, prompt_tokens: int | None, completion_tokens: int) -> int:
    """The charge once it has used this much; `prompt_tokens` are those that the cache did not hold,
    None as long as the engine has not counted them. A request that continues from another engine
    was charged there for its beginning."""
    prompt = at_start(request) if prompt_tokens is None else prompt_tokens
    tokens = prompt + completion_tokens
    return max(0, tokens - request.paid) if request.paid else max(LEAST_CHARGE, tokens)
