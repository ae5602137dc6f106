"""Evals, their runs and results."""

from __future__ import annotations

from typing import Any, Literal

from tenants.api.openai.shapes.base import Listed, Shape
from tenants.evals.criteria import Offered
from tenants.evals.sources import CustomConfig, RunSource


class EvalRequest(Shape):
    """How rows are described, and how their answers are graded."""

    data_source_config: CustomConfig
    testing_criteria: list[Offered]
    name: str = ""
    metadata: dict[str, str] | None = None


class EvalUpdate(Shape):
    name: str = ""
    metadata: dict[str, str] | None = None


class EvalConfig(Shape):
    """`schema` is that of a whole row."""

    type: Literal["custom"]
    schema: dict[str, Any]
    item_schema: dict[str, Any]
    include_sample_schema: bool


class EvalObject(Shape):
    id: str
    object: Literal["eval"]
    created_at: int
    name: str
    metadata: dict[str, str] | None
    data_source_config: EvalConfig
    testing_criteria: list[Offered]


class Evals(Listed, kw_only=True):
    data: list[EvalObject]


class DeletedEval(Shape):
    object: Literal["eval.deleted"]
    deleted: bool
    eval_id: str


class EvalRunRequest(Shape):
    """Rows, and the model that answers them unless they have answers."""

    data_source: RunSource
    name: str = ""
    metadata: dict[str, str] | None = None


class EvalError(Shape):
    code: str
    message: str


class EvalCounts(Shape):
    total: int
    passed: int
    failed: int
    errored: int


class CriterionCounts(Shape):
    testing_criteria: str
    passed: int
    failed: int


class EvalModelUsage(Shape):
    model_name: str
    invocation_count: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int


class EvalRunObject(Shape):
    id: str
    object: Literal["eval.run"]
    created_at: int
    eval_id: str
    name: str
    metadata: dict[str, str] | None
    model: str
    status: Literal["queued", "in_progress", "completed", "canceled", "failed"]
    error: EvalError
    data_source: RunSource
    report_url: str
    result_counts: EvalCounts
    per_testing_criteria_results: list[CriterionCounts]
    per_model_usage: list[EvalModelUsage]


class EvalRuns(Listed, kw_only=True):
    data: list[EvalRunObject]


class DeletedEvalRun(Shape):
    object: Literal["eval.run.deleted"]
    deleted: bool
    run_id: str


class EvalGrade(Shape):
    """A grader's result; `error` says why there is none. `sample` is what a grader's model said."""

    name: str
    type: str
    passed: bool
    score: float
    error: str = ""
    sample: dict[str, Any] | None = None


class EvalTokens(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class EvalTurn(Shape):
    role: str
    content: str


class EvalSample(Shape):
    """What was asked and answered."""

    input: list[EvalTurn]
    output: list[EvalTurn]
    finish_reason: str
    model: str
    usage: EvalTokens
    error: EvalError | None
    temperature: float | None
    max_completion_tokens: int | None
    top_p: float | None
    seed: int | None


class EvalOutputItem(Shape):
    """The result for the row at line `datasource_item_id`."""

    id: str
    object: Literal["eval.run.output_item"]
    created_at: int
    run_id: str
    eval_id: str
    status: Literal["pass", "fail", "error"]
    datasource_item_id: int
    datasource_item: dict[str, Any]
    results: list[EvalGrade]
    sample: EvalSample


class EvalOutputItems(Listed, kw_only=True):
    data: list[EvalOutputItem]
