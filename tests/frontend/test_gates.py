"""What an adapter's aliases require, on its pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tenants.models import AdapterVersion, Alias, Eval, PromotionGate, Tenant
from tests.frontend.clients import client_of
from tests.tenants.making import make_adapter, make_eval, make_tenant, make_version

pytestmark = pytest.mark.django_db


@pytest.fixture
def live(tenant: Tenant) -> AdapterVersion:
    version = make_version(make_adapter(tenant))
    version.adapter.promote(version)
    return version


@pytest.fixture
def eval(tenant: Tenant) -> Eval:
    return make_eval(tenant, "Sums & more")


@pytest.fixture
def client(tenant: Tenant) -> Client:
    return client_of(tenant, "developer")


def url(page: str, *more: Any) -> str:
    return reverse(page, args=["acme", "support", *more])


def require(client: Client, required: Eval, **fields: Any) -> Any:
    return client.post(
        url("adapters-gates"), {"alias": "live", "eval": required.pk, "percent": "87.5"} | fields
    )


def test_a_gate_from_its_setting_to_its_removal(
    client: Client, live: AdapterVersion, eval: Eval
) -> None:
    assert "No alias requires an eval" in client.get(url("adapters-gates")).text
    assert require(client, eval).status_code == 302
    gate = PromotionGate.objects.get()
    assert (gate.alias, gate.eval, gate.min_pass_rate) == ("live", eval, 0.875)
    for page in ("adapters-gates", "adapters-one"):
        shown = client.get(url(page)).text
        assert "87.5%" in shown and "Sums &amp; more" in shown
    version = make_version(live.adapter)
    given = {"version": version.number, "alias": "live"}
    refused = client.post(url("adapters-promote"), given, follow=True)
    assert "requires 87.5% in the eval" in refused.text and Alias.objects.get().version == live
    assert client.post(url("adapters-ungate", gate.pk)).status_code == 302
    client.post(url("adapters-promote"), given)
    assert Alias.objects.get().version == version


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"percent": "0"}, "greater than or equal to 0.1"),
        ({"percent": "101"}, "less than or equal to 100"),
        ({"percent": "nan"}, "Enter a number"),
        ({"alias": "Not One"}, "Lower-case letters"),
        ({"alias": "12345678"}, "must not look like"),
        ({"eval": "eval_0"}, "not an eval of this tenant"),
    ],
)
def test_wrong_values(
    client: Client, live: AdapterVersion, eval: Eval, change: dict[str, str], said: str
) -> None:
    refused = require(client, eval, **change)
    assert refused.status_code == 422 and said in refused.text
    assert not PromotionGate.objects.exists()


def test_another_tenants_eval_and_gate(client: Client, live: AdapterVersion) -> None:
    globex = make_tenant("globex")
    theirs = make_eval(globex)
    assert require(client, theirs).status_code == 422
    gate = PromotionGate.objects.put(make_adapter(globex), "live", theirs, 0.5)
    assert client.post(url("adapters-ungate", gate.pk)).status_code == 404
    assert PromotionGate.objects.exists()


def test_who_may_set_it(tenant: Tenant, live: AdapterVersion, eval: Eval) -> None:
    viewer = client_of(tenant, "viewer")
    assert viewer.get(url("adapters-gates")).status_code == 403
    assert require(viewer, eval).status_code == 403
