"""OpenAI's organization usage and costs: their shape, paging and limitation to the key's tenant."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import openai
import pytest
from django.test import Client
from django.utils import timezone

from inference.errors import Unavailable
from tenants.api.openai import views
from tenants.models import ApiKey, Tenant, UsageRollup
from tests.tenants.callers import everybody
from tests.tenants.making import make_key, make_tenant
from tests.tenants.spending import NOON, spend

pytestmark = pytest.mark.django_db

DAY, HOUR = 86_400, 3_600
MIDNIGHT = int(datetime(2026, 5, 1, tzinfo=UTC).timestamp())
USAGE, COSTS = "usage/completions", "costs"


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return make_key(tenant)[0]


@pytest.fixture
def secret(tenant: Tenant) -> str:
    return make_key(tenant, "admin")[1]


@pytest.fixture
def used(key: ApiKey) -> ApiKey:
    """Two requests on 1 May, two hours apart, and one on 3 May; and one of another tenant."""
    spend(key, model="support", adapter="support")
    spend(key, NOON + timedelta(hours=2))
    spend(key, NOON + timedelta(days=2))
    spend(make_key(make_tenant())[0])
    return key


def ask(secret: str, path: str, **query: Any) -> Any:
    headers = {"Authorization": f"Bearer {secret}"}
    return Client().get(f"/v1/organization/{path}", query_params=query, headers=headers)


def page(secret: str, path: str = USAGE, **query: Any) -> dict[str, Any]:
    answer = ask(secret, path, **({"start_time": MIDNIGHT} | query))
    assert answer.status_code == 200, answer.content
    body: dict[str, Any] = answer.json()
    return body


def counts(body: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Start and end of each bucket in days since the first of May, and its requests."""
    return [
        (
            (bucket["start_time"] - MIDNIGHT) / DAY,
            (bucket["end_time"] - MIDNIGHT) / DAY,
            sum(result["num_model_requests"] for result in bucket["results"]),
        )
        for bucket in body["data"]
    ]


def refusal(answer: Any, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


# --- Shape ---------------------------------------------------------------------------------------


def test_usage_has_openais_shape(used: ApiKey, secret: str) -> None:
    assert page(secret, end_time=MIDNIGHT + DAY) == {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": MIDNIGHT,
                "end_time": MIDNIGHT + DAY,
                "results": [
                    {
                        "object": "organization.usage.completions.result",
                        "input_tokens": 200,
                        "input_cached_tokens": 80,
                        "input_uncached_tokens": 120,
                        "input_audio_tokens": 0,
                        "output_tokens": 14,
                        "output_audio_tokens": 0,
                        "num_model_requests": 2,
                        "project_id": None,
                        "user_id": None,
                        "api_key_id": None,
                        "model": None,
                        "batch": None,
                        "service_tier": None,
                    }
                ],
            }
        ],
        "has_more": False,
        "next_page": None,
    }


def test_costs_have_openais_shape(used: ApiKey, secret: str) -> None:
    body = page(secret, COSTS, end_time=MIDNIGHT + 3 * DAY)
    assert [bucket["results"] for bucket in body["data"]] == [
        [
            {
                "object": "organization.costs.result",
                "amount": {"value": value, "currency": "usd"},
                "line_item": None,
                "project_id": None,
                "api_key_id": None,
            }
            for value in values
        ]
        for values in ([0.0000324], [], [0.0000162])
    ]


def test_an_amount_has_all_of_its_digits(used: ApiKey, secret: str) -> None:
    """It is a number, as in OpenAI's response, but is never converted to a float."""
    UsageRollup.objects.update(cost=12345678901234567890123456789)
    text = ask(secret, COSTS, start_time=MIDNIGHT + 2 * DAY, limit=1).content
    body = json.loads(text, parse_float=Decimal)
    value = body["data"][0]["results"][0]["amount"]["value"]
    assert value == Decimal("12345678901234567.890123456789")


# --- Buckets and pages ---------------------------------------------------------------------------


def test_empty_buckets_are_there(used: ApiKey, secret: str) -> None:
    body = page(secret, end_time=MIDNIGHT + 4 * DAY)
    assert counts(body) == [(0, 1, 2), (1, 2, 0), (2, 3, 1), (3, 4, 0)]
    assert body["data"][1]["results"] == []


def test_hours(used: ApiKey, secret: str) -> None:
    body = page(secret, bucket_width="1h", start_time=MIDNIGHT + 12 * HOUR, limit=3)
    assert [bucket["start_time"] for bucket in body["data"]] == [
        MIDNIGHT + hours * HOUR for hours in (12, 13, 14)
    ]
    assert [requests for _, _, requests in counts(body)] == [1, 0, 1]


def test_a_period_is_widened_to_whole_hours(used: ApiKey, secret: str) -> None:
    """Because the sums are hourly. The first and last bucket state their bounds; those in between
    are whole days."""
    start, end = MIDNIGHT + 12 * HOUR + 1799, MIDNIGHT + 2 * DAY + 12 * HOUR + 1
    body = page(secret, start_time=start, end_time=end)
    assert counts(body) == [(0.5, 1, 2), (1, 2, 0), (2, 2 + 13 / 24, 1)]
    body = page(secret, bucket_width="1h", start_time=start, end_time=start + 1)
    assert counts(body) == [(0.5, 13 / 24, 1)]


def test_pages(used: ApiKey, secret: str) -> None:
    query: dict[str, Any] = {
        "start_time": MIDNIGHT + HOUR,
        "end_time": MIDNIGHT + 3 * DAY + HOUR,
        "limit": 2,
    }
    first = page(secret, **query)
    assert first["has_more"] and counts(first) == [(1 / 24, 1, 2), (1, 2, 0)]
    second = page(secret, **query, page=first["next_page"])
    assert counts(second) == [(2, 3, 1), (3, 3 + 1 / 24, 0)]
    assert (second["has_more"], second["next_page"]) == (False, None)


def test_the_default_end_is_now(key: ApiKey, secret: str) -> None:
    now = timezone.now()
    spend(key, now)
    body = page(secret, start_time=int(now.timestamp()) - DAY)
    assert [requests for _, _, requests in counts(body)][-1] == 1
    assert now.timestamp() < body["data"][-1]["end_time"] <= timezone.now().timestamp() + HOUR
    assert not body["has_more"]


@pytest.mark.parametrize(
    ("path", "width", "default", "most"),
    [(USAGE, "1h", 24, 168), (USAGE, "1d", 7, 31), (COSTS, "1d", 7, 180)],
)
def test_limits_of_a_page(secret: str, path: str, width: str, default: int, most: int) -> None:
    assert len(page(secret, path, bucket_width=width, start_time=10**9)["data"]) == default
    body = page(secret, path, bucket_width=width, start_time=10**9, limit=most)
    assert len(body["data"]) == most
    query: dict[str, Any] = {"start_time": MIDNIGHT, "bucket_width": width, "limit": most + 1}
    assert f"from 1 to {most}" in refusal(ask(secret, path, **query))["message"]


# --- Groups and filters --------------------------------------------------------------------------


@pytest.mark.parametrize("group_by", [["api_key_id", "model"], ["api_key_id,model"]])
@pytest.mark.parametrize("name", ["group_by", "group_by[]"])
def test_groups(used: ApiKey, secret: str, name: str, group_by: list[str]) -> None:
    query: dict[str, Any] = {name: group_by}
    body = page(secret, end_time=MIDNIGHT + DAY, **query)
    (bucket,) = body["data"]
    shown = [(line["api_key_id"], line["model"]) for line in bucket["results"]]
    assert shown == [(str(used.pk), "base"), (str(used.pk), "support")]


def test_groups_of_costs(used: ApiKey, secret: str) -> None:
    query: dict[str, Any] = {"end_time": MIDNIGHT + DAY, "group_by": ["line_item", "project_id"]}
    (bucket,) = page(secret, COSTS, **query)["data"]
    shown = [
        (line["line_item"], line["api_key_id"], line["amount"]["value"])
        for line in bucket["results"]
    ]
    assert shown == [("base", None, 0.0000162), ("support", None, 0.0000162)]


def test_groupings_without_data_give_one_group(used: ApiKey, secret: str) -> None:
    query: dict[str, Any] = {"end_time": MIDNIGHT + DAY, "group_by": ["project_id", "user_id"]}
    for path in (USAGE, COSTS):
        (bucket,) = page(secret, path, **query)["data"]
        assert len(bucket["results"]) == 1 and bucket["results"][0]["project_id"] is None


def test_filters(used: ApiKey, tenant: Tenant, secret: str) -> None:
    spend(make_key(tenant)[0])
    whole: dict[str, Any] = {"end_time": MIDNIGHT + DAY}
    assert counts(page(secret, **whole))[0][2] == 3
    assert counts(page(secret, **whole | {"api_key_ids[]": [used.pk]}))[0][2] == 2
    assert counts(page(secret, **whole, models=["support", "none"]))[0][2] == 1
    assert counts(page(secret, **whole, api_key_ids=10**17))[0][2] == 0
    (bucket,) = page(secret, COSTS, **whole, line_items="support")["data"]
    assert bucket["results"][0]["amount"]["value"] == 0.0000162


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "param", "message"),
    [
        ({"start_time": []}, "start_time", "`start_time` is required"),
        ({"start_time": "May"}, "start_time", "'May': it must be an integer from"),
        ({"start_time": 10**15}, "start_time", "must be an integer from 946684800 to 7258118400"),
        ({"end_time": MIDNIGHT}, "end_time", f"{MIDNIGHT}: it must be after `start_time`"),
        ({"bucket_width": "1m"}, "bucket_width", "'1m': it must be one of 1"),
        ({"bucket_width": ""}, "bucket_width", "'': it must be one of 1"),
        ({"limit": 0}, "limit", "`limit` is '0': it must be an integer from 1 to"),
        ({"group_by": "batch"}, "group_by", "it must be one of project_id, user_id, api_key"),
        ({"page": "2"}, "page", "not a `next_page`"),
        ({"page": f"page_{MIDNIGHT}"}, "page", "not a `next_page`"),
        ({"page": f"page_{MIDNIGHT + DAY + 1}"}, "page", "not a `next_page`"),
        ({"page": "page_9999999999"}, "page", "not a `next_page`"),
        ({"api_key_ids": "key_1"}, "api_key_ids", "`key_1` is not the id of an API key"),
        ({"batch": "true"}, "batch", "Unknown parameter: `batch`. Allowed are api_key_ids,"),
        ({"project_ids[]": "p"}, "project_ids[]", "Unknown parameter"),
    ],
)
@pytest.mark.parametrize("path", [USAGE, COSTS])
def test_invalid_queries_are_refused(
    secret: str, path: str, query: dict[str, Any], param: str, message: str
) -> None:
    error = refusal(ask(secret, path, **({"start_time": MIDNIGHT} | query)))
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert message in error["message"]


def test_buckets_have_one_width(secret: str) -> None:
    for widths in ("1h,1d", ["1h", "1d"]):
        error = refusal(ask(secret, USAGE, start_time=MIDNIGHT, bucket_width=widths))
        assert error["message"] == "`bucket_width` must have only one value."


def test_names_with_a_null_character_name_nothing(used: ApiKey, secret: str) -> None:
    assert refusal(ask(secret, USAGE, start_time=MIDNIGHT, models="a\0"))["param"] == "models"


def test_usage_and_costs_by_role(tenant: Tenant, used: ApiKey) -> None:
    answers = {}
    for name, api in everybody(tenant).items():
        for path in (USAGE, COSTS):
            response = api.client.get(
                f"/v1/organization/{path}",
                query_params={"start_time": MIDNIGHT, "tenant": []},
                headers=api.headers,
            )
            if response.status_code == 200:
                answers[name] = sum(len(bucket["results"]) for bucket in response.json()["data"])
            else:
                answers[name] = refusal(response, response.status_code)["code"]
    assert answers == {
        "admin key": 2,
        "usage key": 2,
        "foreign key": 0,
        "writing key": "insufficient_permissions",
        "inference key": "insufficient_permissions",
        "scoring key": "insufficient_permissions",
    } | dict.fromkeys(
        ["owner", "admin", "developer", "viewer", "operator", "outsider", "nobody"],
        "invalid_api_key",  # /v1/ ignores sessions
    )


def test_no_parameter_names_another_tenant(used: ApiKey) -> None:
    other, secret = make_key(make_tenant(), "admin")
    body = page(secret, api_key_ids=[used.pk, other.pk], models=["base", "support"])
    assert all(bucket["results"] == [] for bucket in body["data"])
    assert "tenant" in refusal(ask(secret, USAGE, start_time=MIDNIGHT, tenant="acme"))["message"]


def test_other_methods_and_addresses(secret: str) -> None:
    headers = {"Authorization": f"Bearer {secret}"}
    answer = Client(enforce_csrf_checks=True).post(f"/v1/organization/{COSTS}", headers=headers)
    assert refusal(answer, 405)["code"] == "method_not_allowed"
    assert refusal(ask(secret, "users"), 404)["code"] == "not_found"


# --- OpenAI's own client -------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_with_openais_client(live_server: Any, used: ApiKey, secret: str) -> None:
    with openai.OpenAI(
        api_key="", admin_api_key=secret, base_url=f"{live_server.url}/v1", max_retries=0
    ) as client:
        organization: Any = client.admin.organization
        found = organization.usage.completions(
            start_time=MIDNIGHT,
            end_time=MIDNIGHT + DAY,
            group_by=["model", "api_key_id"],
            api_key_ids=[str(used.pk)],
            models=["support"],
        )
        (bucket,) = found.data
        (result,) = bucket.results
        assert result.object.endswith("completions.result")
        assert (result.model, result.api_key_id) == ("support", str(used.pk))
        assert (result.input_tokens, result.input_cached_tokens) == (100, 40)
        assert (result.output_tokens, result.num_model_requests) == (7, 1)
        costs = organization.usage.costs(start_time=MIDNIGHT, limit=2, group_by=["line_item"])
        assert costs.has_more and costs.next_page
        assert [line.line_item for line in costs.data[0].results] == ["base", "support"]
        assert costs.data[0].results[0].amount.value == 0.0000162
        assert costs.data[0].results[0].amount.currency == "usd"
        rest = organization.usage.costs(start_time=MIDNIGHT, limit=2, page=costs.next_page)
        assert len(rest.data[0].results) == 1
        with pytest.raises(openai.BadRequestError, match="Usage is summed by the hour"):
            organization.usage.completions(start_time=MIDNIGHT, bucket_width="1m")
    with (
        openai.OpenAI(
            api_key="", admin_api_key="lk_wrong", base_url=f"{live_server.url}/v1", max_retries=0
        ) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.admin.organization.usage.costs(start_time=MIDNIGHT)


def test_less_than_a_second_is_told_as_one() -> None:
    assert views.refusal(Unavailable(retry_after_s=0.4))["Retry-After"] == "1"
