"""Vectors of texts without a model, for the synthetic engine: texts that share words are close.

Each word has a vector that depends only on the word and the voice (a base model or adapter); a
text's vector is the sum of its words', scaled to length 1.
"""

from __future__ import annotations

import math
import re
from array import array
from hashlib import blake2b

from inference.errors import InvalidRequest
from inference.operations.pooling.pooling import Text, Vector

DIMENSIONS = 64
_WORD = re.compile(r"\w+")


def vector_of(text: Text, voice: str, dimensions: int | None) -> Vector:
    """The vector of a text or its tokens, for this base model or adapter (`voice`).

    Raises:
        InvalidRequest: more dimensions are asked for than vectors have.
    """
    if dimensions is not None and dimensions > DIMENSIONS:
        raise InvalidRequest(
            f"`dimensions` is {dimensions}: this model's vectors have at most {DIMENSIONS} "
            "dimensions.",
            param="dimensions",
        )
    words = _WORD.findall(text.lower()) if isinstance(text, str) else map(str, text)
    sums = [0] * DIMENSIONS
    for word in [*words] or [""]:
        digest = blake2b(f"{voice}\0{word}".encode(), digest_size=DIMENSIONS).digest()
        sums = [total + byte - 127 for total, byte in zip(sums, digest, strict=True)]
    kept = sums[:dimensions]
    length = math.hypot(*kept) or 1.0
    return array("f", (value / length for value in kept))
