"""Judges a row and its answer by a criterion. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from inference.operations.validation import UnusableSchema, follows, validator_of
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
from tenants.evals.similarity import similarity
from tenants.evals.templates import TemplateFault

MAX_COMPARED = 20_000
"""Characters of a text whose similarity is computed, which takes quadratic time."""


class Ungraded(Exception):
    """There is no grade; the message says why."""


class Grade(msgspec.Struct, omit_defaults=True):
    """A criterion's result for one row. Without a `score` there was an error."""

    name: str
    type: str
    passed: bool = False
    score: float | None = None
    error: str = ""
    sample: dict[str, Any] | None = None
    """The answer of a grader's model."""

    @property
    def outcome(self) -> str:
        """As the status of a row: `passed`, `failed` or `errored`."""
        if self.score is None:
            return "errored"
        return "passed" if self.passed else "failed"


def grade(
    criterion: Offered, values: Mapping[str, Any], verdict: Mapping[str, Any] | None = None
) -> Grade:
    """Judge `values`, with `item` and perhaps `sample`. `verdict` is the sample of the criterion's
    model, if it has one."""
    kind = str(type(criterion).__struct_config__.tag)
    given = Grade(criterion.name, kind, sample=dict(verdict) if verdict else None)
    try:
        score, given.passed = _judged(criterion, values, verdict)
    except (Ungraded, TemplateFault) as fault:
        given.error = str(fault)
    else:
        given.score = round(score, 6)
    return given


def _judged(
    criterion: Offered, values: Mapping[str, Any], verdict: Mapping[str, Any] | None
) -> tuple[float, bool]:
    if isinstance(criterion, LabelModel | ScoreModel):
        return _by_model(criterion, verdict)
    if isinstance(criterion, LogProbability):
        mean = _mean_log_probability(values)
        return mean, mean >= criterion.pass_threshold
    if isinstance(criterion, Latency):
        return _within(criterion.bounds, (values.get("sample") or {}).get("timing"))
    text = templates.rendered(criterion.input, values)
    if isinstance(criterion, SchemaCheck):
        passed = _follows(text, criterion.schema)
        return float(passed), passed
    reference = templates.rendered(criterion.reference, values)
    if isinstance(criterion, StringCheck):
        passed = _compared(criterion, text, reference)
        return float(passed), passed
    return _similar(criterion, text, reference)


def _compared(criterion: StringCheck, text: str, reference: str) -> bool:
    match criterion.operation:
        case "eq":
            return text == reference
        case "ne":
            return text != reference
        case "like":
            return reference in text
        case "ilike":
            return reference.casefold() in text.casefold()


def _similar(criterion: TextSimilarity, text: str, reference: str) -> tuple[float, bool]:
    if (longest := max(len(text), len(reference))) > MAX_COMPARED:
        raise Ungraded(f"A text has {longest} characters; at most {MAX_COMPARED} are compared.")
    score = similarity(criterion.evaluation_metric, text, reference)
    return score, score >= criterion.pass_threshold


def _by_model(
    criterion: LabelModel | ScoreModel, verdict: Mapping[str, Any] | None
) -> tuple[float, bool]:
    output = (verdict or {}).get("output_json")
    if not isinstance(output, dict):
        raise Ungraded("The grader's model gave no verdict.")
    if isinstance(criterion, LabelModel):
        if (label := output.get("label")) not in criterion.labels:
            raise Ungraded("The grader's model chose none of the labels.")
        passed = label in criterion.passing_labels
        return float(passed), passed
    score, (low, high) = output.get("result"), criterion.range
    if isinstance(score, bool) or not isinstance(score, int | float) or not low <= score <= high:
        raise Ungraded(f"The grader's model gave no number from {low} to {high}.")
    return float(score), score >= criterion.threshold


def _follows(text: str, schema: dict[str, Any]) -> bool:
    try:
        return follows(text, validator_of(schema))
    except UnusableSchema as error:
        raise Ungraded(f"The schema can't be used: {error}") from None


def _within(bounds: Mapping[str, float], timing: Any) -> tuple[float, bool]:
    """The first time that is bounded, and whether all are within their bounds."""
    times = [_time(timing, name) for name in bounds]
    within = all(one <= most for one, most in zip(times, bounds.values(), strict=True))
    return times[0], within


def _time(timing: Any, name: str) -> float:
    found = timing.get(name) if isinstance(timing, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        raise Ungraded("The time that the answer took is not known.")
    return float(found)


def _mean_log_probability(values: Mapping[str, Any]) -> float:
    tokens = (values.get("sample") or {}).get("logprobs")
    if not isinstance(tokens, list) or not tokens:
        raise Ungraded("The answer has no log-probabilities.")
    try:
        mean = math.fsum(tokens) / len(tokens)
    except (TypeError, ValueError, OverflowError):  # a row can have anything
        mean = math.nan
    if not math.isfinite(mean):
        raise Ungraded("The answer's log-probabilities are not finite numbers.")
    return mean
