"""How many tokens of prompts the engine has yet to compute. No engine, no loop: arithmetic.

vLLM computes a bounded number of tokens in a step, in the order in which requests came: a few long
prompts would keep all other requests from their next token until these prompts are computed. So of
prompts that take more than a step, one is computed at a time; the engine is told to give it a
quarter of a step (`EngineProfile.on_cpu`). Of shorter ones two steps' worth may be waiting, so that
the engine never waits for the agent.
"""

from __future__ import annotations

STEPS_AHEAD = 2


class Prefill:
    """The prompts of running requests that have no token yet."""

    def __init__(self, step_tokens: int) -> None:
        """`step_tokens`: the most that the engine computes in a step."""
        self._step_tokens = step_tokens
        self._long = 0
        """Requests whose prompts take more than a step."""
        self._short_tokens = 0

    def takes(self, tokens: int) -> bool:
        """Whether a request with a prompt of `tokens` tokens may start."""
        if tokens > self._step_tokens:
            return not self._long
        return self._short_tokens < STEPS_AHEAD * self._step_tokens

    def start(self, tokens: int) -> None:
        """A request with such a prompt starts."""
        self._count(tokens, 1)

    def end(self, tokens: int) -> None:
        """Such a request has its first token, or has ended."""
        self._count(tokens, -1)

    def _count(self, tokens: int, sign: int) -> None:
        if tokens > self._step_tokens:
            self._long += sign
        else:
            self._short_tokens += sign * tokens
