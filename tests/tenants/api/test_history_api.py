"""Outcomes of requests over the management API: figures, and the requests themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from inference.gateway.measuring.sums import BUCKETS
from inference.interfaces.directory import PICO
from inference.link.accounts import Usage
from tenants.models import ApiKey, SupersededAttempt, Tenant
from tests.tenants.callers import Api, person, with_key
from tests.tenants.making import make_adapter, make_key, make_tenant, make_version
from tests.tenants.refusing import met, refuse
from tests.tenants.spending import NOON, spend

MAY = {"start": "2026-05-01T00:00:00Z", "end": "2026-05-02T00:00:00Z"}


@pytest.fixture
def owner(tenant: Tenant) -> Api:
    return person(tenant, "owner")[0]


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return make_key(tenant)[0]


def lines(ask: Api, path: str = "metrics", **query: Any) -> list[dict[str, Any]]:
    answer = ask("GET", path, **(MAY | query))
    assert answer.status_code == 200, answer.content
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def errors(answer: Any) -> set[str]:
    assert answer.status_code == 400, answer.content
    return {error["field"] for error in answer.json()["errors"]}


# --- Figures -------------------------------------------------------------------------------------


def test_figures_come_by_the_hour(owner: Api, key: ApiKey) -> None:
    met(key, NOON, requests=4, bucket=2, cost=3 * PICO, decode_tokens=60, decode_s=2.0,
        conformed=2, malformed=1)  # fmt: skip
    met(key, NOON, "refused", 1, code="rate_limit_exceeded")
    met(key, NOON + timedelta(hours=2), requests=1)
    met(make_key(make_tenant())[0], NOON, requests=100)
    first, second = lines(owner)
    buckets = [0, 0, 4] + [0] * (BUCKETS - 3)
    assert first == {
        "start": "2026-05-01T12:00:00Z", "requests": 5, "completed": 4, "cancelled": 0,
        "refused": 1, "failed": 0, "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0,
        "conformed": 2, "malformed": 1, "unchecked": 0,
        "cost": "3.000000000000", "currency": "usd", "output_tokens_per_s": 30.0,
        "ttft_p50_s": 0.03, "ttft_p95_s": pytest.approx(0.039), "total_p50_s": 0.03,
        "total_p95_s": pytest.approx(0.039), "first_tokens": buckets, "totals": buckets,
    }  # fmt: skip
    assert (second["start"], second["requests"]) == ("2026-05-01T14:00:00Z", 1)
    assert second["ttft_p95_s"] is None and second["output_tokens_per_s"] is None
    assert [line["requests"] for line in lines(owner, bucket="all")] == [6]


def test_and_in_groups(owner: Api, tenant: Tenant, key: ApiKey) -> None:
    version = make_version(make_adapter(tenant))
    met(key, NOON, requests=2, adapter="support", version=version)
    met(key, NOON, "refused", 1, code="rate_limit_exceeded", base_model="",
        limit_kind="tokens_per_day", limit_scope="tenant")  # fmt: skip
    other = make_key(tenant)[0]
    met(other, NOON, "failed", 3, code="engine_lost")

    def by(groups: str, *names: str, **query: Any) -> list[tuple[Any, ...]]:
        found = lines(owner, bucket="all", by=groups, **query)
        return sorted(
            ((*(line[name] for name in names), line["requests"]) for line in found), key=str
        )

    assert by("key", "key", "key_name") == sorted(
        [(key.pk, key.name, 3), (other.pk, other.name, 3)], key=str
    )
    assert by("version", "adapter", "version") == [("support", 1, 2), (None, None, 4)]
    assert by("adapter,base_model", "adapter", "base_model") == [
        ("support", "base", 2), (None, "base", 3), (None, None, 1),
    ]  # fmt: skip
    assert by("outcome,code", "outcome", "code") == [
        ("completed", "stop", 2), ("failed", "engine_lost", 3),
        ("refused", "rate_limit_exceeded", 1),
    ]  # fmt: skip
    assert by("limit", "limit_kind", "limit_scope", outcome="refused") == [
        ("tokens_per_day", "tenant", 1)
    ]
    assert by("code", "code", key=other.pk) == [("engine_lost", 3)]
    assert by("code", "code", adapter="support") == [("stop", 2)]
    version.delete()
    assert by("version", "adapter", "version")[0] == ("support", None, 2)


def test_minutes_are_for_now(owner: Api, key: ApiKey) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    met(key, now - timedelta(minutes=1), requests=2)
    answer = owner("GET", "metrics", bucket="minute").json()["results"]
    assert [(line["start"], line["requests"]) for line in answer] == [
        (f"{now - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}", 2)
    ]
    days = owner("GET", "metrics", bucket="day").json()["results"]
    assert [line["requests"] for line in days] == [2]


def test_others_see_what_keys_of_their_own_met(tenant: Tenant, key: ApiKey) -> None:
    ask, user = person(tenant, "developer")
    met(make_key(tenant, created_by=user)[0], NOON, requests=2)
    met(key, NOON, requests=5)
    assert [line["requests"] for line in lines(ask)] == [2]
    reader, _ = with_key(tenant, "usage:read")
    viewer, _ = person(tenant, "viewer")
    for all_of_them in (reader, viewer):
        assert [line["requests"] for line in lines(all_of_them)] == [7]
        assert sorted(line["requests"] for line in lines(all_of_them, by="key")) == [2, 5]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"bucket": "week"}, "bucket"),
        ({"by": "member"}, "by"),
        ({"start": "2026-05-01T12:30:00Z"}, "start"),
        ({"bucket": "minute", "end": "2026-05-01T12:30:15Z"}, "end"),
        ({"start": "soon"}, "start"),
        ({"end": "2026-05-01T00:00:00Z"}, "end"),
        ({"end": "2026-07-01T00:00:00Z"}, "start"),
        ({"outcome": "odd"}, "outcome"),
        ({"key": "x"}, "key"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    owner: Api, query: dict[str, str], field: str
) -> None:
    assert errors(owner("GET", "metrics", **(MAY | query))) == {field}


# --- Requests ------------------------------------------------------------------------------------


def test_requests_come_with_their_errors(owner: Api, key: ApiKey) -> None:
    event = spend(key, NOON, trace_id="7" * 32, is_estimated=True, route="auto")
    refused = refuse(key, NOON + timedelta(minutes=1))
    refuse(make_key(make_tenant())[0], NOON)
    assert lines(owner, "requests") == [
        {
            "id": refused.id, "started_at": "2026-05-01T12:01:00Z", "outcome": "refused",
            "status": 429, "code": "rate_limit_exceeded", "message": refused.message,
            "limit_kind": "requests_per_minute", "limit_scope": "key", "key": key.pk,
            "model": "base", "adapter": None, "base_model": None, "engine": None,
            "overflow": None, "route": None,
            "prompt_tokens": None, "cached_tokens": None, "output_tokens": None,
            "is_estimated": None, "cost": "0.000000000000", "currency": "usd", "ttft_s": None,
            "total_s": 0.002, "trace_id": None, "tags": [], "scores": [],
        },
        {
            "id": event.id, "started_at": "2026-05-01T12:00:00Z", "outcome": "answered",
            "status": 200, "code": "stop", "message": None, "limit_kind": None,
            "limit_scope": None, "key": key.pk, "model": "base", "route": "auto",
            "adapter": None, "base_model": "base", "engine": "e1", "overflow": False,
            "prompt_tokens": 100, "cached_tokens": 40,
            "output_tokens": 7, "is_estimated": True, "cost": "0.000016200000",
            "currency": "usd", "ttft_s": 0.3, "total_s": 0.9, "trace_id": "7" * 32, "tags": [],
            "scores": [],
        },
    ]  # fmt: skip
    one = owner("GET", f"requests/req_{refused.id}").json()
    assert one == lines(owner, "requests")[0] | {"attempts": []}
    assert owner("GET", "requests/nothing").status_code == 404


def test_a_request_comes_with_its_attempts(owner: Api, key: ApiKey) -> None:
    """Attempts of another request, with the same id at another time, are not included."""
    event = spend(key, NOON, Usage(100, 40, 7, 0, 0.1, 0.2, 0.3, 0.9), attempt=2,
                  inherited_tokens=3, given_s=0.5)  # fmt: skip
    died = {"engine_id": "e0", "journal": "j0", "prompt_tokens": 100, "cached_tokens": 0,
            "completion_tokens": 5, "reasoning_tokens": 0, "inherited_tokens": 0,
            "finish_reason": "engine_lost", "given_s": 0.01}  # fmt: skip
    for at in (NOON, NOON + timedelta(hours=1)):
        SupersededAttempt.objects.create(request_id=event.id, started_at=at, attempt=1, **died)
    one = owner("GET", f"requests/{event.id}").json()
    assert one["attempts"] == [
        {
            "attempt": 1, "engine": "e0", "finish_reason": "engine_lost", "prompt_tokens": 100,
            "cached_tokens": 0, "output_tokens": 5, "inherited_tokens": 0, "given_s": 0.01,
            "queue_s": 0.0, "load_s": 0.0, "ttft_s": None, "total_s": 0.0,
        },
        {
            "attempt": 2, "engine": "e1", "finish_reason": "stop", "prompt_tokens": 100,
            "cached_tokens": 40, "output_tokens": 7, "inherited_tokens": 3, "given_s": 0.5,
            "queue_s": 0.1, "load_s": 0.2, "ttft_s": 0.3, "total_s": 0.9,
        },
    ]  # fmt: skip
    stranger, _ = person(make_tenant(), "owner")
    assert stranger("GET", f"requests/{event.id}").status_code == 404


def test_a_list_goes_on_where_the_page_ended(owner: Api, key: ApiKey) -> None:
    made: list[Any] = [
        spend(key, NOON + timedelta(seconds=n // 3)) if n % 2 else refuse(key, NOON)
        for n in range(9)
    ]
    made.sort(key=lambda one: one.mark, reverse=True)
    seen, address = [], "/api/v1/requests?limit=4&start=2026-05-01T00:00:00Z"
    for expected in (4, 4, 1):
        page = owner.client.get(address).json()
        assert len(page["results"]) == expected
        seen += [one["id"] for one in page["results"]]
        address = page["next"]
    assert seen == [one.id for one in made] and address is None


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({}, 3), ({"outcome": "refused"}, 1), ({"outcome": "wrong"}, 2), ({"outcome": "cut"}, 0),
        ({"model": "support"}, 1), ({"start": "2026-05-01T12:00:30Z"}, 1), ({"limit": "2"}, 2),
    ],
)  # fmt: skip
def test_filters(owner: Api, key: ApiKey, query: dict[str, str], count: int) -> None:
    spend(key, NOON, model="support", adapter="support")
    spend(key, NOON, finish_reason="engine_lost")
    refuse(key, NOON + timedelta(minutes=1))
    assert len(lines(owner, "requests", **query)) == count
    assert len(lines(owner, "requests", **query, key=key.pk)) == count
    assert lines(owner, "requests", **query, key=key.pk + 1) == []


def test_others_see_requests_of_keys_of_their_own(tenant: Tenant, key: ApiKey) -> None:
    ask, user = person(tenant, "viewer")
    own = refuse(make_key(tenant, created_by=user)[0], NOON)
    others = refuse(key, NOON)
    assert [one["id"] for one in lines(ask, "requests")] == [own.id]
    assert ask("GET", f"requests/{own.id}").status_code == 200
    assert ask("GET", f"requests/{others.id}").status_code == 404


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"outcome": "odd"}, "outcome"),
        ({"key": "0"}, "key"),
        ({"key": "9" * 19}, "key"),
        ({"limit": "many"}, "limit"),
        ({"before": "yesterday"}, "before"),
        ({"model": "a\0b"}, "model"),
        ({"start": "soon"}, "start"),
        ({"end": "2026-04-01T00:00:00Z"}, "end"),
        ({"page": "2"}, "page"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(
    owner: Api, query: dict[str, str], field: str
) -> None:
    assert errors(owner("GET", "requests", **(MAY | query))) == {field}


def test_older_requests_need_a_period(owner: Api, key: ApiKey) -> None:
    spend(key, datetime.now(UTC) - timedelta(hours=30))
    spend(key, datetime.now(UTC) - timedelta(hours=1))
    assert len(owner("GET", "requests").json()["results"]) == 1
