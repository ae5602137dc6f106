"""The three stages of a run, which a child process (`tenants.adapters.checks`) computes from rows.
Free of Django.

1. `sample`: the rows are checked, and the requests for their answers written.
2. `ask`: the requests to the models of graders.
3. `grade`: the results, one on each line.

Requests are lines of batches (`tenants.batches.reading`). Their `custom_id` is the number of the
row, and in the second stage also of the criterion: `12.3`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec

from inference.errors import InvalidRequest, short
from inference.operations.bodies.shape import BodyShape
from tenants.batches.reading import Numbered, lines
from tenants.evals.criteria import ByModel, LogProbability, Offered, ScoreModel
from tenants.evals.grading import Grade, grade
from tenants.evals.sources import ENDPOINT, AskedModel, EvalRow, RunSource, filled_messages
from tenants.evals.templates import TemplateFault

MAX_ROW_BYTES = 1 << 20
MAX_ANSWER_BYTES = 32 << 20
"""Of a line with an answer, which may have many log-probabilities."""
MAX_FAULTS = 20

_rows = msgspec.json.Decoder(EvalRow)
_json = msgspec.json.Encoder().encode


class EvalPlan(msgspec.Struct):
    """What the child needs to know of a run."""

    source: RunSource
    criteria: list[Offered]
    schema: dict[str, Any]
    max_rows: int

    @property
    def logprobs(self) -> bool:
        """Whether a criterion needs the log-probabilities of answers."""
        return any(isinstance(one, LogProbability) for one in self.criteria)


def plan_of(task: Mapping[str, Any]) -> EvalPlan:
    """The plan in the description of a task, which has more than that."""
    return msgspec.convert(task, EvalPlan)


@dataclass
class EvalRows:
    """What was found in the rows: how many, and faults as line and message."""

    rows: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)


def sample(plan: EvalPlan, rows: IO[bytes], out: IO[bytes]) -> EvalRows:
    """Check all rows; write the requests for their answers, if the source asks a model."""
    from jsonschema import Draft202012Validator, ValidationError
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    found = EvalRows()
    validator = Draft202012Validator(plan.schema, registry=Registry())
    for line in lines(rows, MAX_ROW_BYTES):
        found.rows += 1
        try:
            if found.rows > plan.max_rows:
                raise TemplateFault(f"A run can have at most {plan.max_rows} rows.")
            row = _row(line)
            validator.validate(row.item)
            if isinstance(plan.source, AskedModel):
                out.write(_request(str(line.number), plan.source.body(row, logprobs=plan.logprobs)))
        except ValidationError as error:
            at = "".join(f".{part}" for part in error.path)
            message = f"`item{at}` does not follow the eval's `item_schema`: {error.message}"
            found.faults.append((line.number, short(message)))
        except (TemplateFault, Unresolvable, RecursionError) as error:
            found.faults.append((line.number, short(str(error))))
        if len(found.faults) >= MAX_FAULTS or found.rows > plan.max_rows:
            break
    if not found.rows:
        found.faults.append((0, "There are no rows."))
    return found


def ask(plan: EvalPlan, rows: IO[bytes], answers: list[IO[bytes]], out: IO[bytes]) -> int:
    """Write the requests to graders' models; returns how many. What lacks a value that a grader
    names, such as a missing answer, is not judged."""
    asked = 0
    for line, values in _answered(plan, rows, answers):
        for number, criterion in enumerate(plan.criteria):
            if not isinstance(criterion, ByModel):
                continue
            try:
                body = _judging(criterion, values)
            except TemplateFault:
                continue
            out.write(_request(f"{line.number}.{number}", body))
            asked += 1
    return asked


def grade_all(
    plan: EvalPlan,
    rows: IO[bytes],
    answers: list[IO[bytes]],
    verdicts: list[IO[bytes]],
    out: IO[bytes],
) -> dict[str, Any]:
    """Write the results; returns their sums."""
    judged = EvalAnswers(verdicts)
    counts = dict.fromkeys(("passed", "failed", "errored"), 0)
    by_criterion = [{"passed": 0, "failed": 0} for _ in plan.criteria]
    usage: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line, values in _answered(plan, rows, answers):
        grades = list[Grade]()
        for number, criterion in enumerate(plan.criteria):
            by_model = isinstance(criterion, ByModel)
            verdict = judged.take(f"{line.number}.{number}") if by_model else None
            _add(usage, verdict)
            grades.append(grade(criterion, values, verdict))
            if grades[-1].score is not None:
                by_criterion[number]["passed" if grades[-1].passed else "failed"] += 1
        answer = values.get("sample")
        if isinstance(plan.source, AskedModel):
            _add(usage, answer)
        if answer is not None:
            answer.pop("logprobs", None)  # there can be many, and they have been used
        status = _status(grades)
        counts[status] += 1
        out.write(_json(EvalResult(line.number, status, values["item"], answer, grades)) + b"\n")
    return {"counts": counts, "by_criterion": by_criterion, "usage": usage}


class EvalResult(msgspec.Struct):
    """The result for one row, as the last stage writes it."""

    number: int
    status: str
    item: dict[str, Any]
    sample: dict[str, Any] | None
    grades: list[Grade]


class EvalAnswers:
    """Samples by `custom_id`, from output files of a batch, each in the order of the requests."""

    def __init__(self, files: list[IO[bytes]]) -> None:
        self._files = [_samples(file) for file in files]
        self._next = [next(file, None) for file in self._files]

    def take(self, custom_id: str) -> dict[str, Any] | None:
        """The sample of this request, if it has one. To be called in the order of requests."""
        for number, file in enumerate(self._files):
            if (found := self._next[number]) is not None and found[0] == custom_id:
                self._next[number] = next(file, None)
                return found[1]
        return None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[Any] | None = None


class _Token(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct):
    model: str = ""
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class _Response(msgspec.Struct):
    status_code: int
    body: _Completion
    timing: dict[str, float | None] | None = None


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: dict[str, Any] | None = None


_answers = msgspec.json.Decoder(_Line)


def _samples(file: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in lines(file, MAX_ANSWER_BYTES):
        found = _answers.decode(line.text)
        yield found.custom_id, _sample(found)


def _sample(line: _Line) -> dict[str, Any]:
    """What templates and clients see of an answer, or why there is none."""
    answer = line.response.body if line.response else _Completion()
    error = line.error or answer.error
    if error is not None or not answer.choices:
        code, message = (str((error or {}).get(name) or "") for name in ("code", "message"))
        return {"error": {"code": code, "message": message}}
    [choice, *_] = answer.choices
    text, calls = choice.message.content or "", choice.message.tool_calls
    found: dict[str, Any] = {
        "model": answer.model,
        "output_text": text,
        "finish_reason": choice.finish_reason or "",
        "usage": answer.usage or {},
    }
    try:
        BodyShape().feed(text.encode())
        found["output_json"] = msgspec.json.decode(text)
    except (InvalidRequest, msgspec.DecodeError, UnicodeEncodeError):
        pass
    if calls:
        found["output_tools"] = calls
    if line.response and line.response.timing:
        found["timing"] = line.response.timing
    if choice.logprobs and choice.logprobs.content:
        found["logprobs"] = [token.logprob for token in choice.logprobs.content]
    return found


def _answered(
    plan: EvalPlan, rows: IO[bytes], answers: list[IO[bytes]]
) -> Iterator[tuple[Numbered, dict[str, Any]]]:
    """The rows, each with its values for templates; without `sample` if it has no answer."""
    asked = isinstance(plan.source, AskedModel)
    samples = EvalAnswers(answers)
    for line in lines(rows, MAX_ROW_BYTES):
        row = _row(line)
        values: dict[str, Any] = {"item": row.item}
        given = samples.take(str(line.number)) if asked else row.sample
        if given is not None:
            values["sample"] = given
        yield line, values


def _row(line: Numbered) -> EvalRow:
    if len(line.text) > MAX_ROW_BYTES:
        raise TemplateFault(f"The row has more than {MAX_ROW_BYTES} bytes.")
    try:
        # What is nested very deeply might be read here, but not by a process with a higher stack.
        BodyShape().feed(line.text)
        return _rows.decode(line.text)
    except InvalidRequest as error:
        raise TemplateFault(error.message.replace("The body", "The row")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TemplateFault(f"The row is not valid: {error}.") from None


def _request(custom_id: str, body: dict[str, Any]) -> bytes:
    asked = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}
    return _json(asked) + b"\n"


def _judging(criterion: ByModel, values: dict[str, Any]) -> dict[str, Any]:
    """The request for a grader's verdict. Raises TemplateFault."""
    answer = {"name": "verdict", "schema": criterion.answer, "strict": True}
    sampling = criterion.sampling_params if isinstance(criterion, ScoreModel) else None
    return {
        "model": criterion.model,
        "messages": filled_messages(criterion.input, values),
        "response_format": {"type": "json_schema", "json_schema": answer},
        **({"temperature": 0} | (sampling.fields() if sampling else {})),
    }


def _status(grades: list[Grade]) -> str:
    if any(one.score is None for one in grades):
        return "errored"
    return "passed" if all(one.passed for one in grades) else "failed"


def _add(usage: dict[str, dict[str, int]], sample: Mapping[str, Any] | None) -> None:
    """Count an answer's tokens under its model."""
    given = (sample or {}).get("usage")
    if sample is None or not isinstance(given, dict) or not given:
        return
    sums = usage[str(sample.get("model"))]
    sums["invocation_count"] += 1
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        sums[name] += int(given.get(name) or 0)
    details = given.get("prompt_tokens_details") or {}
    sums["cached_tokens"] += int(details.get("cached_tokens") or 0)
