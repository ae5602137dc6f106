"""Technical prose, with which long prompts are filled: sentences of Python's own reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pydoc_data.topics import topics

MARKED = re.compile(r'"([^"]+)"|\*+([^*]+)\*+|`([^`]+)`')
LENGTHS = range(30, 220)
"""Characters of a sentence."""
MOST_OTHER = 0.1
"""The share of a sentence that may be neither letters nor spaces."""


@cache
def sentences() -> tuple[str, ...]:
    """Some 1,600, the same for one release of Python."""
    return tuple(dict.fromkeys(filter(_plain, _split())))


def _split() -> Iterator[str]:
    for topic in topics.values():
        for paragraph in re.split(r"\n\s*\n", topic):
            line = MARKED.sub(lambda mark: mark[mark.lastindex or 0], " ".join(paragraph.split()))
            yield from re.split(r"(?<=[.:])\s+(?=[A-Z])", line)


def _plain(sentence: str) -> bool:
    if len(sentence) not in LENGTHS or not re.match(r"[A-Z][a-z].*\.$", sentence):
        return False
    others = sum(not (one.isalpha() or one == " ") for one in sentence)
    return others < MOST_OTHER * len(sentence)
