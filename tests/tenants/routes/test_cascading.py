"""The threshold of a cascade, and what it gains by its report."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from inference.routes import is_sure
from tenants.routes.cascading import ALWAYS_ASKED, fit_cascade
from tenants.routes.fitting import RoutedRow, TooFewRows

pytestmark = pytest.mark.pure

MODELS = ["small", "large"]


def rows(sharpness: float = 1.0, seed: int = 1, count: int = 600) -> list[RoutedRow]:
    """Half of the small model's answers pass, of which it is the surer the higher the sharpness is;
    the large one's pass in 95 of 100, at ten times the price."""
    random = Random(seed)
    found = list[RoutedRow]()
    for number in range(count):
        passes = random.random() < 0.5
        logprob = -0.5 - (0 if passes else sharpness) - 0.4 * random.random()
        text = f"Question {number}"
        passed = passes, random.random() < 0.95
        found.append(RoutedRow(text, len(text), passed, (10, 100), (logprob, -0.1)))
    return found


def test_the_second_model_is_asked_where_the_first_one_is_unsure() -> None:
    threshold, report = fit_cascade(MODELS, rows(count=1500), 0.05)
    assert -1.65 < threshold < -0.89, "those that pass are at least as sure as the latter"
    gains, _ = report.verdict(0.05)
    assert gains and report.threshold == threshold and report.choice_ms == 0
    share = report.options[1].share
    assert 0.3 < share < 0.6
    assert report.cost == pytest.approx(10 + 100 * share), "a row that both answer costs both"
    assert report.control_cost == pytest.approx(report.cost)


def test_a_sureness_that_tells_nothing_leaves_it_off() -> None:
    threshold, report = fit_cascade(MODELS, rows(0.0), 0.03)
    assert report.verdict(0.03)[0] is False
    assert sum(is_sure(row.logprobs[0], threshold) for row in rows(0.0)) < 100


def test_if_the_first_model_never_helps_the_second_is_always_asked() -> None:
    given = [replace(row, passed=(False, True)) for row in rows()]
    threshold, report = fit_cascade(MODELS, given, 0.03)
    assert threshold <= ALWAYS_ASKED and report.options[1].share > 0.9
    assert fit_cascade(MODELS, given, 0.0)[0] == ALWAYS_ASKED


def test_the_cheaper_one_answers_first_in_whichever_order_they_are() -> None:
    given = [
        replace(row, passed=row.passed[::-1], cost=row.cost[::-1], logprobs=row.logprobs[::-1])
        for row in rows()
    ]
    assert fit_cascade(MODELS[::-1], given, 0.03) == fit_cascade(MODELS, rows(), 0.03)


def test_answers_of_unknown_sureness_are_unsure_and_equal_ones_stay_together() -> None:
    given = [
        replace(row, logprobs=(None if at % 3 else -0.2, None)) for at, row in enumerate(rows())
    ]
    threshold, report = fit_cascade(MODELS, given, 0.2)
    assert threshold in (-0.2, ALWAYS_ASKED)
    assert report.options[0].share in (0, pytest.approx(1 / 3, abs=0.1))
    assert not is_sure(None, -100) and is_sure(-1.0, -1.0) and not is_sure(-1.1, -1.0)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(TooFewRows):
        fit_cascade(MODELS, rows(count=20), 0.03)
