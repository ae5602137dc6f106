"""Embeddings and scores of texts, without an engine."""

from __future__ import annotations

import base64
import json
import struct
from array import array
from typing import Any

import pytest
from msgspec.structs import replace

from inference.agent.engines.synthetic.vectors import DIMENSIONS, vector_of
from inference.errors import ContextLengthExceeded, InvalidRequest
from inference.gateway.fleet.dispatches import Bounds
from inference.interfaces.limiter import ReservationRequest
from inference.link.accounts import Usage
from inference.link.workload import Workload
from inference.operations.estimate import MAX_TOKENS, Estimate
from inference.operations.operation import Call, PlainPrompt
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.pooling.pooling import (
    MAX_ANSWER_BYTES,
    MAX_INPUTS,
    AnswerMetadata,
    PoolingOperation,
)
from inference.operations.pooling.scoring import PAIRS, RERANK, SCORE
from inference.operations.registry import OPERATIONS
from tests.inference.operations.examples import EXAMPLES

pytestmark = pytest.mark.pure

POOLING = [one for one in OPERATIONS if isinstance(one, PoolingOperation)]
EACH = pytest.mark.parametrize("operation", POOLING, ids=lambda one: one.name)
METADATA = AnswerMetadata("x-1", 1_700_000_000, "m", 7)
VECTOR = array("f", [0.5, -0.25])


def parse(operation: PoolingOperation, **fields: Any) -> Call:
    return operation.parse(json.dumps({"model": "m"} | fields).encode())


def answer(operation: PoolingOperation, **fields: Any) -> dict[str, Any]:
    """The synthetic engine's answer."""
    allowed = operation.allowed({"model": "m"} | fields)
    vectors = [vector_of(text, "m", None) for _, text in operation.texts(allowed)]
    body: dict[str, Any] = json.loads(operation.plain_answer(allowed, vectors, METADATA))
    return body


def test_the_synthetic_engine_answers_as_others_do() -> None:
    (one,) = answer(EMBEDDINGS, input="a")["data"]
    assert len(one["embedding"]) == DIMENSIONS


@EACH
def test_it_reserves_its_prompts_and_nothing_else(operation: PoolingOperation) -> None:
    body = EXAMPLES[operation.name].body("m")
    call = operation.parse(json.dumps(body).encode())
    assert (call.model, call.stream) == ("m", False)
    assert (call.workload.max_tokens, call.workload.choices) == (0, 1)
    assert operation.estimate(call, 7, 2048) == Estimate(
        replace(call.workload, prompt_tokens=7), ReservationRequest(7, 0, 0), grows=False
    )
    assert operation.bound(call, 0) is None
    assert operation.max_tokens(body) == 0
    assert operation.plain_prompt({}) == PlainPrompt("", "")


@EACH
def test_its_answer_is_what_the_engine_says(operation: PoolingOperation) -> None:
    body = json.dumps(EXAMPLES[operation.name].body("m")).encode()
    framing = operation.framing(operation.parse(body), "1", 0)
    assert framing.response(b'{"a":1}', None) == b'{"a":1}'
    assert framing.ending(Usage()) == b""


@pytest.mark.parametrize(
    ("given", "prompts", "tokens"),
    [
        ("hello", 1, 0),
        (["hello", "[1, 2]"], 2, 0),
        ([1, 2, 3], 1, 3),
        ([[1, 2, 3], [4]], 2, 4),
        (["x"] * MAX_INPUTS, MAX_INPUTS, 0),
    ],
)
def test_inputs_are_counted(given: Any, prompts: int, tokens: int) -> None:
    call = parse(EMBEDDINGS, input=given)
    assert (call.workload.prompts, call.workload.prompt_tokens) == (prompts, tokens)


def test_texts_that_are_compared_may_each_be_read_with_all_others() -> None:
    for call in (
        parse(RERANK, query="x", documents=["a", "b", "c"]),
        parse(SCORE, queries="x", documents=["a", "b", "c"]),
    ):
        assert (call.workload.prompts, call.workload.rereads) == (6, 3)
    body = b"x" * 1000
    once = Bounds.of(body, 1 << 20, Workload(prompts=6, max_tokens=0))
    thrice = Bounds.of(body, 1 << 20, Workload(prompts=6, max_tokens=0, rereads=3))
    assert thrice.prompt_tokens == 3 * once.prompt_tokens


def test_more_tokens_than_the_inputs_can_have_are_refused() -> None:
    call = parse(EMBEDDINGS, input=[[1] * (MAX_TOKENS + 1)])
    with pytest.raises(ContextLengthExceeded):
        EMBEDDINGS.estimate(call, 1, 2048)


@pytest.mark.parametrize(
    ("operation", "fields", "param"),
    [
        (EMBEDDINGS, {}, "input"),
        (EMBEDDINGS, {"input": None}, "input"),
        (EMBEDDINGS, {"input": ""}, "input"),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": ["x"] * (MAX_INPUTS + 1)}, "input"),
        (EMBEDDINGS, {"input": [[1]] * (MAX_INPUTS + 1)}, "input"),
        (EMBEDDINGS, {"input": "x", "model": ""}, "model"),
        (EMBEDDINGS, {"input": "x", "dimensions": 0}, "dimensions"),
        (EMBEDDINGS, {"input": "x", "dimensions": "8"}, "dimensions"),
        (EMBEDDINGS, {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        (EMBEDDINGS, {"input": "x", "user": 7}, "user"),
        (SCORE, {"queries": "x"}, "queries"),
        (SCORE, {"queries": "x", "text_2": "y"}, "queries"),
        (SCORE, {"queries": "x", "documents": "y", "items": "z"}, "queries"),
        (SCORE, {"queries": "x", "documents": []}, "documents"),
        (SCORE, {"queries": "x", "documents": "y", "model": ""}, "model"),
        (RERANK, {"query": "x"}, "documents"),
        (RERANK, {"query": ["x"], "documents": ["y"]}, "query"),
        (RERANK, {"query": "x", "documents": ["y"] * (MAX_INPUTS + 1)}, "documents"),
        (RERANK, {"query": "x", "documents": ["y"], "top_n": -1}, "top_n"),
    ],
)
def test_the_gateway_refuses(
    operation: PoolingOperation, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(operation, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("operation", "fields", "param"),
    [
        (EMBEDDINGS, {"input": ["x", ""]}, "input[1]"),
        (EMBEDDINGS, {"input": ["x", None]}, "input[1]"),
        (EMBEDDINGS, {"input": [[1], [2, "x"]]}, "input[1]"),
        (EMBEDDINGS, {"input": [[1], []]}, "input[1]"),
        (EMBEDDINGS, {"input": [[1], [True]]}, "input[1]"),
        (EMBEDDINGS, {"input": [[1], [-1]]}, "input[1]"),
        (EMBEDDINGS, {"input": [1, 2.5]}, "input"),
        (EMBEDDINGS, {"input": {"text": "x"}}, "input"),
        (SCORE, {"queries": "x", "documents": ["y", {"content": []}]}, "documents[1]"),
        (SCORE, {"queries": "x", "documents": ["y", [1]]}, "documents[1]"),
        (SCORE, {"queries": ["x", "y"], "documents": ["y"]}, "queries"),
        (SCORE, {"queries": ["x", "y"], "documents": ["a", "b", "c"]}, "queries"),
        (RERANK, {"query": "", "documents": ["y"]}, "query"),
        (RERANK, {"query": "x", "documents": [""]}, "documents[0]"),
    ],
)
def test_an_engine_refuses_by_what_it_finds_wrong(
    operation: PoolingOperation, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        operation.allowed(fields)
    assert caught.value.param == param


def test_an_engine_sees_only_served_fields() -> None:
    fields = {"input": "x", "dimensions": None, "user": "u", "cache_salt": "s", "task": "classify"}
    assert EMBEDDINGS.allowed(fields) == {"input": "x"}


def test_vectors_are_numbers_or_their_bytes() -> None:
    plain = json.loads(EMBEDDINGS.entry(3, VECTOR, {}))
    assert plain == {"object": "embedding", "index": 3, "embedding": [0.5, -0.25]}
    packed = json.loads(EMBEDDINGS.entry(0, VECTOR, {"encoding_format": "base64"}))["embedding"]
    assert struct.unpack("<2f", base64.b64decode(packed)) == (0.5, -0.25)
    whole = json.loads(EMBEDDINGS.whole([b"{}", b"{}"], METADATA))
    assert whole == {
        "object": "list",
        "data": [{}, {}],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_an_answer_that_no_frame_holds_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="base64"):
        EMBEDDINGS.whole([b" " * (MAX_ANSWER_BYTES + 1)], METADATA)
    fields = {"query": "x", "documents": [" " * MAX_ANSWER_BYTES]}
    with pytest.raises(InvalidRequest, match="top_n"):
        RERANK.answer(fields, [0.5], METADATA)


def test_documents_come_best_first() -> None:
    documents = ["nothing of it", "the red fox", "the red bird"]
    body = answer(RERANK, query="the red fox", documents=documents)
    assert [one["index"] for one in body["results"]][:2] == [1, 2]
    best = body["results"][0]
    assert best["document"] == {"text": "the red fox"}
    assert best["relevance_score"] == pytest.approx(1.0)
    assert body["id"] == "x-1" and body["usage"]["total_tokens"] == 7
    (only,) = answer(RERANK, query="the red fox", documents=documents, top_n=1)["results"]
    assert only == best
    assert len(answer(RERANK, query="x", documents=documents, top_n=0)["results"]) == 3
    assert answer(RERANK, query="x", documents="x")["results"][0]["index"] == 0


@pytest.mark.parametrize("names", PAIRS)
def test_texts_are_scored_one_with_each_or_in_pairs(names: tuple[str, str]) -> None:
    one, other = names
    body = answer(SCORE, **{one: "a b", other: ["a b", "c d"]})
    assert [pair["index"] for pair in body["data"]] == [0, 1]
    assert body["data"][0]["score"] == pytest.approx(1.0)
    assert body["data"][1]["score"] < 0.9
    pairs = answer(SCORE, **{one: ["a b", "c d"], other: ["a b", "c d"]})["data"]
    assert [pair["score"] for pair in pairs] == pytest.approx([1.0, 1.0])
    assert body["object"] == "list" and body["created"] == METADATA.created


def test_vectors_of_a_voice_are_alike_where_texts_are() -> None:
    def likeness(one: str, other: str) -> float:
        a, b = vector_of(one, "m", None), vector_of(other, "m", None)
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert likeness("a red fox", "a red bird") > likeness("a red fox", "two green trees")
    assert vector_of("x", "m", None) == vector_of("x", "m", None) != vector_of("x", "n", None)
    assert len(vector_of([1, 2], "m", 8)) == 8
    with pytest.raises(InvalidRequest) as caught:
        vector_of("x", "m", DIMENSIONS + 1)
    assert caught.value.param == "dimensions"


def test_operations_of_one_sort_of_model_are_alike() -> None:
    assert OPERATIONS.alike("score") == {"embeddings", "score", "rerank"}
    assert OPERATIONS.alike("chat") >= {"chat", "completion", "messages"}
    assert not any(OPERATIONS.named(name).pools for name in OPERATIONS.alike("chat"))
    assert OPERATIONS.alike("tokenize") == OPERATIONS.alike("poem") == frozenset()


@EACH
@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("add_special_tokens", False, True),
        ("embed_dtype", "float16", "float32"),
        ("endianness", "big", "native"),
        ("padding", "max_length", "do_not_pad"),
        ("truncation_side", "left", "right"),
        ("use_activation", False, None),
    ],
)
def test_a_field_of_vllm_that_changes_the_answer_is_refused(
    operation: PoolingOperation, name: str, other: Any, same: Any
) -> None:
    body = EXAMPLES[operation.name].body()
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported") as refused:
        operation.allowed(body | {name: other})
    assert refused.value.param == name
    assert operation.allowed(body | {name: same}) == operation.allowed(body)
