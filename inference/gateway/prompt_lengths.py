"""How long prompts usually are.

The gateway has no tokenizer, so the prompt's length is estimated from its bytes by what the
tenant's earlier prompts to the same base model turned out to have. The engine's figures replace the
estimate when the request ends.
"""

from __future__ import annotations

TOKENS_PER_BYTE = 0.3
"""Before anything is known of a tenant's prompts: between English prose (0.25) and JSON or code."""
LEAST_PER_BYTE = 0.1
"""No estimate is below that: bodies stuffed with what no engine reads make no prompt free."""
SMOOTHING = 0.05
"""Weight of the newest prompt in the average."""


class PromptLengths:
    """Tokens per byte of request body, learned for each tenant and base model: what one sends says
    nothing of another's prompts, and must not."""

    def __init__(self) -> None:
        self._per_byte: dict[tuple[int, str], float] = {}

    def estimate(self, tenant_id: int, base_model: str, body_bytes: int) -> int:
        """Tokens in the prompt of a body of this size, at least 1."""
        known = self._per_byte.get((tenant_id, base_model), TOKENS_PER_BYTE)
        return max(1, round(body_bytes * known))

    def learn(self, tenant_id: int, base_model: str, body_bytes: int, tokens: int) -> None:
        """A body of this size had so many prompt tokens."""
        known = self._per_byte.get((tenant_id, base_model), TOKENS_PER_BYTE)
        found = max(tokens / body_bytes, LEAST_PER_BYTE)
        self._per_byte[tenant_id, base_model] = known + SMOOTHING * (found - known)
