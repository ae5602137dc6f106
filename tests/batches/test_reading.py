"""Validation of a batch's file: errors are reported by line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.operations.chat import CHAT
from inference.operations.operation import Operation
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.registry import OPERATIONS
from inference.operations.responses.responses import RESPONSES
from tenants.batches import reading
from tenants.batches.reading import BatchReport, lines, read
from tests.inference.operations.examples import EXAMPLES, responses

pytestmark = pytest.mark.pure

BODY = {"model": "base", "messages": [{"role": "user", "content": "hi"}]}


def line(id: str = "a", **changed: Any) -> bytes:
    whole = {"custom_id": id, "method": "POST", "url": CHAT.path, "body": BODY} | changed
    return json.dumps(whole).encode() + b"\n"


def found(content: bytes, max_body_bytes: int = 1000) -> BatchReport:
    return read(io.BytesIO(content), CHAT, max_body_bytes)


def told(content: bytes, max_body_bytes: int = 1000) -> list[tuple[int | None, str]]:
    return [(one["line"], one["code"]) for one in found(content, max_body_bytes).errors]


def test_a_sound_file() -> None:
    other = line("c", body=BODY | {"model": "support"}).strip()  # the last line has no line end
    report = found(line("a") + b"\n  \n" + line("b") + other)
    assert (report.requests, report.errors) == (3, [])
    assert report.models == {"base": 1, "support": 5}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b"{\n", "invalid_json_line"),
        (b"[1]\n", "invalid_json_line"),
        (b'{"custom_id": "\xff"}\n', "invalid_json_line"),
        (line("b", custom_id=1), "invalid_json_line"),
        (
            line(
                "",
            ),
            "invalid_custom_id",
        ),
        (line("b" * 513), "invalid_custom_id"),
        (line("a"), "duplicate_custom_id"),
        (line("b", method="GET"), "invalid_method"),
        (line("b", url="/v1/embeddings"), "mismatched_url"),
        (line("b", body={"model": "base"}), "invalid_request"),
        (line("b", body=BODY | {"stream": True}), "invalid_request"),
        (line("b", body=BODY | {"user": "x" * 1000}), "invalid_request"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_line(wrong: bytes, code: str) -> None:
    assert told(line("a") + wrong + line("z")) == [(2, code)]


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if one.in_batches], ids=lambda one: one.name
)
def test_bodies_are_read_as_their_operation_reads_them(operation: Operation) -> None:
    def of(id: str, **changed: Any) -> bytes:
        return line(id, url=operation.path, body=EXAMPLES[operation.name].body("base") | changed)

    content = of("a") + of("b", model="") + of("c", model="other") + line("d", url="/v1/other")
    report = read(io.BytesIO(content), operation, 1000)
    assert report.models == {"base": 1, "other": 3}
    told = [(one["line"], one["code"], one["param"]) for one in report.errors]
    assert told == [(2, "invalid_request", "body.model"), (4, "mismatched_url", "url")]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"stream": True}, "body.stream"),
        ({"previous_response_id": "resp_1"}, "body.previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1_0"}]}, "body.input"),
    ],
    ids=["stream", "previous", "reference"],
)
def test_a_line_must_be_self_contained(changed: dict[str, Any], param: str) -> None:
    content = line("a", url=RESPONSES.path, body=responses(model="base") | changed)
    (error,) = read(io.BytesIO(content), RESPONSES, 1000).errors
    assert (error["code"], error["param"]) == ("invalid_request", param)


def test_what_batches_may_have() -> None:
    names = {one.name for one in OPERATIONS if one.in_batches}
    assert names == {"chat", "completion", "responses", "embeddings", "messages"}


def test_the_number_of_embedded_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(id: str, *texts: str) -> bytes:
        return line(id, url=EMBEDDINGS.path, body={"model": "base", "input": texts})

    monkeypatch.setattr(reading, "MAX_TEXTS", 4)
    content = of("a", "x", "y") + of("b", "x", "y")
    assert not read(io.BytesIO(content), EMBEDDINGS, 1000).errors
    more = content + of("c", "x") + of("d", "x")
    (error,) = read(io.BytesIO(more), EMBEDDINGS, 1000).errors
    assert (error["line"], error["code"]) == (3, "too_many_inputs")


def test_a_field_of_a_body_is_named() -> None:
    (error,) = found(line(body=BODY | {"messages": []})).errors
    assert error["param"] == "body.messages"


def test_what_is_wrong_with_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINES", 2)
    monkeypatch.setattr(reading, "MAX_MODELS", 1)
    assert told(b"\n \n") == [(None, "empty_file")]
    assert told(line("a") + line("b") + line("c")) == [(None, "too_many_lines")]
    assert told(line("a") + line("b", body=BODY | {"model": "x"})) == [(2, "too_many_models")]
    assert told(b" " * 20_000 + line("a")) == [(1, "line_too_long")]


def test_the_number_of_reported_errors_is_bounded() -> None:
    assert len(told(b"{\n" * 1000)) == reading.MAX_ERRORS


@given(st.lists(st.binary(max_size=40)))
def test_lines_are_at_the_reported_offsets(parts: list[bytes]) -> None:
    content = b"\n".join(parts)
    whole = content.split(b"\n")
    for one in lines(io.BytesIO(content), len(content)):
        assert content[one.offset : one.offset + len(one.text)] == one.text
        assert one.text.removesuffix(b"\n") == whole[one.number - 1]


def test_reading_stops_within_a_line_that_is_too_long() -> None:
    cut = list(lines(io.BytesIO(b"a\n" + b"x" * 50 + b"\nb\n"), 10))
    assert [(one.number, one.offset, one.text) for one in cut] == [
        (1, 0, b"a\n"),
        (2, 2, b"x" * 11),
    ]
