"""Tags and scores of requests in the management API."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from tenants.models import RequestScore, RequestTag, Tenant
from tenants.models.annotations import ScoreValue
from tests.tenants.callers import Api
from tests.tenants.making import make_key, make_member, make_tenant
from tests.tenants.spending import spend

pytestmark = pytest.mark.django_db


def test_an_evaluator_scores_and_lists_by_scores(tenant: Tenant) -> None:
    key, text = make_key(tenant, "admin")
    event, ask = spend(key, timezone.now()), Api(text)
    spend(key, timezone.now())
    made = ask("POST", f"requests/req_{event.id}/scores", {"name": "judge", "value": 0.75}).json()
    assert (made["value"], made["source"], made["created_by"]) == (0.75, "evaluator", None)
    assert ask("POST", f"requests/{event.id}/tags", {"name": "good"}).status_code == 201
    assert ask("POST", f"requests/{event.id}/tags", {"name": "good"}).status_code == 201
    for query in ("tags=good", "score=judge", "score=judge&score_min=0.5&score_max=1"):
        (found,) = ask("GET", f"requests?{query}").json()["results"]
        assert (found["id"], found["tags"], found["scores"]) == (event.id, ["good"], [made])
    assert ask("GET", "requests?score=judge&score_min=0.8").json()["results"] == []
    assert ask("DELETE", f"requests/{event.id}/tags/good").status_code == 204
    assert ask("DELETE", f"requests/{event.id}/scores/{made['id']}").status_code == 204
    one = ask("GET", f"requests/{event.id}").json()
    assert (one["tags"], one["scores"]) == ([], [])


def test_a_scoring_key_scores_what_it_cannot_read(tenant: Tenant) -> None:
    """It removes only what keys said."""
    member = make_member(tenant, "developer")
    event = spend(make_key(tenant, created_by=member)[0], timezone.now())
    ask = Api(make_key(tenant, "scores:write")[1])
    made = ask("POST", f"requests/{event.id}/scores", {"name": "judge", "value": "good"})
    tag = ask("POST", f"requests/{event.id}/tags", {"name": "checked"})
    assert (made.status_code, tag.status_code) == (201, 201)
    for path in (f"requests/{event.id}", "requests", "usage", "keys"):
        assert ask("GET", path).status_code == 403
    of_person = (tenant, event.id, event.started_at, member)
    score = RequestScore.objects.put(*of_person, name="judge", value=ScoreValue.of(1))
    RequestTag.objects.put(*of_person, "mine")
    for path, status in (
        (f"scores/{score.pk}", 404),
        (f"scores/{made.json()['id']}", 204),
        ("tags/mine", 404),
        ("tags/checked", 204),
    ):
        assert ask("DELETE", f"requests/{event.id}/{path}").status_code == status
    other = spend(make_key(make_tenant("other"))[0], timezone.now())
    assert ask("POST", f"requests/{other.id}/tags", {"name": "checked"}).status_code == 404


@pytest.mark.parametrize(
    ("value", "given"), [("good", "good"), (True, "true"), (1, "1.0"), ("1", "1")]
)
def test_requests_are_found_by_the_value_of_a_score(tenant: Tenant, value: Any, given: str) -> None:
    key, text = make_key(tenant, "admin")
    ask = Api(text)
    for one in (value, "bad", False, 0):
        where = f"requests/{spend(key, timezone.now()).id}/scores"
        ask("POST", where, {"name": "judge", "value": one})
    found = ask("GET", f"requests?score=judge&score_value={given}").json()["results"]
    assert [score["value"] for one in found for score in one["scores"]] == [value]


@pytest.mark.parametrize("value", [True, "good", 3])
def test_values_stay_what_they_are(tenant: Tenant, value: Any) -> None:
    key, text = make_key(tenant, "admin")
    where = f"requests/{spend(key, timezone.now()).id}/scores"
    given = {"name": "judge", "value": value, "comment": "why"}
    made = Api(text)("POST", where, given).json()
    assert made["value"] == value and type(made["value"]) in (type(value), float)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "A", "value": 1}, "name"),
        ({"name": "a"}, "value"),
        ({"name": "a", "value": None}, "value"),
        ({"name": "a", "value": [1]}, "value"),
        ({"name": "a", "value": "A b"}, "value"),
        ({"name": "a", "value": 2e9}, "value"),
        ({"name": "a", "value": 1, "comment": "x" * 501}, "comment"),
        ({"name": "a", "value": 1, "source": "person"}, "source"),
    ],
)
def test_invalid_scores_are_refused_by_their_field(
    tenant: Tenant, body: dict[str, Any], field: str
) -> None:
    key, text = make_key(tenant, "admin")
    answer = Api(text)("POST", f"requests/{spend(key, timezone.now()).id}/scores", body)
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == [field]


@pytest.mark.parametrize(
    "query",
    [
        "tags=A", "tags=a,,b", "score_min=1", "score=a&score_min=x", "score=a&score_max=nan",
        "score_value=good", "score=a&score_value=A", "score=a&score_value=nan",
        "score=a&score_value=" + "x" * 41, "score=a&score_value=1&score_min=1",
    ],
)  # fmt: skip
def test_invalid_filters_are_refused(tenant: Tenant, query: str) -> None:
    ask = Api(make_key(tenant, "admin")[1])
    assert ask("GET", f"requests?{query}").status_code == 400
