"""What an engine reports of its prefix cache: which blocks it stored, and which it removed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

Block = Hashable
"""An engine's name for a block of tokens and all that comes before it."""

MAX_NEWS = 100_000
"""Kept until they are taken. Beyond that they are dropped, and the cache counts as empty."""


class Stored(NamedTuple):
    """The cache holds these blocks now, for the request that the engine knows as `key`, including
    those of its prompt that were there already. They follow the block `parent`, None if they are
    the first."""

    key: str
    parent: Block | None
    blocks: Sequence[Block]
    block_tokens: int


class Removed(NamedTuple):
    """The cache no longer holds these blocks."""

    blocks: Sequence[Block]


class Cleared(NamedTuple):
    """The cache is empty, or some news were lost."""


News = Stored | Removed | Cleared


class NewsLog:
    """News in their order, until they are taken. Bounded."""

    def __init__(self, max_news: int = MAX_NEWS) -> None:
        self._news: list[News] = []
        self._max_news = max_news

    def add(self, news: News) -> None:
        """Append news; `Cleared`, or too many of them, replace all before."""
        if isinstance(news, Cleared) or len(self._news) >= self._max_news:
            self._news = [Cleared()]
        if not isinstance(news, Cleared):
            self._news.append(news)

    def take(self) -> list[News]:
        """Everything since the last call."""
        taken, self._news = self._news, []
        return taken
