"""Splits through the management API."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.models import AdapterVersion, Alias, Split, SplitState, Tenant
from tests.tenants.api.test_api import errors
from tests.tenants.callers import Api, person
from tests.tenants.making import make_key, make_tenant, make_version

pytestmark = pytest.mark.django_db

PATH = "adapters/support/aliases/live/split"
PLAN = {
    "version": 2,
    "weights": [10, 50],
    "min_requests": 20,
    "max_requests": 5000,
    "max_hours": 48,
    "sticky": "header",
    "header": "X-Team",
    "guards": [
        {"kind": "errors", "margin": 0.01},
        {"kind": "slow", "seconds": 2},
        {"kind": "score", "name": "liked", "low": 1, "high": 5},
    ],
    "rolls_back": False,
    "promotes": True,
}


@pytest.fixture
def owner(tenant: Tenant) -> Api:
    return person(tenant, "owner")[0]


@pytest.fixture
def candidate(live: AdapterVersion) -> AdapterVersion:
    return make_version(live.adapter)


def test_a_split_as_planned(owner: Api, candidate: AdapterVersion) -> None:
    response = owner("POST", PATH, PLAN)
    assert response.status_code == 201
    found = response.json()
    assert found == owner("GET", PATH).json()
    kept = ["weights", "min_requests", "max_requests", "max_hours", "sticky", "rolls_back"]
    assert {name: found[name] for name in kept} == {name: PLAN[name] for name in kept}
    assert found["promotes"] and found["guards"] == [
        {"kind": "errors", "margin": 0.01} | dict.fromkeys(("seconds", "name", "low", "high")),
        {"kind": "slow", "margin": 0.02, "seconds": 2.0, "name": None, "low": None, "high": None},
        {"kind": "score", "margin": 0.02, "seconds": None, "name": "liked", "low": 1, "high": 5},
    ]
    assert (found["stable"], found["candidate"], found["weight"]) == (1, 2, 10)
    assert (found["header"], found["state"]) == ("x-team", "running")
    assert found["figures"] == {"at": None, "requests": [0, 0], "guards": []}
    assert owner("GET", "adapters/support/splits").json()["results"] == [found]


def test_a_plan_may_be_short(owner: Api, candidate: AdapterVersion) -> None:
    found = owner("POST", PATH, {"version": 2}).json()
    assert (found["sticky"], found["weights"]) == ("user", [5, 25, 50])
    assert [(one["kind"], one["margin"]) for one in found["guards"]] == [("errors", 0.02)]


def test_a_shadow(owner: Api, candidate: AdapterVersion) -> None:
    key = make_key(candidate.adapter.tenant, "inference")[0]
    plan = {"version": 2, "shadow_key": key.pk}
    (said,) = errors(owner("POST", PATH, plan | {"promotes": True}))
    assert said.startswith("promotes")
    other = make_key(make_tenant("globex"), "inference")[0]
    assert errors(owner("POST", PATH, plan | {"shadow_key": other.pk})), "of another tenant"
    assert owner("POST", PATH, plan).json()["shadow_key"] == key.pk


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": 9}, "version"),
        ({"version": 1}, "version"),
        ({"version": "2"}, "version"),
        ({"weights": [50, 10]}, "weights"),
        ({"weights": [0]}, "weights"),
        ({"weights": list(range(1, 12))}, "weights"),
        ({"guards": []}, "guards"),
        ({"guards": [{"kind": "errors", "seconds": 1}]}, "guards"),
        ({"guards": [{"kind": "errors"}] * 2}, "guards"),
        ({"guards": [{"kind": "errors", "margin": 2}]}, "guards"),
        ({"guards": [{"kind": "errors", "surplus": 2}]}, "guards"),
        ({"guards": "errors"}, "guards"),
        ({"header": "x y"}, "header"),
        ({"header": ""}, "header"),
        ({"sticky": "moon"}, "sticky"),
        ({"max_hours": 10**9}, "max_hours"),
        ({"shadow_key": 0}, "shadow_key"),
        ({"shadow_key": 10**9}, "shadow_key"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_wrong_plan(
    owner: Api, candidate: AdapterVersion, change: dict[str, Any], field: str
) -> None:
    (said,) = errors(owner("POST", PATH, PLAN | change))
    assert said.partition(".")[0] == field
    assert not Split.objects.exists()


def test_its_life(owner: Api, candidate: AdapterVersion) -> None:
    assert owner("GET", PATH).status_code == 404
    owner("POST", PATH, PLAN)
    assert owner("POST", PATH, PLAN).json()["code"] == "split_running"
    assert owner("PUT", f"{PATH}/weight", {"weight": 33}).json()["weight"] == 33
    assert errors(owner("PUT", f"{PATH}/weight", {"weight": 100})).keys() == {"weight"}
    assert owner("POST", f"{PATH}/pause").json()["state"] == "paused"
    assert owner("POST", f"{PATH}/resume").json()["state"] == "running"
    ended = owner("POST", f"{PATH}/promote").json()
    assert (ended["state"], ended["weight"]) == ("promoted", 0)
    assert Alias.objects.get().version == candidate
    assert owner("GET", PATH).json() == ended
    for action in ("pause", "resume", "promote", "stop"):
        assert owner("POST", f"{PATH}/{action}").status_code == 404


def test_it_can_be_stopped(owner: Api, live: AdapterVersion, candidate: AdapterVersion) -> None:
    owner("POST", PATH, PLAN)
    assert owner("POST", f"{PATH}/stop").json()["state"] == SplitState.STOPPED
    assert Alias.objects.get().version == live


def test_without_an_alias_there_is_none(owner: Api, candidate: AdapterVersion) -> None:
    assert owner("POST", "adapters/support/aliases/none/split", PLAN).status_code == 404
