"""Errors that no view answers have the shape of the API that was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client, RequestFactory

from gateway.failures import server_error
from tests.tenants.making import make_key, make_tenant

OPENAI, PROBLEM, PAGE = "/v1/usage/receipts/key", "/api/v1/keys", "/account/login/"


def message_of(answer: Any, path: str) -> str:
    """What the answer says, in the shape that is due at this address."""
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


def test_a_page_has_djangos() -> None:
    misdirected = Client().get(PAGE, headers={"host": "elsewhere.example"})
    crashed = server_error(RequestFactory().get(PAGE))
    for answer in (misdirected, crashed):
        assert answer["content-type"].startswith("text/html")


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/v1/organization/usage/completions", "/api/v1/usage"])
def test_more_parameters_than_django_reads(path: str) -> None:
    key = {"Authorization": f"Bearer {make_key(make_tenant(), 'admin')[1]}"}
    answer = Client().get(path + "?" + "models=a&" * 1001, headers=key)
    kind = PROBLEM if path.startswith("/api/") else OPENAI
    assert answer.status_code == 400 and "more than 1000" in message_of(answer, kind)
