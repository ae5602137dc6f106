"""The prefix cache of the synthetic engine."""

from __future__ import annotations

from collections import OrderedDict

from inference.agent.engines.cache_news import NewsLog, Removed, Stored
from inference.agent.engines.synthetic.tokens import TOKEN_CHARS

BLOCK_TOKENS = 32
"""Tokens per block of the prefix cache; only full blocks are shared, as in vLLM."""


class PrefixCache:
    """The blocks of prompts that were seen. The least recently used is evicted first; of one
    prompt, the last one first."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.news = NewsLog()

    def reuse(self, key: str, owner: str, prompt: str) -> int:
        """How many tokens of the prompt of request `key` were sent by `owner` before; remembers the
        prompt. The last block is always computed again, as in vLLM.
        """
        size, block, hits, unbroken = BLOCK_TOKENS * TOKEN_CHARS, hash(owner), 0, True
        blocks = list[int]()
        for start in range(0, len(prompt) - size, size):
            block = hash((block, prompt[start : start + size]))
            unbroken = unbroken and block in self._blocks
            hits += unbroken
            blocks.append(block)
        self._hold(blocks)
        self.news.add(Stored(key, None, blocks, BLOCK_TOKENS))
        return hits * BLOCK_TOKENS

    def _hold(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self.news.add(Removed([self._blocks.popitem(last=False)[0]]))
