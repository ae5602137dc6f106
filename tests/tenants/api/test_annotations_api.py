"""Tags and scores of requests in the management API."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from tenants.models import Tenant
from tests.tenants.callers import Api
from tests.tenants.making import make_key
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
    "query", ["tags=A", "tags=a,,b", "score_min=1", "score=a&score_min=x", "score=a&score_max=nan"]
)
def test_invalid_filters_are_refused(tenant: Tenant, query: str) -> None:
    ask = Api(make_key(tenant, "admin")[1])
    assert ask("GET", f"requests?{query}").status_code == 400
