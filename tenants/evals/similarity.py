"""How similar two texts are, from 0 to 1. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence

WORD = re.compile(r"\w+")
MAX_ORDER = 4
"""The longest n-grams of BLEU and GLEU."""


def similarity(metric: str, text: str, reference: str) -> float:
    """The similarity of a text with its reference by one of `criteria.Similarity`; that of two
    texts without words is 1."""
    if metric == "fuzzy_match":
        return _shared(text, reference)
    words, expected = (WORD.findall(one.lower()) for one in (text, reference))
    if not words or not expected:
        return float(words == expected)
    if metric == "rouge_l":
        return _shared(words, expected)
    if metric.startswith("rouge_"):
        return _rouge(words, expected, int(metric.removeprefix("rouge_")))
    return (_bleu if metric == "bleu" else _gleu)(words, expected)


def longest_common_subsequence(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Its length, bit-parallel (Hyyrö 2004, "Bit-parallel LCS-length computation revisited")."""
    places: dict[Hashable, int] = {}
    for at, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << at
    whole = (1 << len(one)) - 1
    unmatched = whole
    for item in other:
        matched = unmatched & places.get(item, 0)
        unmatched = (unmatched + matched | unmatched - matched) & whole
    return len(one) - unmatched.bit_count()


def _shared(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """The share of both that their longest common subsequence has: rapidfuzz's ratio of
    characters, ROUGE-L's F1 of words."""
    both = len(one) + len(other)
    return 2 * longest_common_subsequence(one, other) / both if both else 1.0


def _grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))


def _rouge(words: Sequence[str], expected: Sequence[str], order: int) -> float:
    """F1 of the n-grams that both have (Lin 2004)."""
    mine, theirs = _grams(words, order), _grams(expected, order)
    both = mine.total() + theirs.total()
    return 2 * (mine & theirs).total() / both if both else float(words == expected)


def _bleu(words: Sequence[str], expected: Sequence[str]) -> float:
    """BLEU of a sentence (Papineni 2002), with sacrebleu's exponential smoothing."""
    logs, smoothing = [], 1.0
    for order in range(1, min(MAX_ORDER, len(words)) + 1):
        mine = _grams(words, order)
        matches: float = (mine & _grams(expected, order)).total()
        if not matches:
            smoothing *= 2
            matches = 1 / smoothing
        logs.append(math.log(matches / mine.total()))
    brevity = min(0.0, 1 - len(expected) / len(words))
    return math.exp(brevity + sum(logs) / len(logs)) if set(words) & set(expected) else 0.0


def _gleu(words: Sequence[str], expected: Sequence[str]) -> float:
    """Google's BLEU (Wu 2016): the lesser of precision and recall over all n-grams."""
    matches = mine = theirs = 0
    for order in range(1, MAX_ORDER + 1):
        one, other = _grams(words, order), _grams(expected, order)
        matches += (one & other).total()
        mine, theirs = mine + one.total(), theirs + other.total()
    return matches / max(mine, theirs)
