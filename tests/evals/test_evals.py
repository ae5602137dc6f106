"""`/v1/evals` with the unmodified SDK: evals, runs and their results, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import openai
import pytest
from asgiref.sync import async_to_sync
from pytest_django import Settings

from inference.errors import FileInUse
from tenants.evals import runs
from tenants.evals.criteria import MAX_CRITERIA
from tenants.files import keeping
from tenants.models import BaseModel, Batch, Eval, EvalItem, EvalRun, StoredFile, Tenant
from tenants.models.evals import MOST_GRADES
from tests.batches.conftest import asked
from tests.evals.conftest import Sdk, completion, go_on, jsonl
from tests.tenants.making import make_base, make_key, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = {
    "type": "object",
    "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
    "required": ["question", "answer"],
}
CONFIG: dict[str, Any] = {"type": "custom", "item_schema": SCHEMA, "include_sample_schema": True}
SAME: dict[str, Any] = {
    "type": "string_check",
    "name": "same",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
NEAR: dict[str, Any] = {
    "type": "text_similarity",
    "name": "near",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "evaluation_metric": "fuzzy_match",
    "pass_threshold": 0.5,
}
LABEL: dict[str, Any] = {
    "type": "label_model",
    "name": "polite",
    "model": "base",
    "input": [{"role": "user", "content": "Is this polite? {{ sample.output_text }}"}],
    "labels": ["polite", "rude"],
    "passing_labels": ["polite"],
}
SCORE: dict[str, Any] = {
    "type": "score_model",
    "name": "good",
    "model": "base",
    "input": [
        {"role": "developer", "content": "Judge."},
        {"role": "user", "content": {"type": "input_text", "text": "{{ sample.output_text }}"}},
    ],
    "range": [0, 10],
    "pass_threshold": 7,
    "sampling_params": {"seed": 3, "max_completions_tokens": 50},
}
ROWS = [
    {"item": {"question": "1 + 1?", "answer": "2"}},
    {"item": {"question": "1 + 2?", "answer": "3"}},
    {"item": {"question": "1 + 3?", "answer": "4"}},
]
SOURCE: dict[str, Any] = {
    "type": "completions",
    "source": {"type": "file_content", "content": ROWS},
    "model": "base",
    "input_messages": {
        "type": "template",
        "template": [
            {"role": "developer", "content": "Answer with a number."},
            {"role": "user", "content": "{{ item.question }}"},
        ],
    },
    "sampling_params": {"temperature": 0, "max_completion_tokens": 5, "seed": 1},
}


def answered(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Answers two questions, one of them right; the third fails. Graders' models like digits."""
    said = body["messages"][-1]["content"]
    format = body.get("response_format")
    if format is None:
        if "3?" in said:
            return 500, {"error": {"code": "internal_error", "message": "It broke."}}
        return 200, completion("2" if "1 + 1" in said else "5")
    verdict = format["json_schema"]["schema"]["properties"]
    if "label" in verdict:
        return 200, completion('{"label": "polite"}')
    assert (body["seed"], body["max_completion_tokens"], body["temperature"]) == (3, 50, 0)
    return 200, completion('{"result": 9}' if said == "2" else '{"result": 6.5}')


def test_the_sdk_makes_an_eval_runs_it_and_reads_its_results(sdk: Sdk, base: BaseModel) -> None:
    async def made(client: openai.AsyncOpenAI) -> tuple[str, str]:
        eval = await client.evals.create(
            name="Sums",
            metadata={"for": "sums"},
            data_source_config=CONFIG,  # type: ignore[arg-type]
            testing_criteria=[SAME, NEAR, LABEL, SCORE],  # type: ignore[list-item]
        )
        assert (eval.name, eval.metadata) == ("Sums", {"for": "sums"})
        assert eval.data_source_config.type == "custom"
        assert [one.name for one in eval.testing_criteria] == ["same", "near", "polite", "good"]
        run = await client.evals.runs.create(
            eval.id,
            name="first",
            data_source=SOURCE,  # type: ignore[arg-type]
        )
        assert (run.status, run.model, run.eval_id) == ("queued", "base", eval.id)
        return eval.id, run.id

    eval_id, run_id = sdk(made)
    run = go_on(run_id, answered)
    assert (run.status, run.error) == ("completed", None)

    async def read(client: openai.AsyncOpenAI) -> None:
        run = await client.evals.runs.retrieve(run_id, eval_id=eval_id)
        counts = run.result_counts
        assert (counts.total, counts.passed, counts.failed, counts.errored) == (3, 1, 1, 1)
        sums = {one.testing_criteria: one.passed for one in run.per_testing_criteria_results}
        assert sums == {"same": 1, "near": 1, "polite": 2, "good": 1}
        [usage] = run.per_model_usage
        assert (usage.api_model_name if hasattr(usage, "api_model_name") else "base") == "base"
        assert (usage.invocation_count, usage.total_tokens, usage.cached_tokens) == (6, 72, 24)
        assert f"/evals/{eval_id}/runs/{run_id}" in run.report_url

        items = [one async for one in client.evals.runs.output_items.list(run_id, eval_id=eval_id)]
        assert [one.status for one in items] == ["pass", "fail", "error"]
        right, wrong, broken = items
        assert right.datasource_item == ROWS[0]["item"]
        assert [(one.name, one.passed, one.score) for one in right.results] == [
            ("same", True, 1.0), ("near", True, 1.0), ("polite", True, 1.0), ("good", True, 9.0),
        ]  # fmt: skip
        assert [one.score for one in wrong.results] == [0.0, 0.0, 1.0, 6.5]
        assert [(one.role, one.content) for one in right.sample.input] == [
            ("developer", "Answer with a number."), ("user", "1 + 1?"),
        ]  # fmt: skip
        assert [one.content for one in right.sample.output] == ["2"]
        assert (right.sample.usage.total_tokens, right.sample.finish_reason) == (12, "stop")
        assert broken.sample.error.message == "It broke."
        assert "There is no `sample.output_text`" in str(broken.results[0])
        failed = client.evals.runs.output_items.list(run_id, eval_id=eval_id, status="fail")
        assert [one.id async for one in failed] == [wrong.id]
        one = await client.evals.runs.output_items.retrieve(
            wrong.id, eval_id=eval_id, run_id=run_id
        )
        assert one.model_dump() == wrong.model_dump()

    sdk(read)


def test_every_grade_of_a_result_has_its_outcome(sdk: Sdk, base: BaseModel) -> None:
    assert MOST_GRADES == MAX_CRITERIA
    run = go_on(_made(sdk, [SAME, NEAR, LABEL]), answered)
    assert [one.outcomes for one in run.items.order_by("number")] == ["ppp", "ffp", "eee"]


def test_evals_are_listed_renamed_and_deleted_with_their_runs(sdk: Sdk, base: BaseModel) -> None:
    async def script(client: openai.AsyncOpenAI) -> None:
        ids = []
        for name in ("a", "b"):
            eval = await client.evals.create(
                name=name,
                data_source_config=CONFIG,  # type: ignore[arg-type]
                testing_criteria=[SAME],  # type: ignore[list-item]
            )
            ids.append(eval.id)
        assert [one.id async for one in client.evals.list(limit=1)] == ids
        assert [one.id async for one in client.evals.list(order="desc")] == ids[::-1]
        renamed = await client.evals.update(ids[0], name="c", metadata={"x": "y"})
        assert (renamed.name, renamed.metadata) == ("c", {"x": "y"})
        assert (await client.evals.update(ids[0], name="d")).metadata == {"x": "y"}
        run = await client.evals.runs.create(ids[0], data_source=SOURCE)  # type: ignore[arg-type]
        other = await client.evals.runs.create(ids[0], data_source=SOURCE)  # type: ignore[arg-type]
        listed = client.evals.runs.list(ids[0], status="queued")
        assert [one.id async for one in listed] == [run.id, other.id]
        canceled = await client.evals.runs.cancel(run.id, eval_id=ids[0])
        assert canceled.status == "canceled"
        gone = await client.evals.runs.delete(run.id, eval_id=ids[0])
        assert (gone.deleted, gone.run_id) == (True, run.id)
        deleted = await client.evals.delete(ids[0])
        assert (deleted.deleted, deleted.eval_id) == (True, ids[0])
        with pytest.raises(openai.NotFoundError):
            await client.evals.retrieve(ids[0])

    sdk(script)
    assert not EvalRun.objects.exists()


def test_answers_that_come_with_the_rows_are_graded_and_no_model_is_asked(
    sdk: Sdk, base: BaseModel
) -> None:
    rows = [
        {"item": ROWS[0]["item"], "sample": {"output_text": "2"}},
        {"item": ROWS[1]["item"], "sample": {"output_text": "two", "usage": "much", "error": 1}},
        {"item": ROWS[2]["item"]},
    ]

    async def script(client: openai.AsyncOpenAI) -> str:
        file = await client.files.create(file=("rows.jsonl", jsonl(rows)), purpose="evals")
        eval = await client.evals.create(
            data_source_config=CONFIG,  # type: ignore[arg-type]
            testing_criteria=[SAME],  # type: ignore[list-item]
        )
        run = await client.evals.runs.create(
            eval.id, data_source={"type": "jsonl", "source": {"type": "file_id", "id": file.id}}
        )
        return run.id

    run_id = sdk(script)
    run = EvalRun.objects.select_related("eval__tenant").get()
    with pytest.raises(FileInUse):
        keeping.delete(run.eval.tenant, run.file_id)
    run = go_on(run_id, answered)
    assert (run.passed, run.failed, run.errored) == (1, 1, 1)
    assert not Batch.objects.exists()
    keeping.delete(run.eval.tenant, run.file_id)

    async def read(client: openai.AsyncOpenAI) -> None:
        items = client.evals.runs.output_items.list(run_id, eval_id=run.eval_id)
        samples = [item.sample async for item in items]
        said = [[answer.content for answer in sample.output] for sample in samples]
        assert said == [["2"], ["two"], []]
        assert [sample.usage.total_tokens for sample in samples] == [0, 0, 0]

    sdk(read)


def test_log_probabilities_and_schemas_are_graded(sdk: Sdk, base: BaseModel) -> None:
    criteria: list[dict[str, Any]] = [
        {"type": "logprob", "name": "sure", "pass_threshold": -1.0},
        {"type": "json_schema", "name": "object", "schema": {"type": "object"}},
    ]

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert body["logprobs"] is True
        first = "1 + 1" in body["messages"][-1]["content"]
        tokens = [{"token": "x", "logprob": one} for one in ((-0.5, -1.0) if first else (-2.0,))]
        return 200, completion("{}" if first else "[]", logprobs={"content": tokens})

    run = go_on(_made(sdk, criteria), answer)
    scores = [
        [grade["score"] for grade in item["grades"]]
        for item in map(_body, run.items.order_by("number"))
    ]
    assert scores == [[-0.75, 1.0], [-2.0, 0.0], [-2.0, 0.0]]
    assert "logprobs" not in str(EvalItem.objects.values_list("body"))


def test_latency_is_graded(sdk: Sdk, base: BaseModel) -> None:
    criteria = [{"type": "latency", "name": "quick", "max_total_ms": 200}]
    run = go_on(_made(sdk, criteria), lambda body: (200, completion("2")))
    assert (run.passed, run.failed, run.errored) == (2, 1, 0)
    items = map(_body, run.items.order_by("number"))
    assert [item["grades"][0]["score"] for item in items] == [100.0, 200.0, 300.0]


def test_a_model_is_asked_in_the_fields_of_responses(sdk: Sdk, base: BaseModel) -> None:
    tool = {"type": "function", "name": "sum", "parameters": {"type": "object"}, "strict": True}
    format = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    sampling = {"max_completion_tokens": 7, "text": {"format": format}, "tools": [tool]}

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        shape = {"name": "a", "schema": {"type": "object"}, "strict": True}
        assert body["response_format"] == {"type": "json_schema", "json_schema": shape}
        assert body["tools"][0]["function"]["name"] == "sum"
        assert (body["max_completion_tokens"], "text" in body) == (7, False)
        return 200, completion("2")

    run = go_on(_made(sdk, [SAME], type="responses", sampling_params=sampling), answer)
    assert (run.status, run.passed, run.failed) == ("completed", 1, 2)


def _body(item: EvalItem) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(item.body)
    return found


def _made(sdk: Sdk, criteria: list[dict[str, Any]], **source: Any) -> str:
    """The id of a new run of a new eval."""

    async def script(client: openai.AsyncOpenAI) -> str:
        eval = await client.evals.create(
            data_source_config=CONFIG,  # type: ignore[arg-type]
            testing_criteria=criteria,  # type: ignore[arg-type]
        )
        run = await client.evals.runs.create(eval.id, data_source=SOURCE | source)  # type: ignore[arg-type]
        return run.id

    found: str = sdk(script)
    return found


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"source": {"type": "file_content", "content": [{"item": {"question": "?"}}]}},
         "Line 1: `item` does not follow the eval's `item_schema`: 'answer' is a required"),
        ({"source": {"type": "file_content", "content": []}}, "There are no rows."),
        ({"input_messages": {"type": "template", "template": [
            {"role": "user", "content": "{{item.nothing}}"}]}}, "There is no `item.nothing`."),
        ({"input_messages": {"type": "item_reference", "item_reference": "item.question"}},
         "`item.question` is no list of messages."),
        ({"model": "nobody"}, "The model `nobody` does not exist"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_run_fails_and_says_why(
    sdk: Sdk, base: BaseModel, source: dict[str, Any], said: str
) -> None:
    run = go_on(_made(sdk, [SAME], **source), answered)
    assert run.status == "failed"
    assert said in str(run.error)


def test_what_is_nested_very_deeply_ends_no_run(sdk: Sdk, base: BaseModel) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    rows = {"type": "file_content", "content": [{"item": ROWS[0]["item"] | {"deep": deep}}]}
    with pytest.raises(openai.BadRequestError):
        _made(sdk, [SAME], source=rows)

    async def uploaded(client: openai.AsyncOpenAI) -> str:
        file = await client.files.create(
            file=("rows.jsonl", jsonl(rows["content"])), purpose="evals"
        )
        return file.id

    source = {"type": "file_id", "id": sdk(uploaded)}
    failed = go_on(_made(sdk, [SAME], source=source), answered)
    assert "Line 1: The row is nested more than 128 levels deep." in str(failed.error)
    text = "[" * 960 + "]" * 960
    run = go_on(_made(sdk, [SAME]), lambda body: (200, completion(text)))
    assert (run.status, run.failed) == ("completed", 3)
    assert "output_json" not in str(EvalItem.objects.values_list("body"))


def test_a_run_has_so_many_rows_and_a_tenant_so_many_runs(
    sdk: Sdk, base: BaseModel, settings: Settings
) -> None:
    settings.EVAL_ROWS, settings.TENANT_BATCHES = 2, 1
    run = _made(sdk, [SAME])
    with pytest.raises(openai.RateLimitError, match="1 unfinished runs; at most 1"):
        _made(sdk, [SAME])
    assert "Line 3: A run can have at most 2 rows." in str(go_on(run, answered).error)


def test_a_stage_that_is_repeated_changes_nothing(
    sdk: Sdk, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EvalRun.objects.get(pk=_made(sdk, [SAME, LABEL]))

    def killed(*_: Any, **__: Any) -> bool:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(EvalRun, "note", killed)
        with pytest.raises(SystemExit):
            runs.go_on_with(run_id=run.pk)
    assert not Batch.objects.exists() and StoredFile.objects.count() == 1
    run = go_on(run.pk, answered)
    assert (run.status, run.items.count(), Batch.objects.count()) == ("completed", 3, 2)
    runs.go_on_with(run_id=run.pk)
    assert run.items.count() == 3


def test_a_canceled_run_asks_nothing_more(sdk: Sdk, base: BaseModel) -> None:
    run = EvalRun.objects.get(pk=_made(sdk, [SAME]))
    runs.go_on_with(run_id=run.pk)
    run = EvalRun.objects.select_related("samples", "verdicts").get(pk=run.pk)
    runs.cancel(run)
    assert Batch.objects.get().status == "cancelled"
    assert go_on(run.pk, answered).status == "canceled"
    runs.cancel(run)


def test_a_lost_job_is_queued_again(sdk: Sdk, base: BaseModel, queued: Callable[[], int]) -> None:
    _made(sdk, [SAME])
    before = queued()
    runs.tend_evals(timestamp=0)
    assert queued() == before + 1


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many jobs of runs were queued."""
    seen: list[EvalRun] = []
    monkeypatch.setattr(runs, "go_on_later", lambda run, seconds=0: seen.append(run))
    return lambda: len(seen)


@pytest.mark.parametrize(
    ("changed", "param", "said"),
    [
        ({"testing_criteria": []}, "testing_criteria", "1 to 32"),
        ({"testing_criteria": [{"type": "python", "source": "1"}]}, "testing_criteria[0].type",
         "`python` are not offered"),
        ({"testing_criteria": [SAME, NEAR | {"evaluation_metric": "cosine"}]},
         "testing_criteria[1].evaluation_metric", "a model of embeddings"),
        ({"testing_criteria": [NEAR | {"pass_threshold": 2}]}, "testing_criteria[0].pass_threshold",
         "from 0.0 to 1.0"),
        ({"testing_criteria": [LABEL | {"passing_labels": ["nice"]}]},
         "testing_criteria[0].passing_labels", "a subset"),
        ({"testing_criteria": [SCORE | {"range": [1, 1]}]}, "testing_criteria[0].range",
         "less than"),
        ({"testing_criteria": [SAME | {"input": "{{ row.x }}"}]}, "testing_criteria[0]", "'row.x'"),
        ({"testing_criteria": [SAME | {"other": 1}]}, None, "unknown field `other`"),
        ({"data_source_config": {"type": "logs"}}, "data_source_config.type", "earlier requests"),
        ({"data_source_config": CONFIG | {"item_schema": {"type": 7}}},
         "data_source_config.item_schema", "not a valid JSON schema"),
        ({"data_source_config": CONFIG | {"item_schema": {"x": "y" * 70_000}}},
         "data_source_config.item_schema", "at most 65536"),
        ({"name": "x" * 201}, "name", "at most 200"),
        ({"metadata": {"x": "y" * 513}}, "metadata", "a value 512"),
    ],
)  # fmt: skip
def test_an_eval_that_cannot_be_graded_is_refused(
    secret: str, changed: dict[str, Any], param: str | None, said: str
) -> None:
    body = {"data_source_config": CONFIG, "testing_criteria": [SAME]} | changed
    answer = async_to_sync(asked)("POST", "evals", secret, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert said in error["message"]
    assert not Eval.objects.exists()


@pytest.mark.parametrize(
    ("changed", "param", "said"),
    [
        ({"source": {"type": "stored_completions"}}, "data_source.source.type", "earlier"),
        ({"source": {"type": "file_id", "id": "file-none"}}, "data_source.source.id",
         "no such file"),
        ({"input_messages": {"type": "template", "template": []}},
         "data_source.input_messages.template", "1 to 256"),
        ({"input_messages": {"type": "item_reference", "item_reference": "sample.x"}},
         "data_source.input_messages.item_reference", "begin with `item.`"),
        ({"input_messages": {"type": "template", "template": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}},
         None, "input_image"),
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_used_is_refused(
    secret: str, changed: dict[str, Any], param: str | None, said: str
) -> None:
    eval = Eval.objects.create(
        tenant=Tenant.objects.get(slug="acme"), name="", config=CONFIG, criteria=[SAME]
    )
    body = {"data_source": SOURCE | changed}
    answer = async_to_sync(asked)("POST", f"evals/{eval.pk}/runs", secret, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert said in error["message"]
    assert not EvalRun.objects.exists() and not StoredFile.objects.exists()


def test_a_file_of_another_purpose_or_tenant_is_no_source(sdk: Sdk, secret: str) -> None:
    other = make_tenant("other")
    theirs = StoredFile.objects.create(tenant=other, purpose="evals", filename="x", size_bytes=1)

    async def script(client: openai.AsyncOpenAI) -> None:
        eval = await client.evals.create(
            data_source_config=CONFIG,  # type: ignore[arg-type]
            testing_criteria=[SAME],  # type: ignore[list-item]
        )
        batch = await client.files.create(file=("x.jsonl", b"{}"), purpose="batch")
        for id, said in ((theirs.pk, "no such file"), (batch.id, "purpose is `batch`")):
            with pytest.raises(openai.BadRequestError, match=said):
                await client.evals.runs.create(
                    eval.id, data_source={"type": "jsonl", "source": {"type": "file_id", "id": id}}
                )

    sdk(script)


def test_other_tenants_see_nothing(sdk: Sdk, base: BaseModel) -> None:
    run = EvalRun.objects.get(pk=_made(sdk, [SAME]))
    run = go_on(run.pk, answered)
    item = run.items.first()
    assert item is not None
    other = make_key(make_tenant("other"))[1]
    path = f"evals/{run.eval_id}"
    for method, at in (
        ("GET", path), ("POST", path), ("DELETE", path), ("GET", f"{path}/runs"),
        ("POST", f"{path}/runs"), ("GET", f"{path}/runs/{run.pk}"),
        ("POST", f"{path}/runs/{run.pk}"), ("DELETE", f"{path}/runs/{run.pk}"),
        ("GET", f"{path}/runs/{run.pk}/output_items"),
        ("GET", f"{path}/runs/{run.pk}/output_items/{item.pk}"),
    ):  # fmt: skip
        body = {"data_source": SOURCE} if at.endswith("/runs") else {}
        answer = async_to_sync(asked)(method, at, other, json=body)
        assert answer.status_code == 404, (method, at)
    assert Eval.objects.count() == EvalRun.objects.count() == 1


def test_the_example_of_the_documentation_runs(secret: str, capsys: Any) -> None:
    make_base("SmolLM2-135M-Instruct")
    page = (ROOT / "docs" / "evals.md").read_text()
    example = page.partition("## Example\n")[2].partition("\n\nRows from a file")[0]
    code = dedent(example.partition("\n\n")[2])
    code = code.replace("http://127.0.0.1:8000", "http://localhost")
    code = code.replace("api_key=KEY", "api_key=KEY, http_client=HTTP")
    code = code.replace("time.sleep(2)", "work(run.id)")

    def sent(request: httpx.Request) -> httpx.Response:
        path = str(request.url).partition("/v1/")[2]
        body = json.loads(request.content) if request.content else None
        answer = async_to_sync(asked)(request.method, path, secret, json=body)
        return httpx.Response(answer.status_code, content=answer.content)

    http = httpx.Client(transport=httpx.MockTransport(sent))
    work = partial(go_on, answer=lambda body: (200, completion("2")))
    exec(code, {"KEY": secret, "HTTP": http, "work": work})
    said = capsys.readouterr().out
    assert "completed ResultCounts(errored=0, failed=1, passed=1, total=2)" in said
    assert "'answer': '5'" in said and EvalRun.objects.get().name == "base model"
