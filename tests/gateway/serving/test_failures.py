"""Errors outside of any view have the format of the API that was called."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path

from gateway.failures import server_error
from gateway.urls import urlpatterns as patterns
from tests.tenants.making import make_key, make_tenant

pytestmark = pytest.mark.usefixtures("plain_files")
OPENAI, PROBLEM, PAGE = "/v1/usage/receipts/key", "/api/v1/keys", "/account/login/"


def message_of(answer: Any, path: str) -> str:
    """The answer's error message; checks that its format is that of the API at `path`."""
    body = json.loads(answer.content)
    if path == PROBLEM:
        assert answer["content-type"] == "application/problem+json"
        assert body["status"] == answer.status_code
        return str(body["detail"])
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return str(body["error"]["message"])


@pytest.mark.parametrize("path", [OPENAI, PROBLEM])
def test_each_api_in_its_own_shape(path: str) -> None:
    misdirected = Client().get(path, headers={"host": "elsewhere.example"})
    assert (misdirected.status_code, message_of(misdirected, path)) == (
        400,
        "The request is malformed.",
    )
    crashed = server_error(RequestFactory().get(path))
    assert crashed.status_code == 500 and "had an error" in message_of(crashed, path)


@pytest.mark.django_db
def test_pages_are_ours() -> None:
    misdirected = Client().get(PAGE, headers={"host": "elsewhere.example"})
    with structlog.contextvars.bound_contextvars(request_id="42"):
        crashed = server_error(RequestFactory().get(PAGE))
    unsafe = Client(enforce_csrf_checks=True).post(PAGE, {"login": "ann"})
    for answer, status, title in (
        (misdirected, 400, "Bad request"),
        (crashed, 500, "Something went wrong"),
        (unsafe, 403, "Form expired"),
    ):
        assert answer.status_code == status
        assert answer["content-type"].startswith("text/html")
        assert f"<h1>{title}</h1>" in answer.text and "css/console.css" in answer.text
    assert "req_42" in crashed.content.decode()


def fail(request: HttpRequest) -> HttpResponse:
    raise ValueError("a secret of the server's")


urlpatterns = [path("account/fail", fail), *patterns]
handler500 = server_error


@pytest.mark.django_db
@pytest.mark.urls(__name__)
def test_a_failing_page_has_the_policy_its_id_and_no_secret() -> None:
    client = Client(raise_request_exception=False)
    answer = client.get("/account/fail")
    assert (answer.status_code, answer["Cache-Control"]) == (500, "no-store")
    assert answer["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer["x-request-id"] in answer.text and "secret" not in answer.text


@pytest.mark.django_db
def test_a_form_without_a_token_is_refused_in_the_apis_own_shape() -> None:
    answer = Client(enforce_csrf_checks=True).post("/api/v1/nothing")
    assert answer.status_code in (403, 404)
    assert answer["content-type"] == "application/problem+json"


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/v1/organization/usage/completions", "/api/v1/usage"])
def test_more_parameters_than_django_reads(path: str) -> None:
    key = {"Authorization": f"Bearer {make_key(make_tenant(), 'admin')[1]}"}
    answer = Client().get(path + "?" + "models=a&" * 1001, headers=key)
    kind = PROBLEM if path.startswith("/api/") else OPENAI
    assert answer.status_code == 400 and "more than 1000" in message_of(answer, kind)
