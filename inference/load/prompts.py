"""The text of prompts: common English words, most of which are one token for most tokenizers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from inference.load.planned import PlannedRequest

WORDS = """
the of and to in is you that it he was for on are as with his they at be this have from or one had
by word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look
two more write go see number no way could people my than first water been call who its now find
long down day did get come made may part over new sound take only little work know place year live
me back give most very after thing our just name good sentence man think say great where help
through much before line right too mean old any same tell boy follow came want show also around
form three small set put end does another well large must big even such because turn here why ask
went men read need land different home
""".split()


@dataclass(frozen=True, slots=True)
class PromptText:
    """`salt` makes the text of a run its own: a prompt cache then holds nothing of an earlier run.

    `tokens_per_word` and `overhead_tokens` (of the chat template) say how many words a prompt
    needs; `measured` finds them out.
    """

    salt: str
    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0

    def of(self, request: PlannedRequest) -> str:
        """The prompt's text, at least a word."""
        left = self.overhead_tokens
        texts = []
        for id, tokens in request.pieces:
            skipped, left = min(left, tokens), max(0.0, left - tokens)
            texts.append(_text(self.salt, id, round((tokens - skipped) / self.tokens_per_word)))
        return " ".join(filter(None, texts)) or WORDS[0]

    def words(self, count: int) -> str:
        """So many words that no prompt of a plan begins with."""
        return _text(self.salt, -1, count)

    def measured(self, short: tuple[int, int], long: tuple[int, int]) -> PromptText:
        """With what two prompts took: each is a number of words and of tokens."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        return PromptText(self.salt, per_word, max(0.0, short[1] - per_word * short[0]))


@lru_cache(maxsize=8192)
def _text(salt: str, id: int, words: int) -> str:
    return " ".join(random.Random(f"{salt}:{id}").choices(WORDS, k=words))
