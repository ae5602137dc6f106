"""How the management API answers wrong addresses, methods, parameters and bodies."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from django.test import Client

from inference.errors import MAX_MESSAGE
from tenants.models import AdapterVersion, LimitSet, Scope, Tenant
from tenants.problem_details import MAX_ERRORS
from tests.document.document import document
from tests.tenants.callers import Api, person, with_key
from tests.tenants.making import make_adapter, make_key, make_user

pytestmark = pytest.mark.django_db

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


@pytest.fixture
def owner(tenant: Tenant) -> Api:
    return person(tenant, "owner")[0]


@pytest.fixture
def strict() -> Client:
    """A browser's client without a CSRF token."""
    return Client(enforce_csrf_checks=True)


def refused(answer: Any, status: int = 400) -> dict[str, str]:
    """Assert that the answer is a problem of this status. Returns the errors by field."""
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    return {error["field"]: error["message"] for error in answer.json().get("errors", [])}


# --- Addresses and methods -----------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v2/keys", "/api/v1", "/api/v1/nothing"])
def test_an_address_that_there_is_not_is_a_problem(strict: Client, method: str, path: str) -> None:
    answer = strict.generic(method, path)
    assert refused(answer, 404) == {} and answer.json()["code"] == "not_found"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/nothing"])
def test_an_address_that_openai_has_not(strict: Client, method: str, path: str) -> None:
    answer = strict.generic(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["keys", "schema/", "docs/", "limits/default", "engines"])
def test_a_method_that_is_not_taken_says_which_are(path: str) -> None:
    answer = Api(make_user(is_staff=True))("TRACE", path)
    refused(answer, 405)
    allowed = answer["Allow"].split(", ")
    assert "GET" in allowed and "OPTIONS" not in allowed and "TRACE" not in allowed


@pytest.mark.parametrize("path", ["engine-credentials", "limits/default", "quarantine"])
def test_a_method_that_is_not_taken_is_not_taken_from_anybody(tenant: Tenant, path: str) -> None:
    for caller in (Api(), with_key(tenant)[0]):
        answer = caller("TRACE", path)
        assert (answer.status_code, "GET" in answer["Allow"]) == (405, True)


def test_allow_names_exactly_the_supported_methods(tenant: Tenant) -> None:
    """No address names a method in Allow that it answers with 405, nor leaves one out."""
    operator = Api(make_user(is_staff=True))
    for path, item in document()["paths"].items():
        if path.startswith("/api/v1/") and "{" not in path:
            path = path.removeprefix("/api/v1/")
            allowed = {*operator("TRACE", path)["Allow"].split(", ")}
            assert allowed - {"HEAD"} == {method.upper() for method in item} - {"HEAD"}, path
            for method in allowed:
                assert operator(method, path).status_code != 405, (method, path)


@pytest.mark.parametrize("path", ["/v1/usage/receipts", "/v1/usage/receipts/key"])
def test_a_report_takes_no_other_method(path: str) -> None:
    answer = Client().post(path)
    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")


def test_a_report_says_how_to_show_a_key() -> None:
    answer = Client().get("/v1/usage/receipts")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("path", ["/api/v1/keys", "/v1/files", "/v1/batches"])
def test_a_key_comes_in_one_of_three_headers(tenant: Tenant, path: str) -> None:
    key, other = (make_key(tenant, *Scope.values)[1] for _ in range(2))
    client, bearer = Client(), f"Bearer {key}"
    for headers in (
        {"api-key": key},
        {"X-API-Key": key},
        {"Authorization": bearer, "api-key": ""},
        {"Authorization": bearer, "x-api-key": key},
        {"Authorization": "Basic dXNlcjp3b3Jk", "x-api-key": key},
    ):
        assert client.get(path, headers=headers).status_code == 200, headers
    for headers in (
        {"api-key": "lk_wrong"},
        {"api-key": "é" * 40},
        {"Authorization": bearer, "x-api-key": other},
        {"api-key": key, "x-api-key": other},
    ):
        assert client.get(path, headers=headers).status_code == 401, headers
    assert b"different API keys" in client.get(path, headers=headers).content


# --- Parameters ----------------------------------------------------------------------------------


def lists() -> list[str]:
    """The paths of all lists."""
    return [
        path.removeprefix("/api/v1/").replace("{name}", "support").replace("{slug}", "acme")
        for path, item in document()["paths"].items()
        if path.startswith("/api/v1/") and not path.endswith("}") and "get" in item
    ]


@pytest.mark.parametrize("path", lists())
@pytest.mark.parametrize("name", ["nmae", "Page", "offset", "x" * 5000])
def test_a_parameter_that_there_is_not_is_refused(tenant: Tenant, path: str, name: str) -> None:
    make_adapter(tenant)
    path = path.replace("{id}", str(with_key(tenant)[1].pk))
    answer = Api(make_user(is_staff=True), tenant.slug)("GET", path, **{name: "1"})
    (told,) = refused(answer).values()
    assert told.startswith("Unknown parameter. ") and len(answer.content) < 2000


@pytest.mark.parametrize(
    ("path", "query"),
    [
        *(("keys", {name: value}) for name in ("page", "limit")
          for value in ("0", "-1", "abc", "1.5", "", "last", "\u0661", " 1", "1_0", "9" * 5000)),
        ("keys", {"scope": "root"}),
        ("keys", {"scope": ""}),
        ("keys", {"lane": "fast"}),
        ("keys", {"revoked": "perhaps"}),
        ("keys", {"revoked": "1"}),
        ("keys", {"name": ["a", "b"]}),
        ("adapters", {"pinned": "yes"}),
        ("members", {"role": "king"}),
        ("tenants", {"status": "Active"}),
        ("usage", {"key": "NaN"}),
        ("usage", {"key": "1e400"}),
        ("usage", {"start": "2026-05-01T12:00:00Z' OR 1=1"}),
        ("prices", {"adapter": "a\0b"}),
    ],
)  # fmt: skip
def test_a_parameter_of_another_type_is_refused(
    owner: Api, path: str, query: dict[str, Any]
) -> None:
    answer = owner("GET", path, **query)
    assert refused(answer).keys() == query.keys() and len(answer.content) < 2000


def test_valid_query_parameters_are_accepted(owner: Api) -> None:
    for query in ({"revoked": "true"}, {"revoked": "False"}, {"page": "1", "limit": "007"}):
        assert owner("GET", "keys", **query).status_code == 200


# --- Bodies --------------------------------------------------------------------------------------


FORMS = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"]


@pytest.mark.parametrize("content_type", FORMS)
def test_form_bodies_are_refused(owner: Api, content_type: str) -> None:
    """Rather than ignored, with a 200 for a change that was not made."""
    for method, path in (("PATCH", "limits"), ("PUT", "limits"), ("POST", "keys")):
        answer = owner.client.generic(
            method, f"/api/v1/{path}", "own.requests_per_minute=1", content_type=content_type
        )
        refused(answer, 415)
    assert not LimitSet.objects.exists()


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_body_that_is_missing_is_told(owner: Api, method: str) -> None:
    answer = owner.client.generic(method, "/api/v1/limits", content_type="application/json")
    refused(answer)
    assert "missing" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "keys", {"name": 1}),
        ("POST", "engine-credentials", {"name": True}),
        ("POST", "engine-credentials", {"name": "gpu", "pools": [7]}),
        ("PATCH", "adapters/support", {"pinned": 0}),
        ("PATCH", "adapters/support", {"pinned": "true"}),
        ("PUT", "adapters/support/aliases/live", {"version": "1"}),
    ],
)
def test_a_value_of_another_type_is_not_taken_for_what_it_could_mean(
    live: AdapterVersion, method: str, path: str, body: dict[str, Any]
) -> None:
    operator = Api(make_user(is_staff=True), live.adapter.tenant.slug)
    assert refused(operator(method, path, body)).keys() == {list(body)[-1]}


@pytest.mark.parametrize("encoding", ["gzip", "br", "x" * 3000])
def test_a_packed_body_is_not_read(owner: Api, encoding: str) -> None:
    body = gzip.compress(json.dumps({"own": {"requests_per_minute": 1}}).encode())
    answer = owner.client.generic(
        "PATCH",
        "/api/v1/limits",
        body,
        content_type="application/json",
        headers={"Content-Encoding": encoding},
    )
    refused(answer, 415)
    assert "Content-Encoding" in answer.json()["detail"] and len(answer.content) < 2000


HUGE = "x" * 300_000
NUMBER = "9" * 10_000


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"name": HUGE, "scopes": ["inference"]}),
        json.dumps({"name": "k", "scopes": [HUGE]}),
        json.dumps({"name": "k", "scopes": HUGE}),
        json.dumps({"name": "k", "scopes": ["inference"], HUGE: 1}),
        json.dumps({"name": "k", "scopes": ["inference"], "models": [HUGE] * 3}),
        json.dumps({"name": "k", "scopes": [str(n) for n in range(50_000)]}),
        json.dumps({str(n): n for n in range(50_000)}),
        json.dumps({"name": {"a": HUGE}, "scopes": "x"}),
        json.dumps(HUGE),
        f'{{"name": {NUMBER}, "scopes": ["inference"], "expires_at": {NUMBER}}}',
        f'{{"name": "k", "scopes": [{NUMBER}]}}',
        '{"name": "k", "scopes": [1e999]}',
        '{"name": "k", "scopes": [NaN]}',
        '{"name": "k\\u0000", "scopes": ["inference"]}',
        '{"name": "\\ud800", "scopes": ["inference"]}',
        '{"name": "k", "scopes": ["\\udc00"]}',
        "[" * 50_000,
        '{"a":' * 50_000,
    ],
    ids=range(18),
)
def test_whatever_is_sent_the_answer_is_short(owner: Api, body: str) -> None:
    answer = owner.client.post("/api/v1/keys", body, content_type="application/json")
    refused(answer)
    assert len(answer.content) < MAX_ERRORS * 2 * (MAX_MESSAGE + 100)
    assert len(answer.json()["detail"]) <= MAX_MESSAGE


def test_a_shortened_message_shows_the_beginning_and_the_end_of_the_value(owner: Api) -> None:
    answer = owner("POST", "keys", {"name": "k", "scopes": ["a" * 1000]})
    (told,) = refused(answer).values()
    assert told.startswith('"aaa') and told.endswith('aaa" is not a valid choice.')
    assert len(told) <= MAX_MESSAGE
