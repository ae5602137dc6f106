"""How long prompts and answers are, in tokens: quantiles of public traces.

In all three traces the lengths of a prompt and of its answer are nearly independent (correlation of
their logarithms below 0.1), so that each is drawn on its own.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from dataclasses import dataclass

SHARES = (0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1)


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """Quantiles at `SHARES`; values between are interpolated by their logarithms."""

    source: str
    prompts: tuple[float, ...]
    outputs: tuple[float, ...]

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """The tokens of a prompt and of its answer, each at least 1."""
        return _quantile(self.prompts, rng.random()), _quantile(self.outputs, rng.random())

    def shrunk(self, times: int) -> LengthFigures:
        """All lengths divided by this."""
        prompts, outputs = (
            tuple(max(1.0, one / times) for one in each) for each in (self.prompts, self.outputs)
        )
        return LengthFigures(self.source, prompts, outputs)


def _quantile(values: tuple[float, ...], share: float) -> int:
    after = min(bisect(SHARES, share), len(SHARES) - 1)
    low, high = math.log(values[after - 1]), math.log(values[after])
    part = (share - SHARES[after - 1]) / (SHARES[after] - SHARES[after - 1])
    return max(1, round(math.exp(low + part * (high - low))))


def fixed(prompt: int, output: int) -> LengthFigures:
    """All prompts and all answers alike."""
    n = len(SHARES)
    return LengthFigures(f"{prompt} and {output} tokens", (prompt,) * n, (output,) * n)


SPLITWISE = "Azure LLM inference trace 2023 (Patel et al., Splitwise, ISCA 2024; CC-BY)"
MOONCAKE = "Mooncake FAST'25 trace (Qin et al., 2025; Apache 2.0)"
PUBLIC = {
    "azure-conversation": LengthFigures(
        f"{SPLITWISE}, conversation",
        (2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050),
        (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000),
    ),
    "azure-code": LengthFigures(
        f"{SPLITWISE}, code",
        (3, 17, 75, 147, 578, 1469, 2744, 5187, 7303, 7436, 7437),
        (6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 1899),
    ),
    "mooncake-conversation": LengthFigures(
        f"{MOONCAKE}, conversation",
        (891, 894, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 126195),
        (1, 3, 10, 24, 156, 350, 472, 597, 698, 1118, 2000),
    ),
}
"""Computed from all requests of each trace: 19,366, 8,819 and 12,031."""
