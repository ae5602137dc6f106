"""What a request is going to use, before it runs: what the limits are asked for.

The gateway has no tokenizer, so the prompt's length is estimated from its bytes by what earlier
prompts of the same base model turned out to have. The engine's figures replace the estimate when
the request ends.
"""

from __future__ import annotations

from inference.grants import Ask
from inference.openai import Call
from inference.stream import EXTENSION_TOKENS

TOKENS_PER_BYTE = 0.3
"""Before anything is known of a base model: between English prose (0.25) and JSON or code."""
SMOOTHING = 0.05
"""Weight of the newest prompt in the average."""
LEAST_TOKENS = 16
"""A request that doesn't say how much it wants is not worth starting for fewer."""
WHOLE_TOKENS = 4096
"""What an answer gets at most that neither streams nor says how much it wants, where a limit of
tokens holds: such an answer can't be cut when it outgrows what was reserved."""


class PromptLengths:
    """Tokens per byte of request body, learned for each base model."""

    def __init__(self) -> None:
        self._per_byte: dict[str, float] = {}

    def estimate(self, base_model: str, body_bytes: int) -> int:
        """Tokens in the prompt of a body of this size, at least 1."""
        return max(1, round(body_bytes * self._per_byte.get(base_model, TOKENS_PER_BYTE)))

    def learn(self, base_model: str, body_bytes: int, tokens: int) -> None:
        """A body of this size had so many prompt tokens."""
        found, known = tokens / body_bytes, self._per_byte.get(base_model, TOKENS_PER_BYTE)
        self._per_byte[base_model] = known + SMOOTHING * (found - known)


def ask_of(call: Call, prompt_tokens: int, max_model_len: int) -> Ask:
    """What to reserve for a call; `max_model_len` in tokens, 0 where it is not known.

    A call that says how much it wants gets all of it or is refused. A stream that doesn't starts
    with little and asks for more on its way.
    """
    room = max(1, max_model_len - prompt_tokens) if max_model_len else WHOLE_TOKENS
    if call.max_tokens is not None:
        wanted = call.choices * max(0, min(call.max_tokens, room))
        return Ask(prompt_tokens, wanted, wanted)
    wanted = call.choices * min(room, EXTENSION_TOKENS if call.stream else WHOLE_TOKENS)
    return Ask(prompt_tokens, wanted, min(wanted, call.choices * LEAST_TOKENS))


def grows(call: Call) -> bool:
    """Whether more may be reserved for it while it runs."""
    return call.stream and call.max_tokens is None


def bound_of(call: Call, reserved_tokens: int | None) -> int | None:
    """What each choice may generate at most by the limits; None where the call says so itself,
    may outgrow it, or nothing limits it."""
    if reserved_tokens is None or call.stream or call.max_tokens is not None:
        return None
    return max(1, reserved_tokens // call.choices)
