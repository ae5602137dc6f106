"""Files and batches on a whole Lorikeet, through OpenAI's unmodified SDK with one base URL."""

from __future__ import annotations

import json
import time
from typing import Any

import anthropic
import openai
import psycopg
import pytest
from openai.types import Batch, CreateEmbeddingResponse
from openai.types.responses import Response
from pydantic import BaseModel

from tests.stack.asking import recovered
from tests.stack.running import Stack

pytestmark = pytest.mark.stack
END_S = 300.0
"""Timeout of a batch on a busy machine."""


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    key = stack.key("brightwater")
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0)


def line(id: str, content: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {
        "custom_id": id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "lorikeet-demo", "messages": messages, "max_tokens": 8} | body,
    }


def begin(
    client: openai.OpenAI, lines: list[dict[str, Any]], endpoint: Any = "/v1/chat/completions"
) -> Batch:
    content = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    assert (file.bytes, file.purpose, file.filename) == (len(content), "batch", "lines.jsonl")
    assert client.files.content(file.id).read() == content
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    end = time.monotonic() + END_S
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < end, batch
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


def answers(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    text = client.files.content(file_id).read()
    found = [json.loads(one) for one in text.splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def bills(stack: Stack, batch: Batch) -> dict[str, int]:
    """How many rows of the ledger each line of the batch has, by its request id."""
    url = stack.children("console")[0].environ()["LORIKEET_DATABASE_URL"]  # workers are killed here
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT id, count(*) FROM tenants_usageevent WHERE started_at ="
            " (SELECT created_at FROM tenants_batch WHERE id = %s) GROUP BY id",
            [batch.id],
        ).fetchall()
    return dict(rows)


def billed(stack: Stack, batch: Batch, count: int) -> dict[str, int]:
    """The same, once `count` lines are in the ledger."""
    end = time.monotonic() + END_S
    while len(found := bills(stack, batch)) < count:
        assert time.monotonic() < end, found
        time.sleep(0.2)
    return found


def test_each_line_is_answered_and_billed_once(stack: Stack, client: openai.OpenAI) -> None:
    lines = [line(f"line {n}", f"hello {n}") for n in range(200)]
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    lines.append(line("picture", "", messages=picture))
    batch = ended(client, begin(client, lines))
    assert batch.status == "completed" and batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (201, 200, 1)
    found = answers(client, batch.output_file_id)
    assert {*found} == {f"line {n}" for n in range(200)}
    for one in found.values():
        assert one["response"]["status_code"] == 200 and one["error"] is None
        openai.types.chat.ChatCompletion.model_validate(one["response"]["body"])
    (failed,) = answers(client, batch.error_file_id).values()
    assert failed["custom_id"] == "picture" and failed["response"]["status_code"] == 400
    assert {*billed(stack, batch, 200).values()} == {1}
    ids = {one["response"]["request_id"].removeprefix("req_") for one in found.values()}
    assert {*bills(stack, batch)} >= ids
    assert batch.id in {one.id for one in client.batches.list()}


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/v1/responses", {"input": "hello", "max_output_tokens": 8}, Response),
        ("/v1/embeddings", {"input": ["hello", "bye"]}, CreateEmbeddingResponse),
    ],
    ids=["responses", "embeddings"],
)
def test_batches_may_ask_for_more_than_chats(
    stack: Stack, client: openai.OpenAI, path: str, body: dict[str, Any], answer: type[BaseModel]
) -> None:
    model = {"model": "lorikeet-demo"}
    lines = [line(f"line {n}", "") | {"url": path, "body": model | body} for n in range(20)]
    batch = ended(client, begin(client, lines, path))
    assert batch.status == "completed" and batch.endpoint == path
    found = answers(client, batch.output_file_id)
    assert {*found} == {f"line {n}" for n in range(20)}
    for one in found.values():
        answer.model_validate(one["response"]["body"], strict=True)
    assert {*billed(stack, batch, 20).values()} == {1}


def test_messages_are_answered_as_anthropics_sdk_asks(stack: Stack) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    params: Any = {"model": "lorikeet-demo", "messages": messages, "max_tokens": 8}
    unknown = params | {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.key("brightwater")) as client:
        batches = client.messages.batches
        wrong = batches.create(requests=[{"custom_id": "a", "params": unknown}])
        requests: Any = [{"custom_id": f"request-{n}", "params": params} for n in range(20)]
        batch = batches.create(requests=requests)
        end = time.monotonic() + END_S
        while batches.retrieve(batch.id).processing_status != "ended":
            assert time.monotonic() < end
            time.sleep(0.2)
        results = {one.custom_id: one.result for one in batches.results(batch.id)}
        assert {*results} == {f"request-{n}" for n in range(20)}
        assert {one.type for one in results.values()} == {"succeeded"}
        assert batches.retrieve(batch.id).request_counts.succeeded == 20
        assert [one.id for one in batches.list()][:2] == [batch.id, wrong.id]
        (refused,) = batches.results(wrong.id)
        assert refused.result.type == "errored"
        batches.delete(batch.id)


def test_what_is_wrong_is_told_with_its_line(client: openai.OpenAI) -> None:
    lines = [line("a", "x"), line("a", "y"), line("b", "x", model="nobody's"), {"custom_id": "c"}]
    batch = ended(client, begin(client, lines))
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    told = {(one.line, one.code) for one in batch.errors.data}
    assert told == {(2, "duplicate_custom_id"), (4, "invalid_json_line")}


def test_what_is_killed_changes_no_answer_and_no_bill(stack: Stack, client: openai.OpenAI) -> None:
    batch = begin(client, [line(f"line {n}", f"hello {n}", max_tokens=40) for n in range(300)])
    for role in ("worker", "gateway", "engine", "worker"):
        before = _done(client, batch)
        while _done(client, batch) <= before and batch.status != "completed":
            time.sleep(0.1)
            batch = client.batches.retrieve(batch.id)
        (stack.gateway(stack.urls[1]) if role == "gateway" else stack.children(role)[-1]).kill()
    batch = ended(client, batch)
    assert batch.status == "completed"
    assert len(answers(client, batch.output_file_id)) == 300 and batch.error_file_id is None
    assert billed(stack, batch, 300) == dict.fromkeys(bills(stack, batch), 1)
    assert len(bills(stack, batch)) == 300
    recovered(stack.urls)


def _done(client: openai.OpenAI, batch: Batch) -> int:
    counts = client.batches.retrieve(batch.id).request_counts
    return 0 if counts is None else counts.completed


def test_a_cancelled_batch_keeps_what_is_finished(stack: Stack, client: openai.OpenAI) -> None:
    batch = begin(client, [line(f"line {n}", "hello " * 50, max_tokens=60) for n in range(2000)])
    while not _done(client, batch):
        time.sleep(0.1)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    found = answers(client, batch.output_file_id)
    rest = answers(client, batch.error_file_id)
    assert len(found) + len(rest) == 2000 and found and rest
    assert {one["error"]["code"] for one in rest.values()} == {"batch_cancelled"}
    assert len(billed(stack, batch, len(found))) == len(found)
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_nobody_elses_files_and_batches_exist(stack: Stack, client: openai.OpenAI) -> None:
    batch = ended(client, begin(client, [line("a", "x")]))
    other = client.with_options(api_key=stack.key("saltbeard"))
    assert batch.output_file_id is not None
    for ask in (
        lambda: other.files.retrieve(batch.input_file_id),
        lambda: other.files.content(batch.output_file_id or ""),
        lambda: other.files.delete(batch.input_file_id),
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    assert batch.id not in {one.id for one in other.batches.list()}
    assert not {*other.files.list()}
    with pytest.raises(openai.BadRequestError):
        other.batches.create(
            input_file_id=batch.input_file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
    assert client.files.delete(batch.input_file_id).deleted
