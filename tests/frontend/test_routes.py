"""A tenant's routes, on their pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tenants.models import Price, Route, Tenant
from tests.frontend.clients import client_of
from tests.tenants.making import make_base, make_eval, make_route, make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(tenant: Tenant) -> Client:
    for number, name in enumerate(("small", "large"), 1):
        price = {"prompt": number, "cached_prompt": 0, "output": number}
        Price.objects.create(base_model=make_base(name), starts_at=timezone.now(), **price)
    return client_of(tenant, "developer")


def url(page: str, *more: Any) -> str:
    return reverse(page, args=["acme", *more])


def add(client: Client, **fields: Any) -> Any:
    given = {"name": "auto", "options": "small\r\n\r\nlarge\r\n", "margin": "5",
             "method": "classifier"}  # fmt: skip
    return client.post(url("adapters-routes"), given | fields, follow=True)


def test_a_route_is_added_fitted_and_deleted(client: Client, tenant: Tenant) -> None:
    assert "No routes yet" in client.get(url("adapters-routes")).text
    assert url("adapters-routes") in client.get(url("adapters")).text
    shown = add(client).text
    assert "are answered by large until it is fitted" in shown and "Nothing is known yet" in shown
    route = Route.objects.get()
    assert (route.options, route.margin, route.is_on) == (["small", "large"], 0.05, False)
    assert "auto" in client.get(url("adapters-routes")).text
    eval = make_eval(tenant, "Q & A")
    refused = client.post(url("adapters-route-fit", "auto"), {"eval": eval.pk})
    assert refused.status_code == 422
    assert "The eval Q &amp; A has no completed run with the model small" in refused.text
    foreign = make_eval(make_tenant("globex"))
    refused = client.post(url("adapters-route-fit", "auto"), {"eval": foreign.pk})
    assert "This is not an eval of this tenant." in refused.text
    refused = client.post(url("adapters-route-on", "auto"), follow=True)
    assert "its last fit gains nothing" in refused.text
    assert "“auto” deleted" in client.post(url("adapters-route-remove", "auto"), follow=True).text
    assert client.get(url("adapters-route", "auto")).status_code == 404


def test_what_a_fit_gained_is_shown(client: Client, tenant: Tenant) -> None:
    make_route(tenant)
    shown = client.get(url("adapters-route", "auto")).text
    allowed = "\u22120.4 points (\u22122.1 to +1.3, at least \u22123.0 is allowed)"
    for text in ("large alone", "94%", "48%", "44 % less.", "1,200 others", "0.04 ms", allowed):
        assert text in shown, text
    assert "“auto” is off." in client.post(url("adapters-route-off", "auto"), follow=True).text
    assert "All requests are answered by large." in client.get(url("adapters-route", "auto")).text
    assert "“auto” is on." in client.post(url("adapters-route-on", "auto"), follow=True).text


def test_the_page_of_a_cascade_changes_when_its_fit_ends(client: Client, tenant: Tenant) -> None:
    route = make_route(tenant, method="cascade", fitting_since=timezone.now())
    shown = client.get(url("adapters-route", "auto"))
    assert "is asked if the mean log-probability" in shown.text and "Being fitted" in shown.text
    asked = {"If-None-Match": f'"{shown.context["fingerprint"]}"'}
    assert client.get(url("adapters-route", "auto"), headers=asked).status_code == 304
    route.refresh_from_db()
    route.end_fit(route.reason)
    again = client.get(url("adapters-route", "auto"), headers=asked)
    assert again.status_code == 200 and "Being fitted" not in again.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"method": "oracle"}, "Select a valid choice."),
        ({"name": "small"}, "A base model already has this name."),
        ({"options": "small"}, "A route has 2 to 4 options."),
        ({"options": "small\nnone"}, "There is no base model or ready adapter “none”."),
        ({"margin": "50"}, "less than or equal to 20"),
    ],
)
def test_a_route_that_can_not_be(client: Client, fields: dict[str, str], said: str) -> None:
    refused = add(client, **fields)
    assert refused.status_code == 422 and said in refused.text and not Route.objects.exists()


def test_a_viewer_sees_a_route_and_changes_nothing(client: Client, tenant: Tenant) -> None:
    make_route(tenant)
    viewer = client_of(tenant, "viewer")
    shown = viewer.get(url("adapters-route", "auto")).text
    assert "large alone" in shown and "Turn off" not in shown and "Fit route" not in shown
    for page in (
        "adapters-route-on",
        "adapters-route-off",
        "adapters-route-remove",
        "adapters-route-fit",
    ):
        assert viewer.post(url(page, "auto")).status_code == 403
    assert viewer.post(url("adapters-routes"), {"name": "x"}).status_code == 403
    assert (
        client_of(make_tenant("globex"), "owner").get(url("adapters-route", "auto")).status_code
        == 404
    )
