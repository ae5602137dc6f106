"""Criteria in words, and rows with their grades as pages show them: texts are cut, since a row may
have a megabyte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

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
from tenants.evals.grading import Grade
from tenants.evals.stages import EvalResult
from tenants.models import EvalItem

MAX_SHOWN = 500
"""Characters of a row's item, and of its answer."""
MAX_PHRASE = 120
"""Characters of a template, a name or an error."""
MAX_FIELDS = 12
"""Fields of an item."""
OPERATIONS = {
    "eq": "equals",
    "ne": "differs from",
    "like": "contains",
    "ilike": "contains, in any case,",
}

_results = msgspec.json.Decoder(EvalResult)


@dataclass(frozen=True, slots=True)
class CriterionInWords:
    """`asked` is the prompt of a grader's model."""

    name: str
    kind: str
    words: str
    asked: str = ""


@dataclass(frozen=True, slots=True)
class ShownGrade:
    name: str
    outcome: str
    score: float | None
    error: str


@dataclass(frozen=True, slots=True)
class ShownResult:
    """A row: `item` has its fields; `error` says why it has no answer."""

    number: int
    status: str
    item: list[tuple[str, str]]
    answer: str
    error: str
    grades: list[ShownGrade]


def cut(text: str, most: int) -> str:
    """The text, or its beginning if it is longer."""
    return text if len(text) <= most else f"{text[:most]}…"


def in_words(criterion: Offered) -> CriterionInWords:
    """What the criterion demands of a row."""
    kind = str(type(criterion).__struct_config__.tag)
    asked = ""
    if isinstance(criterion, LabelModel | ScoreModel):
        asked = cut("\n".join(criterion.texts), MAX_SHOWN)
    return CriterionInWords(criterion.name, kind, _demand(criterion), asked)


TIMES = {"total_ms": "ended", "first_token_ms": "began"}
"""What happened within a time that a criterion bounds."""


def _demand(criterion: Offered) -> str:
    match criterion:
        case StringCheck():
            compared = OPERATIONS[criterion.operation]
            return f"{_phrase(criterion.input)} {compared} {_phrase(criterion.reference)}"
        case TextSimilarity():
            texts = f"{_phrase(criterion.input)} with {_phrase(criterion.reference)}"
            metric, least = criterion.evaluation_metric, criterion.pass_threshold
            return f"The similarity ({metric}) of {texts} is at least {least:g}"
        case LabelModel():
            labels, passing = (
                cut(", ".join(some), MAX_SHOWN)
                for some in (criterion.labels, criterion.passing_labels)
            )
            model = _phrase(criterion.model)
            return f"{model} chooses one of the labels {labels}; passing are: {passing or 'none'}"
        case ScoreModel():
            (low, high), least = criterion.range, criterion.threshold
            return f"{_phrase(criterion.model)} gives at least {least:g}, from {low:g} to {high:g}"
        case SchemaCheck():
            return f"{_phrase(criterion.input)} is JSON that follows the schema"
        case LogProbability():
            least = criterion.pass_threshold
            return f"The mean log-probability of the answer's tokens is at least {least:g}"
        case Latency():
            times = [f"{TIMES[name]} within {most:g} ms" for name, most in criterion.bounds.items()]
            return f"The answer {' and '.join(times)}"


def _phrase(text: str) -> str:
    return cut(text, MAX_PHRASE)


def result_of(item: EvalItem) -> ShownResult:
    """The row with its answer and grades, cut."""
    try:
        result = _results.decode(item.body)
        fields, (answer, error) = [*_fields(result.item)], _answer(result.sample)
    except RecursionError:  # a worker reads deeper ones, since its stack is lower
        return ShownResult(item.number, item.status, [], "", "The row is nested too deeply.", [])
    grades = [_grade(grade) for grade in result.grades]
    return ShownResult(item.number, item.status, fields, answer, error, grades)


def _fields(item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The first fields of an item, with MAX_SHOWN characters in total."""
    left = MAX_SHOWN
    for number, (name, value) in enumerate(item.items()):
        if number == MAX_FIELDS or left <= 0:
            yield "…", ""
            return
        text = cut(_text(_last_turn(value)), left)
        left -= len(text)
        yield _phrase(name), text


def _last_turn(value: Any) -> Any:
    """The text of the last message if the value is a list of messages, else the value."""
    match value:
        case [*_, {"role": str(), "content": str(text)}]:
            return text
    return value


def _answer(sample: Mapping[str, Any] | None) -> tuple[str, str]:
    """The text of an answer, or its calls of tools; and why there is none."""
    if sample is None:
        return "", "no answer"
    text = sample.get("output_text") or sample.get("output_tools") or ""
    fault = sample.get("error")
    message = fault.get("message") if isinstance(fault, dict) else fault
    return cut(_text(text), MAX_SHOWN), _phrase(_text(message or ""))


def _grade(grade: Grade) -> ShownGrade:
    return ShownGrade(_phrase(grade.name), grade.outcome, grade.score, _phrase(grade.error))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
