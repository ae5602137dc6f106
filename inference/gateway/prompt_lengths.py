"""Estimates of prompt lengths.

The gateway has no tokenizer, so it estimates a prompt's tokens from its bytes, using the ratio of
the tenant's earlier prompts to the same base model. The engine's figures replace the estimate when
the request ends.
"""

from __future__ import annotations

TOKENS_PER_BYTE = 0.3
"""Used before anything is known about a tenant's prompts: between English prose (0.25) and JSON or
code."""
LEAST_PER_BYTE = 0.1
"""Lower bound of the learned ratio: a tenant can't get prompts for free by stuffing bodies with
bytes that no engine reads."""
SMOOTHING = 0.05
"""Weight of the newest prompt in the average."""


class PromptLengths:
    """Tokens per byte of request body, learned per tenant and base model: one tenant's prompts say
    nothing about another's, and must not influence them."""

    def __init__(self) -> None:
        self._per_byte: dict[tuple[int, str], float] = {}

    def estimate(self, tenant_id: int, base_model: str, body_bytes: int) -> int:
        """Estimated prompt tokens of a body of this size, at least 1."""
        known = self._per_byte.get((tenant_id, base_model), TOKENS_PER_BYTE)
        return max(1, round(body_bytes * known))

    def learn(self, tenant_id: int, base_model: str, body_bytes: int, tokens: int) -> None:
        """Note that a body of this size had this many prompt tokens."""
        known = self._per_byte.get((tenant_id, base_model), TOKENS_PER_BYTE)
        found = max(tokens / body_bytes, LEAST_PER_BYTE)
        self._per_byte[tenant_id, base_model] = known + SMOOTHING * (found - known)
