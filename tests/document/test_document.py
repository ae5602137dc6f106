"""The OpenAPI document itself: it is complete and consistent with what is served."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import BY_CODE
from inference.operations.registry import OPERATIONS
from tenants.api.openai.document import BODIES
from tenants.api.permissions import TenantView
from tenants.api.strict_view import StrictView
from tests.document.document import Answer, Document, document

SWITCHES = {"chat_template_kwargs"}
"""Fields that are passed on only in part."""


@pytest.fixture(scope="module")
def described() -> Document:
    return Document()


@pytest.mark.parametrize("operation", [*OPERATIONS], ids=lambda operation: operation.name)
def test_a_request_is_described_with_all_fields_that_are_read(operation: Any) -> None:
    request: Any = BODIES[operation.name][0]
    read = {*operation.accepted, *operation.decoder.type.__struct_fields__}
    assert {*request.__struct_fields__} - SWITCHES == read


def test_each_error_code_is_described() -> None:
    responses = document()["components"]["responses"]
    for code, kind in BY_CODE.items():
        if f"OpenAI{kind.http_status}" in responses:
            assert f"`{code}`" in responses[f"OpenAI{kind.http_status}"]["description"]


def test_every_operation_has_a_name_of_its_own() -> None:
    items = document()["paths"].values()
    names = [operation["operationId"] for item in items for operation in item.values()]
    assert len(names) == len({*names}) > 60


def test_no_description_is_that_of_a_base_class() -> None:
    items = document()["paths"].values()
    told = {operation.get("description") for item in items for operation in item.values()}
    assert not told & {TenantView.__doc__, StrictView.__doc__}


def test_every_reference_leads_somewhere(described: Document) -> None:
    found = list(_references(described.whole))
    assert found and all(described.resolved({"$ref": reference}) for reference in found)


def _references(part: Any) -> Any:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _references(one)


KEY = b'{"id":1,"name":"k","prefix":"lk_a","scopes":["admin"],"models":null,"lane":"batch",' \
      b'"keeps_nothing":false,"expires_at":null,"last_used_at":null,"created_by":null,' \
      b'"created_at":"2026-05-01T12:00:00Z","revoked_at":null}'  # fmt: skip
JSON, PROBLEM = "application/json", "application/problem+json"
FAULT = b'{"type":"about:blank","title":"T","status":404,"detail":"d","code":"not_found"}'


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "body", "fault"),
    [
        ("GET", "keys/1", 200, JSON, KEY, ""),
        ("GET", "keys/1", 404, PROBLEM, FAULT, ""),
        ("DELETE", "keys/1", 204, "", b"", ""),
        ("GET", "keys/1", 200, JSON, KEY.replace(b'"batch"', b'"slow"'), "lane"),
        ("GET", "keys/1", 200, JSON, KEY.replace(b'"id":1,', b""), '"id" is a required'),
        ("GET", "keys/1", 200, JSON, KEY.replace(b"{", b'{"more":1,'), "more"),
        ("GET", "keys/1", 200, JSON, KEY.replace(b"2026-05-01T", b"today "), "created_at"),
        ("GET", "keys/1", 200, "text/html", KEY, "text/html"),
        ("GET", "keys/1", 404, PROBLEM, b"{}", "required"),
        ("GET", "keys/1", 418, PROBLEM, FAULT, "418"),
        ("GET", "keys/1", 200, JSON, b"", "no body"),
        ("BREW", "keys/1", 200, JSON, KEY, "not described"),
        ("BREW", "keys/1", 405, PROBLEM, FAULT, "Allow"),
        ("GET", "nothing", 404, PROBLEM, FAULT, ""),
    ],
)  # fmt: skip
def test_what_is_not_as_described_is_found(
    described: Document, method: str, path: str, status: int, kind: str, body: bytes, fault: str
) -> None:
    answer = Answer(method, f"/api/v1/{path}", status, {"content-type": kind}, body)
    found = " ".join(described.faults(answer))
    assert fault in found and bool(found) == bool(fault)


def test_a_header_that_is_not_described_is_found(described: Document) -> None:
    headers = {"content-type": JSON, "retry-after": "1"}
    faults = described.faults(Answer("GET", "/api/v1/keys/1", 200, headers, KEY))
    assert faults == ["the header retry-after is not described"]
