"""Fits a route on graded rows, and reports what it gains on rows that it was not fitted on.

1. Rows are divided by a hash of their text, so that equal texts are on the same side: HELD_OUT of
   them are held out, the others are for training, in FOLDS.
2. For each option a logistic regression predicts from the text whether its answer passes. The
   predictions for each fold come from the other folds; by them the threshold is chosen that costs
   least and passes less often than the best single option by at most a third of the margin, so
   that the loss can be told from the margin on the held-out rows.
3. On the held-out rows the route is compared with the best single option, and with the same shares
   of options assigned at random: the expectation over all such assignments. What the best option
   is was decided on the training rows.

The route gains if it saves MIN_SAVING of what the best option costs, passes not less often by
more than the margin, and passes more often than at random. These are 95 % intervals of paired
differences (`tenants.evals.comparing`). Nothing is random, so the same rows give the same fit.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import fmean

import msgspec
import numpy as np
import numpy.typing as npt

from inference.routes import BUCKETS, RouteFit, buckets_of
from tenants.evals.comparing import PairedDifference, mean_difference

HELD_OUT = 0.5
FOLDS = 5
MIN_ROWS = 150
"""Of each side at least 50: with fewer even a good route can't show its gain."""
MIN_SIDE = 50
MAX_ROWS = 3000
"""The first ones count. They are fitted in some seconds."""
MIN_SAVING = 0.02
"""A smaller share of the cost is not worth a choice, and can be the luck of a few rows."""
STEPS = 120
PENALTY = 3.0
"""Of squared weights, divided by the rows: as strong as evidence from three rows."""
THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Numbers = npt.NDArray[np.float32]


class TooFewRows(Exception):
    """The rows can't be fitted; the message says why."""


@dataclass(frozen=True, slots=True)
class RoutedRow:
    """A text, an excerpt of one of `length` characters, and for each option whether its answer
    passed and what it cost, in pico-units of the currency. `logprobs` has the mean log-probability
    of each answer's tokens, None where it is not known; it may be empty if nobody needs it."""

    text: str
    length: int
    passed: tuple[bool, ...]
    cost: tuple[int, ...]
    logprobs: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class DividedRows:
    """Rows to fit a route on, and others to try it on. The options are from the cheapest on; `best`
    is the place of the best single one by the training rows."""

    models: list[str]
    best: int
    training: list[RoutedRow]
    held_out: list[RoutedRow]

    @classmethod
    def of(cls, models: Sequence[str], rows: Sequence[RoutedRow]) -> DividedRows:
        """Divide the first MAX_ROWS by a hash of their text.

        Raises:
            TooFewRows: there are not enough, or all of a kind.
        """
        rows = rows[:MAX_ROWS]
        training = [row for row in rows if _place(row.text) >= HELD_OUT]
        held_out = [row for row in rows if _place(row.text) < HELD_OUT]
        if len(rows) < MIN_ROWS or min(len(training), len(held_out)) < MIN_SIDE:
            raise TooFewRows(
                f"{len(rows)} rows can be used ({len(training)} to train, {len(held_out)} held "
                f"out): at least {MIN_ROWS}, and {MIN_SIDE} of each, with different texts, are "
                "needed."
            )
        places = sorted(range(len(models)), key=lambda at: fmean(row.cost[at] for row in training))
        training, held_out = _ordered(training, places), _ordered(held_out, places)
        quality = [fmean(row.passed[at] for row in training) for at in range(len(places))]
        best = quality.index(max(quality))
        return cls([models[at] for at in places], best, training, held_out)

    def enough(self, margin: float) -> float:
        """The share of training rows that must pass with the route."""
        return fmean(row.passed[self.best] for row in self.training) - margin / 3


class SingleOption(msgspec.Struct, frozen=True):
    """What an option does on all held-out rows, and the share of them that the route gives it.
    Costs are means of a row in pico-units."""

    model: str
    quality: float
    cost: float
    share: float


class RouteDifference(msgspec.Struct, frozen=True):
    """A difference of the route to something else, with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> RouteDifference:
        """Of the second of each pair to the first; there is at least one."""
        found: PairedDifference | None = mean_difference(pairs)
        assert found is not None
        return cls(found.value, found.low, found.high)


class RouteReport(msgspec.Struct, frozen=True):
    """What was found on the held-out rows. `quality` is the share of rows that pass, `cost` the
    mean of a row in pico-units; `best` is the place of the best single option by the training rows.
    `choice_ms` is what the router itself takes for a row, of CPU time: no tokens."""

    options: list[SingleOption]
    best: int
    training_rows: int
    held_out_rows: int
    threshold: float
    quality: float
    cost: float
    control_quality: float
    control_cost: float
    choice_ms: float
    quality_difference: RouteDifference
    """To the best single option."""
    cost_difference: RouteDifference
    control_difference: RouteDifference
    """Of the quality, to the same shares at random."""

    def verdict(self, margin: float) -> tuple[bool, str]:
        """Whether the route gains, and why, in words."""
        best, loss = self.options[self.best], self.quality_difference
        if self.cost_difference.high > -MIN_SAVING * best.cost:
            least = f"{100 * MIN_SAVING:.0f} %"
            return False, f"It does not surely save {least} of what {best.model} alone costs."
        if loss.low < -margin:
            return False, (
                f"It may pass {_points(-loss.low)} points less than {best.model} alone, and "
                f"{_points(margin)} are allowed."
            )
        if self.control_difference.low <= 0:
            return False, "It does no better than the same shares of the models at random."
        return True, (
            f"It costs {100 * (1 - self.cost / best.cost):.0f} % less than {best.model} alone, and "
            f"passes {_points(loss.value, sign='+')} points ({_points(loss.low, sign='+')} to "
            f"{_points(loss.high, sign='+')})."
        )


def _points(share: float, sign: str = "") -> str:
    return f"{100 * share:{sign}.1f}"


def fit(
    models: Sequence[str], rows: Sequence[RoutedRow], margin: float
) -> tuple[RouteFit, RouteReport]:
    """The fit and its report; the options of both are from the cheapest on. `margin` is how much
    less often than the best option the route may pass.

    Raises:
        TooFewRows: there are not enough, or all of a kind.
    """
    divided = DividedRows.of(models, rows)
    training, count = divided.training, len(divided.models)
    passed = np.array([row.passed for row in training], np.float32)
    cost = np.array([row.cost for row in training], np.float64)
    features = _features(training)
    used = np.flatnonzero(features.any(axis=0))  # the weights of all others stay 0
    features = features[:, used]
    predicted = _predicted(training, features, passed)
    threshold = _threshold(predicted, passed, cost, divided.enough(margin))
    numbers = np.zeros((1 + BUCKETS, count), np.float32)
    numbers[used] = _fitted(features, passed, np.ones(len(training), np.float32))
    found = RouteFit(array("f", numbers.tobytes()), threshold)
    began, options = time.process_time(), range(count)
    chosen = [found.choose(row.text, row.length, options) for row in divided.held_out]
    choice_ms = 1000 * (time.process_time() - began) / len(chosen)
    costs = [row.cost for row in divided.held_out]
    return found, report_of(divided, threshold, chosen, costs, choice_ms=choice_ms)


def _place(text: str, person: bytes = b"held out") -> float:
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=6, person=person).digest()
    return int.from_bytes(digest, "big") / (1 << 48)


def _ordered(rows: list[RoutedRow], places: list[int]) -> list[RoutedRow]:
    return [
        RoutedRow(
            row.text,
            row.length,
            tuple(row.passed[at] for at in places),
            tuple(row.cost[at] for at in places),
            tuple(row.logprobs[at] for at in places) if row.logprobs else (),
        )
        for row in rows
    ]


def _features(rows: Sequence[RoutedRow]) -> Numbers:
    """One row for each, of unit length, behind a 1 for the bias: (rows, 1 + BUCKETS)."""
    found = np.zeros((len(rows), 1 + BUCKETS), np.float32)
    found[:, 0] = 1
    for at, row in enumerate(rows):
        buckets = buckets_of(row.text, row.length)
        found[at, 1 + np.array(buckets)] = len(buckets) ** -0.5
    return found


def _fitted(features: Numbers, passed: Numbers, counts: Numbers) -> Numbers:
    """Biases and weights (1 + BUCKETS, options) of logistic regressions with a penalty on squared
    weights, of the rows that count, by Nesterov's accelerated gradient (1983)."""
    rows = float(counts.sum())
    penalty = np.full((features.shape[1], 1), PENALTY / rows, np.float32)
    penalty[0] = 0
    step = np.float32(1 / (0.25 * 2 + PENALTY / rows))
    shares = (counts / rows)[:, None]
    weights = ahead = np.zeros((features.shape[1], passed.shape[1]), np.float32)
    for number in range(1, STEPS + 1):
        wrong = (1 / (1 + np.exp(-features @ ahead)) - passed) * shares
        before, weights = weights, ahead - step * (features.T @ wrong + penalty * ahead)
        ahead = weights + np.float32((number - 1) / (number + 2)) * (weights - before)
    return weights


def _predicted(rows: Sequence[RoutedRow], features: Numbers, passed: Numbers) -> Numbers:
    """How likely each row passes with each option, by what is fitted on the other folds."""
    folds = np.array([int(FOLDS * _place(row.text, b"fold")) for row in rows])
    found = np.zeros_like(passed)
    for fold in range(FOLDS):
        weights = _fitted(features, passed, (folds != fold).astype(np.float32))
        mine = folds == fold
        found[mine] = 1 / (1 + np.exp(-features[mine] @ weights))
    return found


def _threshold(
    chances: Numbers, passed: Numbers, cost: npt.NDArray[np.float64], enough: float
) -> float:
    """The threshold that costs least of those with which a share of `enough` passes; 0 if there is
    none."""
    rows = np.arange(len(passed))
    found, least = 0.0, float("inf")
    for threshold in THRESHOLDS:
        chosen = (chances >= chances.max(axis=1, keepdims=True) - threshold).argmax(axis=1)
        costs = float(cost[rows, chosen].mean())
        if passed[rows, chosen].mean() >= enough and costs < least:
            found, least = threshold, costs
    return found


def report_of(
    divided: DividedRows,
    threshold: float,
    chosen: Sequence[int],
    costs: Sequence[Sequence[int]],
    *,
    choice_ms: float = 0.0,
) -> RouteReport:
    """What is gained on the held-out rows if the `chosen` option answers each; `costs` are what
    each row costs with each option as the one that answers."""
    rows, best, count = divided.held_out, divided.best, len(divided.models)
    shares = [chosen.count(at) / len(rows) for at in range(count)]
    quality = [float(row.passed[at]) for row, at in zip(rows, chosen, strict=True)]
    cost = [float(each[at]) for each, at in zip(costs, chosen, strict=True)]
    control = [_mean(row.passed, shares) for row in rows]
    return RouteReport(
        options=[
            SingleOption(
                model,
                fmean(row.passed[at] for row in rows),
                fmean(row.cost[at] for row in rows),
                shares[at],
            )
            for at, model in enumerate(divided.models)
        ],
        best=best,
        training_rows=len(divided.training),
        held_out_rows=len(rows),
        threshold=threshold,
        quality=fmean(quality),
        cost=fmean(cost),
        control_quality=fmean(control),
        control_cost=fmean(_mean(each, shares) for each in costs),
        choice_ms=round(choice_ms, 3),
        quality_difference=_difference([float(row.passed[best]) for row in rows], quality),
        cost_difference=_difference([float(row.cost[best]) for row in rows], cost),
        control_difference=_difference(control, quality),
    )


def _difference(before: Sequence[float], after: Sequence[float]) -> RouteDifference:
    return RouteDifference.of(list(zip(before, after, strict=True)))


def _mean(values: Sequence[float], shares: Sequence[float]) -> float:
    return sum(share * value for share, value in zip(shares, values, strict=True))
