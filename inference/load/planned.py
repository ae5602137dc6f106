"""What is to be sent, and when."""

from __future__ import annotations

from dataclasses import dataclass

MOST_REQUESTS = 1_000_000
"""In one plan; its requests and their outcomes are kept in memory."""


class BadLoadPlan(ValueError):
    """A plan can't be made of what was given; the message names it."""


PromptPiece = tuple[int, int]
"""A part of a prompt: an id, which decides its text, and its length in tokens."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """`at_s` is in seconds from the start. Prompts whose first pieces are equal begin with the same
    text."""

    at_s: float
    tenant: str
    model: str
    pieces: tuple[PromptPiece, ...]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.pieces)
