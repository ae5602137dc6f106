"""`POST /v1/feedback`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inference.ids import new_id
from tenants.models import RequestScore, Tenant
from tenants.models.annotations import MAX_COMMENT
from tests.tenants.making import make_key, make_tenant
from tests.tenants.refusing import refuse

pytestmark = pytest.mark.django_db


def asked(tenant: Tenant, key: str, **fields: Any) -> Any:
    """The answer to feedback on a request of the tenant."""
    refused = refuse(make_key(tenant)[0], timezone.now())
    return post(key, {"request_id": refused.pk, "score": True} | fields)


def post(key: str, body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    sent = json.dumps(body)
    return Client().post("/v1/feedback", sent, content_type="application/json", headers=headers)


@pytest.fixture
def key(tenant: Tenant) -> str:
    return make_key(tenant, "scores:write")[1]


@pytest.mark.parametrize("score", [True, 0.5, "good"])
def test_an_answer_is_scored(tenant: Tenant, key: str, score: Any) -> None:
    answer = asked(tenant, key, score=score, name="liked", comment="Good.")
    assert answer.status_code == 200, answer.content
    said = answer.json()
    assert (said["object"], said["name"], said["score"]) == ("feedback", "liked", score)
    made = RequestScore.objects.get()
    assert (made.tenant, made.name, made.value, made.comment) == (tenant, "liked", score, "Good.")
    assert made.source == "evaluator" and made.created_by is None


def test_a_second_score_replaces_the_first(tenant: Tenant, key: str) -> None:
    refused = refuse(make_key(tenant)[0], timezone.now())
    for score in (True, False):
        body = {"request_id": f"chatcmpl-{refused.pk}", "score": score}
        assert post(key, body).status_code == 200
    made = RequestScore.objects.get()
    assert (made.request_id, made.name, made.value) == (refused.pk, "feedback", False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"score": None}, "The body is not valid"),
        ({"score": 1e10}, "A number must be from"),
        ({"score": "Very good"}, "lowercase letters"),
        ({"name": ""}, "lowercase letters"),
        ({"comment": "x" * (MAX_COMMENT + 1)}, f"at most {MAX_COMMENT}"),
        ({"comment": 5}, "The body is not valid"),
    ],
)
def test_wrong_feedback(tenant: Tenant, key: str, fields: dict[str, Any], said: str) -> None:
    answer = asked(tenant, key, **fields)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]
    assert not RequestScore.objects.exists()


def test_another_tenants_request_is_not_there(key: str) -> None:
    answer = asked(make_tenant("globex"), key)
    assert answer.status_code == 404 and not RequestScore.objects.exists()


def test_a_request_that_has_just_ended_may_be_scored_later(key: str) -> None:
    answer = post(key, {"request_id": f"chatcmpl-{new_id()}", "score": True})
    assert answer.status_code == 404 and "Retry" in answer.json()["error"]["message"]


@pytest.mark.parametrize("scope", ["inference", "adapters:write", "usage:read"])
def test_it_takes_the_scope(tenant: Tenant, scope: str) -> None:
    assert asked(tenant, make_key(tenant, scope)[1]).status_code == 403
