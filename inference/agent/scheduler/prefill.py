"""How much of prompts the engine has yet to compute. No engine, no loop: arithmetic.

vLLM computes at most so many tokens in a step, those of the requests that came first before those
of later ones: a few long prompts would keep everybody else from their next token until all of them
are computed. So of prompts that take more than a step, one is computed at a time; the engine is
told to give it a quarter of a step (`EngineProfile.on_cpu`). Of shorter ones two steps' worth may
be waiting, so that the engine never waits for the agent.
"""

from __future__ import annotations

STEPS_AHEAD = 2


class Prefill:
    """The prompts of running requests that have no token yet."""

    def __init__(self, step_tokens: int) -> None:
        """`step_tokens`: what the engine computes in a step at most."""
        self._step_tokens = step_tokens
        self._long = 0
        """Requests."""
        self._short_tokens = 0

    def takes(self, tokens: int) -> bool:
        """Whether a request with a prompt of so many tokens may start."""
        if tokens > self._step_tokens:
            return not self._long
        return self._short_tokens < STEPS_AHEAD * self._step_tokens

    def start(self, tokens: int) -> None:
        """A request with such a prompt starts."""
        self._count(tokens, 1)

    def end(self, tokens: int) -> None:
        """It has its first token, or has ended."""
        self._count(tokens, -1)

    def _count(self, tokens: int, sign: int) -> None:
        if tokens > self._step_tokens:
            self._long += sign
        else:
            self._short_tokens += sign * tokens
