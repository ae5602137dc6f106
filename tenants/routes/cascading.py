"""Fits a cascade: of two options the cheaper one answers first, and the other one is asked only if
the mean log-probability of that answer's tokens is below a threshold.

The threshold is the one number that is fitted, so it is chosen on all training rows, without folds:
of those that they have, the one that costs least and with which surely not fewer rows pass than
with the best single option; or if there is none, not fewer by more than the margin. Surely means
that the held-out rows should show it too. Rows, report and verdict are those of
`tenants.routes.fitting`. A row that both answer costs both answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from inference.routes import is_sure
from tenants.routes.fitting import DividedRows, RoutedRow, RouteReport, report_of

ALWAYS_ASKED = 0.0
"""The highest log-probability: the second option is asked unless the first one had no choice."""
STANDARD_ERRORS = 3.2
"""How many of them below its mean the difference must still be within the margin on the training
rows: the verdict requires 1.96 on the held-out rows, whose mean may be lower."""


def fit_cascade(
    models: Sequence[str], rows: Sequence[RoutedRow], margin: float
) -> tuple[float, RouteReport]:
    """The threshold and its report; `margin` is as in `fitting.fit`.

    Raises:
        TooFewRows: there are not enough, or all of a kind.
    """
    divided = DividedRows.of(models, rows)
    threshold = _threshold(divided, margin)
    chosen = [_answers(row, threshold) for row in divided.held_out]
    costs = [[*accumulate(row.cost)] for row in divided.held_out]
    return threshold, report_of(divided, threshold, chosen, costs)


def _answers(row: RoutedRow, threshold: float) -> int:
    return 0 if is_sure(row.logprobs[0], threshold) else 1


def _threshold(divided: DividedRows, margin: float) -> float:
    """Lowering it past a row's log-probability has that row answered by the first option, so the
    lowest costs least. One with which surely nothing is lost is preferred."""
    rows, best, lossless, found = divided.training, divided.best, ALWAYS_ASKED, ALWAYS_ASKED
    gains = [int(row.passed[1]) - row.passed[best] for row in rows]
    total, squares = sum(gains), sum(gain * gain for gain in gains)
    known = [(row.logprobs[0], row) for row in rows if row.logprobs[0] is not None]
    ranked = sorted(known, key=lambda one: one[0], reverse=True)
    for at, (logprob, row) in enumerate(ranked):
        before, after = (int(row.passed[option]) - row.passed[best] for option in (1, 0))
        total += after - before
        squares += after * after - before * before
        is_last = at + 1 == len(ranked) or ranked[at + 1][0] < logprob
        low = _low(total, squares, len(rows)) if is_last else -math.inf
        lossless = logprob if low >= 0 else lossless
        found = logprob if low >= -margin else found
    return lossless if lossless < ALWAYS_ASKED else found


def _low(total: int, squares: int, count: int) -> float:
    """A mean less so many of its standard errors."""
    mean = total / count
    variance = max(0.0, squares / count - mean * mean)  # rounded, it can be just below 0
    return mean - STANDARD_ERRORS * math.sqrt(variance / count)
