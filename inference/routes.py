"""Which option of a route answers a text: the cheapest of which the fit predicts that it does
nearly as well as the best.

The fit is a logistic regression for each option on hashed words and pairs of words (feature
hashing: Weinberger et al., ICML 2009), which predicts whether its answer passes. `tenants.routes`
computes it; gateways only add up some hundred weights, in less than a millisecond.

A cascade has no such fit, only a threshold: see `tenants.routes.cascading`.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

import msgspec

BUCKETS = 4096
"""Weights of an option, one for each hash."""
MAX_OPTIONS = 4
MAX_TOKENS = 256
"""Words of a text that count."""
_TOKEN = re.compile(r"[\u3040-\u9fff\uac00-\ud7a3]|[^\W\u3040-\u9fff\uac00-\ud7a3]+|[^\w\s]")
"""A word, a sign, or one character of a script that has no spaces."""
_DIGIT = re.compile(r"\d")


def buckets_of(text: str, length: int) -> list[int]:
    """The buckets of a text, sorted, each once; `length` is that of the whole text in characters,
    of which this may be an excerpt. Numbers count by how many digits they have."""
    tokens = _TOKEN.findall(_DIGIT.sub("0", text.lower()))[:MAX_TOKENS]
    features = [f"length {length.bit_length()}", f"words {len(tokens).bit_length()}", *tokens]
    features += map(" ".join, pairwise(tokens))
    return sorted({crc32(one.encode("utf-8", "replace")) % BUCKETS for one in features})


class RouteFit(msgspec.Struct, frozen=True):
    """What was fitted: `numbers` are logits, first a bias for each option, the cheapest first, then
    for each of BUCKETS a weight for each option. `threshold` is how much less likely than the best
    option the chosen one may be to pass."""

    numbers: array[float]
    threshold: float

    @classmethod
    def of(cls, packed: bytes, threshold: float) -> RouteFit:
        """From the numbers as native 32-bit floats.

        Raises:
            ValueError: they are not those of 2 to MAX_OPTIONS options.
        """
        numbers = array("f", packed)
        options, rest = divmod(len(numbers), BUCKETS + 1)
        if rest or not 2 <= options <= MAX_OPTIONS:
            raise ValueError(f"{len(numbers)} numbers are not those of 2 to {MAX_OPTIONS} options")
        return cls(numbers, threshold)

    def chances(self, text: str, length: int) -> list[float]:
        """How likely the answer of each option passes, from 0 to 1."""
        numbers, count = self.numbers, len(self.numbers) // (BUCKETS + 1)
        found = [count * (1 + bucket) for bucket in buckets_of(text, length)]
        scale = 1 / math.sqrt(len(found))
        return [
            _logistic(numbers[option] + scale * sum([numbers[at + option] for at in found]))
            for option in range(count)
        ]

    def choose(self, text: str, length: int, usable: Sequence[int]) -> int:
        """The option that answers; `usable` are those that may, ascending, at least one."""
        chances = self.chances(text, length)
        enough = max(chances[one] for one in usable) - self.threshold
        return next(one for one in usable if chances[one] >= enough)


def is_sure(logprob: float | None, threshold: float) -> bool:
    """Whether the answer of a cascade's first option stays, by the mean log-probability of its
    tokens; None if it is not known."""
    return logprob is not None and logprob >= threshold


def _logistic(value: float) -> float:
    """Without overflow: of large values it is 0 or 1."""
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, value))))
