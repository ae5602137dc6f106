"""What an alias requires, through the management API."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tenants.models import AdapterVersion, Eval, PromotionGate, Scope, Tenant
from tests.tenants.callers import Api, person
from tests.tenants.making import make_eval, make_key, make_tenant, make_version

pytestmark = pytest.mark.django_db
PATH = "adapters/support/aliases/live/gate"


@pytest.fixture
def owner(tenant: Tenant) -> Api:
    return person(tenant, "owner")[0]


@pytest.fixture
def eval(tenant: Tenant) -> Eval:
    return make_eval(tenant, "Sums")


def test_a_gate_from_its_setting_to_its_removal(
    owner: Api, live: AdapterVersion, eval: Eval
) -> None:
    made = owner("PUT", PATH, {"eval": eval.pk, "min_pass_rate": 0.9})
    assert made.status_code == 200
    shown = made.json()
    assert (shown["alias"], shown["eval"], shown["eval_name"]) == ("live", eval.pk, "Sums")
    assert owner("GET", PATH).json() == shown
    assert owner("GET", "adapters/support").json()["gates"] == [shown]
    make_version(live.adapter)
    refused = owner("PUT", "adapters/support/aliases/live", {"version": 2})
    assert refused.status_code == 409 and refused.json()["code"] == "eval_missed"
    assert "requires 90% in the eval Sums" in refused.json()["detail"]
    assert owner("DELETE", PATH).status_code == 204 and owner("GET", PATH).status_code == 404
    assert owner("PUT", "adapters/support/aliases/live", {"version": 2}).status_code == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"min_pass_rate": 0}, "min_pass_rate"),
        ({"min_pass_rate": 1.5}, "min_pass_rate"),
        ({"min_pass_rate": "x"}, "min_pass_rate"),
        ({"eval": "eval_0"}, "eval"),
        ({"eval": "\0"}, "eval"),
        ({"other": 1}, "other"),
    ],
)
def test_wrong_gates(
    owner: Api, live: AdapterVersion, eval: Eval, change: dict[str, Any], field: str
) -> None:
    refused = owner("PUT", PATH, {"eval": eval.pk, "min_pass_rate": 0.9} | change)
    assert refused.status_code == 400 and field in refused.text
    assert not PromotionGate.objects.exists()


def test_an_eval_of_another_tenant(owner: Api, live: AdapterVersion) -> None:
    other = make_eval(make_tenant("globex"))
    refused = owner("PUT", PATH, {"eval": other.pk, "min_pass_rate": 0.9})
    assert refused.status_code == 400 and "There is no eval" in refused.text


def test_a_required_eval_is_not_deleted(tenant: Tenant, live: AdapterVersion, eval: Eval) -> None:
    gate = PromotionGate.objects.put(live.adapter, "live", eval, 0.5)
    headers = {"Authorization": f"Bearer {make_key(tenant, Scope.INFERENCE)[1]}"}
    refused = Client().delete(f"/v1/evals/{eval.pk}", headers=headers)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "eval_in_use"
    gate.delete()
    assert Client().delete(f"/v1/evals/{eval.pk}", headers=headers).status_code == 200
