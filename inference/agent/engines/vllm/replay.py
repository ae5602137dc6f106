"""How the parameters and outputs of a continued answer are marked; `resume.py` acts on it."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams

TOKENS, ENDED = "lorikeet_tokens", "lorikeet_ended"
"""Extra arguments: the tokens to continue from; the finish reason, if that was sent."""

AT_ONCE = 32
"""Tokens replayed before other tasks have a turn on the loop: a few milliseconds."""


def resumed(params: SamplingParams, tokens: Sequence[int], ended: str | None) -> SamplingParams:
    """A copy of the parameters that continues after these tokens; `ended` is the finish reason that
    was sent, if the answer is over."""
    again = params.clone()
    added = {TOKENS: list(tokens), ENDED: ended}
    again.extra_args = (params.extra_args or {}) | added
    return again


def is_replayed(output: RequestOutput) -> bool:
    """Whether the output comes from the replay: its reader was given it before."""
    return getattr(output, "replayed", False)


def tokens_of(params: SamplingParams | None) -> list[int]:
    """The tokens to continue from; none for a new answer."""
    extra = None if params is None else params.extra_args
    tokens: list[int] = (extra or {}).get(TOKENS, [])
    return tokens
