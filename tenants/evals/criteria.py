"""The testing criteria of an eval as in OpenAI's API, with two of our own: `json_schema` and
`logprob`. Free of Django, because a child process grades.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from inference.errors import InvalidRequest
from tenants.evals import templates

LOGPROB = "logprob"
MAX_CRITERIA = 32
MAX_LABELS = 100
MAX_SCHEMA_BYTES = 64 << 10
MAX_NAME = 200
MAX_LATENCY_MS = 3_600_000
Similarity = Literal[
    "fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"
]
NEEDS_MORE = {
    "cosine": "it needs a model of embeddings",
    "meteor": "it needs a thesaurus of English",
}
"""Metrics of OpenAI's API that are not offered, and why."""


class EvalText(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class EvalMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message whose texts are templates."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | EvalText | list[str | EvalText]
    type: Literal["message"] = "message"

    @property
    def text(self) -> str:
        """The template of the whole text."""
        parts = self.content if isinstance(self.content, list) else [self.content]
        return "\n".join(part if isinstance(part, str) else part.text for part in parts)


class Criterion(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """What all criteria have. `id` is ignored: answers of OpenAI's API have one."""

    name: str = ""
    id: str | None = None

    @property
    def texts(self) -> list[str]:
        """Its templates."""
        return []

    def check(self) -> None:
        """Raises InvalidRequest if it can't be used; `param` is relative to the criterion."""
        if len(self.name) > MAX_NAME:
            raise InvalidRequest(f"A name can have at most {MAX_NAME} characters.", param="name")
        for text in self.texts:
            templates.check(text)


class StringCheck(Criterion, tag="string_check", kw_only=True):
    """Whether a text is, or with `like` contains, another one; `ilike` ignores case."""

    input: str
    reference: str
    operation: Literal["eq", "ne", "like", "ilike"]

    @property
    def texts(self) -> list[str]:
        return [self.input, self.reference]


class TextSimilarity(Criterion, tag="text_similarity", kw_only=True):
    """Whether the similarity of two texts, from 0 to 1, reaches a threshold."""

    input: str
    reference: str
    evaluation_metric: str
    pass_threshold: float

    @property
    def texts(self) -> list[str]:
        return [self.input, self.reference]

    def check(self) -> None:
        super().check()
        metric, offered = self.evaluation_metric, Similarity.__args__  # type: ignore[attr-defined]
        if metric not in offered:
            why = f" ({NEEDS_MORE[metric]})" if metric in NEEDS_MORE else ""
            raise InvalidRequest(
                f"`evaluation_metric` is {metric[:40]!r}, which is not offered{why}: it must be "
                f"one of {', '.join(offered)}.",
                param="evaluation_metric",
            )
        _check_threshold(self.pass_threshold, 0.0, 1.0)


class LabelModel(Criterion, tag="label_model", kw_only=True):
    """Whether the label that a model chooses is a passing one."""

    model: str
    input: list[EvalMessage]
    labels: list[str]
    passing_labels: list[str]

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.input]

    def check(self) -> None:
        super().check()
        if not 0 < len(set(self.labels)) == len(self.labels) <= MAX_LABELS:
            raise InvalidRequest(
                f"There must be 1 to {MAX_LABELS} different labels.", param="labels"
            )
        if not set(self.passing_labels) <= set(self.labels):
            raise InvalidRequest(
                "`passing_labels` must be a subset of `labels`.", param="passing_labels"
            )

    @property
    def answer(self) -> dict[str, Any]:
        """The schema of the model's answer."""
        return _object(label={"type": "string", "enum": self.labels})


class GraderSampling(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a grader's model is asked. OpenAI's API writes `max_completions_tokens`."""

    max_completions_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of the request."""
        given: dict[str, Any] = msgspec.to_builtins(self)
        if (most := given.pop("max_completions_tokens", None)) is not None:
            given.setdefault("max_completion_tokens", most)
        return given


class ScoreModel(Criterion, tag="score_model", kw_only=True):
    """Whether the number that a model gives reaches a threshold; without one, the middle of the
    range."""

    model: str
    input: list[EvalMessage]
    range: list[float] = msgspec.field(default_factory=lambda: [0.0, 1.0])
    pass_threshold: float | None = None
    sampling_params: GraderSampling | None = None

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.input]

    @property
    def threshold(self) -> float:
        low, high = self.range
        return (low + high) / 2 if self.pass_threshold is None else self.pass_threshold

    def check(self) -> None:
        super().check()
        if len(self.range) != 2 or not self.range[0] < self.range[1]:
            raise InvalidRequest(
                "`range` must have two numbers, the first less than the second.", param="range"
            )
        low, high = self.range
        _check_threshold(self.threshold, low, high)

    @property
    def answer(self) -> dict[str, Any]:
        """The schema of the model's answer."""
        low, high = self.range
        return _object(result={"type": "number", "minimum": low, "maximum": high})


class SchemaCheck(Criterion, tag="json_schema", kw_only=True):
    """Ours: whether a text is JSON that follows a schema."""

    schema: dict[str, Any]
    input: str = "{{sample.output_text}}"

    @property
    def texts(self) -> list[str]:
        return [self.input]

    def check(self) -> None:
        super().check()
        check_schema(self.schema, "schema")


class LogProbability(Criterion, tag=LOGPROB, kw_only=True):
    """Ours: whether the mean log-probability of the answer's tokens reaches a threshold."""

    pass_threshold: float

    def check(self) -> None:
        super().check()
        _check_threshold(self.pass_threshold, float("-inf"), 0.0)


class Latency(Criterion, tag="latency", kw_only=True):
    """Ours: whether the answer took at most so many milliseconds, to its end, to its first token or
    both, from when its engine began with it."""

    max_total_ms: float | None = None
    max_first_token_ms: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        """Those that are set, by the name of the time that they bound."""
        found = {"total_ms": self.max_total_ms, "first_token_ms": self.max_first_token_ms}
        return {name: most for name, most in found.items() if most is not None}

    def check(self) -> None:
        super().check()
        if not self.bounds:
            raise InvalidRequest("Set `max_total_ms` or `max_first_token_ms`.", param="type")
        for name, most in self.bounds.items():
            if not 0 < most <= MAX_LATENCY_MS:
                raise InvalidRequest(
                    f"`max_{name}` is {most:g}: it must be above 0 and at most {MAX_LATENCY_MS}.",
                    param=f"max_{name}",
                )


class Python(msgspec.Struct, tag_field="type", tag="python"):
    """Not offered: it would run the client's code."""


class Multi(msgspec.Struct, tag_field="type", tag="multi"):
    """Not offered, as in OpenAI's evals; it is for reinforcement fine-tuning."""


Offered = (
    StringCheck | TextSimilarity | LabelModel | ScoreModel | SchemaCheck | LogProbability | Latency
)
ByModel = LabelModel | ScoreModel
"""Criteria that a model judges."""
Given = Offered | Python | Multi


def check(criteria: list[Given]) -> list[Offered]:
    """The criteria, if they can all be used.

    Raises:
        InvalidRequest: they can't; it names the first that can't.
    """
    if not 0 < len(criteria) <= MAX_CRITERIA:
        raise InvalidRequest(
            f"There must be 1 to {MAX_CRITERIA} `testing_criteria`, not {len(criteria)}.",
            param="testing_criteria",
        )
    return [*_checked(criteria)]


def _checked(criteria: list[Given]) -> Iterator[Offered]:
    for number, criterion in enumerate(criteria):
        place = f"testing_criteria[{number}]"
        if isinstance(criterion, Python | Multi):
            kind = type(criterion).__name__.lower()
            raise InvalidRequest(
                f"Graders of type `{kind}` are not offered.", param=f"{place}.type"
            )
        try:
            criterion.check()
        except InvalidRequest as error:
            param = f"{place}.{error.param}" if error.param else place
            raise InvalidRequest(f"`{place}`: {error.message}", param=param) from None
        yield criterion


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest if this is not a JSON schema, or a very large one."""
    from jsonschema import Draft202012Validator, SchemaError  # few processes need it

    try:
        size = len(msgspec.json.encode(schema))
        if size > MAX_SCHEMA_BYTES:
            message = f"`{param}` has {size} bytes; at most {MAX_SCHEMA_BYTES} are allowed."
            raise InvalidRequest(message, param=param)
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        at = "".join(f"[{part!r}]" for part in error.path)
        raise InvalidRequest(
            f"`{param}` is not a valid JSON schema: {error.message[:200]} (at {at or 'its root'}).",
            param=param,
        ) from None
    except RecursionError:
        raise InvalidRequest(f"`{param}` is nested too deeply.", param=param) from None


def _check_threshold(threshold: float, low: float, high: float) -> None:
    if not low <= threshold <= high:
        raise InvalidRequest(
            f"`pass_threshold` is {threshold}: it must be from {low} to {high}.",
            param="pass_threshold",
        )


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
