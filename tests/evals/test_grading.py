"""Graders, without models: templates, similarity, schemas, verdicts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from tenants.evals import templates
from tenants.evals.criteria import (
    LabelModel,
    Latency,
    LogProbability,
    Offered,
    SchemaCheck,
    ScoreModel,
    StringCheck,
    TextSimilarity,
)
from tenants.evals.grading import MAX_COMPARED, grade
from tenants.evals.similarity import longest_common_subsequence, similarity
from tenants.evals.templates import MAX_TEXT, TemplateFault

pytestmark = pytest.mark.pure

VALUES: dict[str, Any] = {
    "item": {"text": "Where?", "number": 3, "many": [{"a": "b"}], "none": None},
    "sample": {"output_text": "Here: ß", "timing": {"total_ms": 250.0, "first_token_ms": 40.5}},
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no place", "no place"),
        ("{{item.text}} {{ sample.output_text }}!", "Where? Here: ß!"),
        ("{{item.number}}, {{item.many}}, {{item.none}}", '3, [{"a":"b"}], null'),
        ("{{item.many.0.a}}", "b"),
        ("{ {item.text} } {{}", "{ {item.text} } {{}"),
    ],
)
def test_a_template_has_the_values_of_its_row(text: str, found: str) -> None:
    templates.check(text)
    assert templates.rendered(text, VALUES) == found


@pytest.mark.parametrize("path", ["item.other", "item.text.more", "item.many.1", "item.many.-1"])
def test_what_a_row_lacks_is_named(path: str) -> None:
    with pytest.raises(TemplateFault, match=rf"There is no `{path}`\."):
        templates.rendered(f"{{{{ {path} }}}}", VALUES)


@pytest.mark.parametrize("place", ["text", "items.text", "item.", "item.a b", "", "item..a"])
def test_a_place_names_the_item_or_the_sample(place: str) -> None:
    with pytest.raises(InvalidRequest, match="begins with"):
        templates.check(f"{{{{ {place} }}}}")


def test_a_text_does_not_grow_without_bound() -> None:
    values = {"item": {"text": "x" * 1000}}
    with pytest.raises(TemplateFault, match=f"more than {MAX_TEXT}"):
        templates.rendered("{{item.text}}" * 2000, values)


def _by_table(one: str, other: str) -> int:
    """The length of the longest common subsequence, as in textbooks."""
    lengths = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            here, above = lengths[i], lengths[i + 1]
            above[j + 1] = here[j] + 1 if a == b else max(here[j + 1], above[j])
    return lengths[-1][-1]


@given(st.text("abc", max_size=80), st.text("abcd", max_size=80))
def test_the_longest_common_subsequence_is_that_of_textbooks(one: str, other: str) -> None:
    assert longest_common_subsequence(one, other) == _by_table(one, other)


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        # As rapidfuzz 3, rouge-score 0.1, sacrebleu 2.6 (sentence_bleu) and NLTK 3.9 have them.
        ("fuzzy_match", 40 / 43),
        ("rouge_1", 5 / 6), ("rouge_2", 3 / 5), ("rouge_3", 1 / 4), ("rouge_4", 0.0),
        ("rouge_l", 5 / 6),
        ("bleu", 0.379918), ("gleu", 0.5),
    ],
)  # fmt: skip
def test_similarities_are_those_of_the_libraries(metric: str, score: float) -> None:
    found = similarity(metric, "the cat sat on the mat", "the cat is on the mat")
    assert found == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("metric", ["fuzzy_match", "rouge_1", "rouge_5", "rouge_l", "bleu", "gleu"])
def test_similarity_is_from_nothing_to_the_same(metric: str) -> None:
    words = ["a", "b", "c", "d", "e", "f"]
    assert similarity(metric, " ".join(words), " ".join(words)) == pytest.approx(1.0)
    assert similarity(metric, "x", "x") == similarity(metric, "", "") == 1.0
    assert similarity(metric, "x", "y") == similarity(metric, "", "y") == 0.0
    shuffled = random.Random(3).sample(words, len(words))
    found = similarity(metric, " ".join(shuffled), " ".join(words))
    assert 0.0 <= found < 1.0 or metric == "rouge_1"


def checked(operation: Any, text: str, reference: str) -> float | None:
    criterion = StringCheck(input=text, reference=reference, operation=operation)
    return grade(criterion, VALUES).score


def test_strings_are_compared() -> None:
    assert checked("eq", "{{item.text}}", "Where?") == 1.0
    assert checked("ne", "{{item.text}}", "Where?") == 0.0
    assert checked("like", "{{item.text}}", "here") == 1.0
    assert checked("like", "{{item.text}}", "HERE") == 0.0
    assert checked("ilike", "{{sample.output_text}}", "SS") == 1.0


@pytest.mark.parametrize(
    ("criterion", "score", "passed"),
    [
        (TextSimilarity(input="ab", reference="ab", evaluation_metric="bleu", pass_threshold=1),
         1.0, True),
        (TextSimilarity(input="ab", reference="cd", evaluation_metric="gleu", pass_threshold=0.1),
         0.0, False),
        (SchemaCheck(schema={"type": "object", "required": ["a"]}, input='{"a": 1}'), 1.0, True),
        (SchemaCheck(schema={"type": "object", "required": ["a"]}, input="{}"), 0.0, False),
        (SchemaCheck(schema={}, input="no JSON"), 0.0, False),
        (Latency(max_total_ms=250), 250.0, True),
        (Latency(max_total_ms=249.5), 250.0, False),
        (Latency(max_first_token_ms=40), 40.5, False),
        (Latency(max_total_ms=300, max_first_token_ms=40), 250.0, False),
        (Latency(max_total_ms=300, max_first_token_ms=41), 250.0, True),
    ],
)  # fmt: skip
def test_an_answer_is_graded(criterion: Offered, score: float, passed: bool) -> None:
    found = grade(criterion, VALUES)
    assert (found.score, found.passed, found.error) == (score, passed, "")


LABELS = LabelModel(model="m", input=[], labels=["good", "bad"], passing_labels=["good"])
SCORES = ScoreModel(model="m", input=[], range=[0.0, 10.0])


@pytest.mark.parametrize(
    ("criterion", "said", "score", "passed"),
    [
        (LABELS, {"label": "good"}, 1.0, True),
        (LABELS, {"label": "bad"}, 0.0, False),
        (SCORES, {"result": 5}, 5.0, True),
        (SCORES, {"result": 4.9}, 4.9, False),
    ],
)
def test_a_verdict_is_a_grade(
    criterion: Offered, said: dict[str, Any], score: float, passed: bool
) -> None:
    found = grade(criterion, VALUES, {"output_json": said})
    assert (found.score, found.passed) == (score, passed)


@pytest.mark.parametrize(
    ("criterion", "verdict", "said"),
    [
        (LABELS, None, "no verdict"),
        (LABELS, {"output_json": [1]}, "no verdict"),
        (LABELS, {"output_json": {"label": "ugly"}}, "none of the labels"),
        (SCORES, {"output_json": {"result": 11}}, "no number from 0.0 to 10.0"),
        (SCORES, {"output_json": {"result": True}}, "no number"),
        (SCORES, {"output_json": {"result": "9"}}, "no number"),
        (LogProbability(pass_threshold=-1), None, "no log-probabilities"),
        (StringCheck(input="{{item.x}}", reference="", operation="eq"), None, "no `item.x`"),
        (TextSimilarity(input="a" * (MAX_COMPARED + 1), reference="", evaluation_metric="bleu",
                        pass_threshold=0), None, f"at most {MAX_COMPARED}"),
        (SchemaCheck(schema={"$ref": "http://127.0.0.1/x"}, input="{}"), None, "can't be used"),
    ],
)  # fmt: skip
def test_what_cannot_be_graded_says_why(
    criterion: Offered, verdict: dict[str, Any] | None, said: str
) -> None:
    found = grade(criterion, VALUES, verdict)
    assert (found.score, found.passed) == (None, False)
    assert said in found.error


@pytest.mark.parametrize("tokens", [[], ["x"], [float("-inf")], [10**400], {"a": 1}, None])
def test_log_probabilities_that_come_with_a_row_may_be_anything(tokens: Any) -> None:
    found = grade(LogProbability(pass_threshold=-1), {"item": {}, "sample": {"logprobs": tokens}})
    assert found.score is None and found.error


def test_a_mean_log_probability_is_a_grade() -> None:
    values = {"item": {}, "sample": {"logprobs": [-0.5, -1.0]}}
    assert grade(LogProbability(pass_threshold=-0.75), values).passed
    assert not grade(LogProbability(pass_threshold=-0.7), values).passed


@pytest.mark.parametrize(
    "timing",
    [None, 3, {}, {"total_ms": None}, {"total_ms": "1"}, {"total_ms": True}, {"total_ms": -1}],
)
def test_an_unknown_time_is_not_graded(timing: Any) -> None:
    found = grade(Latency(max_total_ms=1), {"item": {}, "sample": {"timing": timing}})
    assert found.score is None and "not known" in found.error
    assert grade(Latency(max_total_ms=1), {"item": {}}).score is None


@pytest.mark.parametrize(
    ("criterion", "param"),
    [
        (Latency(), "type"),
        (Latency(max_total_ms=0), "max_total_ms"),
        (Latency(max_first_token_ms=float("nan")), "max_first_token_ms"),
        (Latency(max_total_ms=1, max_first_token_ms=1e9), "max_first_token_ms"),
    ],
)
def test_a_latency_has_bounds(criterion: Latency, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        criterion.check()
    assert refused.value.param == param
