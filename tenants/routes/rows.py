"""Reads the results of runs of one eval, one of each option, as rows to fit a route on. In a child
process, free of Django.

Rows belong together by their number, and only if they have the same item. The text is that of the
request to which they are the answer, read as a gateway reads it. A row without an answer of each
option, such as one that an engine or a budget prevented, is left out: it has no cost.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from inference.errors import InferenceError
from inference.operations.chat import CHAT
from tenants.evals.criteria import LOGPROB
from tenants.evals.sources import AskedModel, EvalRow, RunSource
from tenants.evals.templates import TemplateFault
from tenants.routes.cascading import fit_cascade
from tenants.routes.fitting import RoutedRow, TooFewRows, fit

_json = msgspec.json.Encoder().encode


class RouteFitPlan(msgspec.Struct):
    """The input of the child: the names of the options, the prices of their prompt and output
    tokens in micro-units per million, what they were asked, and the margin and method of the
    route."""

    models: list[str]
    prices: list[tuple[int, int]]
    source: RunSource
    margin: float
    is_cascade: bool = False


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class _GivenGrade(msgspec.Struct):
    type: str
    score: float | None = None


class _GradedRow(msgspec.Struct):
    number: int
    status: str
    item: dict[str, Any]
    sample: _Answer | None = None
    grades: list[_GivenGrade] = []

    @property
    def logprob(self) -> float | None:
        """The mean log-probability of the answer's tokens, which is the score of a criterion."""
        return next((one.score for one in self.grades if one.type == LOGPROB), None)

    def cost(self, price: Sequence[int]) -> int | None:
        """In pico-units of the currency, as if no prompt token were cached, since which are is by
        chance; None without an answer."""
        usage = self.sample and self.sample.usage
        if not usage or not usage.prompt_tokens:
            return None
        prompt, output = price
        return usage.prompt_tokens * prompt + usage.completion_tokens * output


@dataclass
class RouteRows:
    """The rows that can be used, and how many were left out."""

    rows: list[RoutedRow]
    left_out: int = 0


_rows = msgspec.json.Decoder(_GradedRow)


def fit_of(task: Mapping[str, Any], files: Sequence[IO[bytes]]) -> dict[str, Any]:
    """Fit on the results in `files`, one for each option, each in the order of its rows' numbers.
    Returns what is stored of the fit, or why there is none (`refused_fit`)."""
    plan = msgspec.convert(task, RouteFitPlan)
    found = read(plan, files)
    packed = b""
    try:
        if plan.is_cascade:
            threshold, report = fit_cascade(plan.models, found.rows, plan.margin)
        else:
            route, report = fit(plan.models, found.rows, plan.margin)
            threshold, packed = route.threshold, route.numbers.tobytes()
    except TooFewRows as error:
        left_out = f" {found.left_out} lack an answer of an option." if found.left_out else ""
        return {"refused_fit": f"{error}{left_out}"}
    gains, reason = report.verdict(plan.margin)
    return {
        "options": [option.model for option in report.options],
        "best": report.best,
        "threshold": threshold,
        "packed": base64.b64encode(packed).decode(),
        "report": msgspec.to_builtins(report) | {"left_out": found.left_out},
        "gains": gains,
        "reason": reason,
    }


def read(plan: RouteFitPlan, files: Sequence[IO[bytes]]) -> RouteRows:
    """The rows of which each option has an answer."""
    found = RouteRows([])
    for same in _matched([map(_rows.decode, file) for file in files]):
        row = None if same is None else _row(plan, same)
        if row is None:
            found.left_out += 1
        else:
            found.rows.append(row)
    return found


def _matched(runs: Sequence[Iterator[_GradedRow]]) -> Iterator[list[_GradedRow] | None]:
    """The results with each number; None if a run lacks it, or has another item there."""
    heads = [next(run, None) for run in runs]
    while any(head is not None for head in heads):
        number = min(head.number for head in heads if head is not None)
        same = [head for head in heads if head is not None and head.number == number]
        whole = len(same) == len(heads) and all(one.item == same[0].item for one in same)
        yield same if whole else None
        for at, head in enumerate(heads):
            if head is not None and head.number == number:
                heads[at] = next(runs[at], None)


def _row(plan: RouteFitPlan, same: Sequence[_GradedRow]) -> RoutedRow | None:
    priced = [one.cost(price) for one, price in zip(same, plan.prices, strict=True)]
    costs = tuple(cost for cost in priced if cost is not None)
    if len(costs) < len(priced) or not isinstance(plan.source, AskedModel):
        return None
    try:
        body = plan.source.body(EvalRow(same[0].item), logprobs=False)
        asked = CHAT.parse(_json(body)).beginnings
    except (TemplateFault, InferenceError):
        return None
    passed = tuple(one.status == "passed" for one in same)
    logprobs = tuple(one.logprob for one in same)
    return RoutedRow(asked.question, asked.question_chars, passed, costs, logprobs)
