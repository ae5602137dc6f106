"""What is fitted on graded rows, and when a route is said to gain."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import msgspec
import pytest

from tenants.evals.sources import Completions, GivenAnswers, MessagesOfRow, RowsOfFile
from tenants.routes.fitting import (
    MIN_ROWS,
    RouteDifference,
    RoutedRow,
    RouteReport,
    SingleOption,
    TooFewRows,
    fit,
)
from tenants.routes.rows import RouteFitPlan, fit_of, read
from tests.labs.routes.simulation import RouteScenario, questions

pytestmark = pytest.mark.pure

CLEAR = RouteScenario("clear", small=(0.98, 0.1), large=(0.97, 0.95), rows=600)


def rows(scenario: RouteScenario = CLEAR, seed: int = 1) -> list[RoutedRow]:
    return list(islice(questions(scenario, Random(seed)), scenario.rows))


def test_easy_questions_go_to_the_cheap_model_and_quality_stays() -> None:
    found, report = fit(["small", "large"], rows(), 0.05)
    gains, reason = report.verdict(0.05)
    assert gains and reason.startswith("It costs ") and "less than large alone" in reason
    assert report.cost < 0.75 * report.options[1].cost
    assert report.quality_difference.low >= -0.05 and report.control_difference.low > 0
    assert report.held_out_rows + report.training_rows == 600
    assert report.options[0].share + report.options[1].share == pytest.approx(1)
    easy, hard = "Where is my parcel, in Berlin?", "Compare both contracts and say, by email?"
    assert found.choose(easy, len(easy), [0, 1]) == 0
    assert found.choose(hard, len(hard), [0, 1]) == 1


def test_the_same_rows_give_the_same_fit_and_options_come_from_the_cheapest_on() -> None:
    first, report = fit(["small", "large"], rows(), 0.05)
    turned = [replace(one, passed=one.passed[::-1], cost=one.cost[::-1]) for one in rows()]
    second, other = fit(["large", "small"], turned, 0.05)
    assert first == second
    assert [one.model for one in other.options] == ["small", "large"]
    same = msgspec.structs.replace(other, choice_ms=report.choice_ms)
    assert same == report


def test_questions_that_tell_nothing_leave_it_off() -> None:
    _, report = fit(["small", "large"], rows(replace(CLEAR, told=0.0)), 0.05)
    assert report.verdict(0.03)[0] is False


def test_a_model_that_is_best_and_cheapest_leaves_nothing_to_save() -> None:
    scenario = replace(CLEAR, small=(0.98, 0.97), large=(0.9, 0.9))
    _, report = fit(["small", "large"], rows(scenario), 0.05)
    assert report.best == 0
    assert report.verdict(0.03) == (False, "It does not surely save 2 % of what small alone costs.")


def test_equal_texts_are_on_the_same_side() -> None:
    """Or a route would seem to know what it has only seen before."""
    few = [replace(one, text=f"text {at % 3}") for at, one in enumerate(rows())]
    with pytest.raises(TooFewRows, match=r"^600 rows can be used \(\d+ to train, \d+ held out\)"):
        fit(["small", "large"], [one for one in few if one.text == "text 0"] * 3, 0.05)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(TooFewRows, match=f"at least {MIN_ROWS}"):
        fit(["small", "large"], rows()[: MIN_ROWS - 1], 0.05)


def report(quality: float = 0.0, cost: float = -5.0, control: float = 0.1) -> RouteReport:
    """Differences whose interval is 0.02 (of the cost 2) wide to both sides."""
    return RouteReport(
        options=[SingleOption("small", 0.5, 1.0, 0.5), SingleOption("large", 0.9, 10.0, 0.5)],
        best=1, training_rows=100, held_out_rows=100, threshold=0.1, quality=0.9, cost=5.0,
        control_quality=0.7, control_cost=5.5, choice_ms=0.1,
        quality_difference=RouteDifference(quality, quality - 0.02, quality + 0.02),
        cost_difference=RouteDifference(cost, cost - 2, cost + 2),
        control_difference=RouteDifference(control, control - 0.02, control + 0.02),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (report(), "It costs 50 % less than large alone, and passes +0.0 points (-2.0 to +2.0)."),
        (report(cost=-1.0), "It does not surely save 2 % of what large alone costs."),
        (
            report(quality=-0.02),
            "It may pass 4.0 points less than large alone, and 3.0 are allowed.",
        ),
        (report(control=0.01), "It does no better than the same shares of the models at random."),
    ],
)
def test_a_verdict_needs_all_three_intervals(found: RouteReport, said: str) -> None:
    assert found.verdict(0.03) == (said.startswith("It costs"), said)


# --- Reading the results of runs -----------------------------------------------------------------


ASKED = Completions(
    source=RowsOfFile("file"), model="small", input_messages=MessagesOfRow("item.messages")
)


def plan(source: Completions | GivenAnswers = ASKED) -> RouteFitPlan:
    return RouteFitPlan(["small", "large"], [(1, 2), (10, 20)], source, 0.03)


def result(number: int, status: str = "passed", tokens: int = 5, **item: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": f"Question {number}"}]}
    sample = {"output_text": "x", "usage": {"prompt_tokens": tokens, "completion_tokens": 3}}
    return {"number": number, "status": status, "item": said | item, "sample": sample}


def files(*runs: Sequence[dict[str, Any]]) -> list[io.BytesIO]:
    return [io.BytesIO(b"".join(msgspec.json.encode(one) + b"\n" for one in run)) for run in runs]


def test_rows_have_what_each_option_answered_and_cost() -> None:
    found = read(plan(), files([result(1), result(2, "errored")], [result(1), result(2)]))
    assert found.rows == [
        RoutedRow("Question 1", 10, (True, True), (11, 110), (None, None)),
        RoutedRow("Question 2", 10, (False, True), (11, 110), (None, None)),
    ]
    assert found.left_out == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (result(1), None),
        (None, result(1)),
        (result(1), result(1, x=1)),
        (result(1), result(1) | {"sample": {"error": {"code": "engine_lost"}}}),
        (result(1), result(1) | {"sample": None}),
        (result(1, messages=[]), result(1, messages=[])),
        (result(1, messages=[{"role": "user", "content": 5}]),) * 2,
    ],
    ids=["not in b", "not in a", "other item", "no answer", "no sample", "template", "no message"],
)
def test_rows_that_do_not_match_are_left_out(
    first: dict[str, Any] | None, second: dict[str, Any] | None
) -> None:
    runs = [[one] if one else [] for one in (first, second)]
    found = read(plan(), files(*([*run, result(7)] for run in runs)))
    assert [row.text for row in found.rows] == ["Question 7"] and found.left_out == 1


def test_given_answers_have_no_text_to_choose_by() -> None:
    found = read(plan(GivenAnswers(RowsOfFile("file"))), files([result(1)], [result(1)]))
    assert (found.rows, found.left_out) == ([], 1)


def test_how_sure_an_answer_is_comes_from_its_criterion_and_a_cascade_is_fitted_by_it() -> None:
    def results(option: int) -> list[dict[str, Any]]:
        return [
            result(number, "passed" if option or number % 2 else "failed", tokens=5 + option)
            | {"grades": [{"type": "string_check", "score": 1.0},
                          {"type": "logprob", "score": -1.0 - (number + 1) % 2}]}
            for number in range(1, 301)
        ]  # fmt: skip

    assert read(plan(), files(results(0), results(1))).rows[0].logprobs == (-1.0, -1.0)
    task = msgspec.to_builtins(plan()) | {"is_cascade": True}
    found = fit_of(task, files(results(0), results(1)))
    assert (found["threshold"], found["packed"], found["gains"]) == (-1.0, "", True)


def test_what_is_stored_of_a_fit_and_why_there_is_none() -> None:
    def results(option: int) -> list[dict[str, Any]]:
        return [
            result(
                number,
                "passed" if row.passed[option] else "failed",
                messages=[{"role": "user", "content": row.text}],
            )
            for number, row in enumerate(rows(), 1)
        ]

    task = msgspec.to_builtins(plan()) | {"task": "fit_route"}
    found = fit_of(task, files(results(0), results(1)))
    assert found["options"] == ["small", "large"] and found["gains"] is True
    assert found["report"]["left_out"] == 0 and len(found["packed"]) > 40_000
    few = fit_of(task, files(results(0)[:9], results(1)[:8]))
    assert few["refused_fit"].endswith("are needed. 1 lack an answer of an option.")
    assert "lack" not in fit_of(task, files(results(0)[:9], results(1)[:9]))["refused_fit"]
