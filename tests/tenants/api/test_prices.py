"""Prices: set by operators, visible to the tenants that pay them, unchangeable once in force."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from tenants.errors import PriceInForce
from tenants.models import Adapter, Price, Tenant
from tests.tenants.callers import Api, person, with_key
from tests.tenants.making import make_adapter, make_base, make_tenant, make_user

pytestmark = pytest.mark.django_db

VALUES = {"prompt": 150_000, "cached_prompt": 75_000, "output": 600_000}
OF_ADAPTER = {"base_model": None, "adapter": "support"}
LATER = datetime(2150, 1, 1, tzinfo=UTC)


def errors(response: Any) -> dict[str, str]:
    assert response.status_code == 400, response.content
    return {error["field"]: error["message"] for error in response.json()["errors"]}


def make_price(of: Any, starts_at: datetime | None = None, **values: Any) -> Price:
    thing = {"adapter" if isinstance(of, Adapter) else "base_model": of}
    return Price.objects.create(starts_at=starts_at or timezone.now(), **thing, **(VALUES | values))


@pytest.fixture
def operator(tenant: Tenant) -> Api:
    return Api(make_user("op", is_staff=True))


def test_an_operator_prices_a_base_model(operator: Api) -> None:
    make_base()
    before = timezone.now()
    answer = operator("POST", "prices", {"base_model": "base", **VALUES})
    assert answer.status_code == 201
    price = Price.objects.get()
    assert before <= price.starts_at <= timezone.now()
    assert answer.json() == {
        "id": price.pk,
        "tenant": None,
        "base_model": "base",
        "adapter": None,
        "tier": "standard",
        "starts_at": price.starts_at.isoformat().replace("+00:00", "Z"),
        "prompt": 150_000,
        "cached_prompt": 75_000,
        "output": 600_000,
        "currency": "usd",
        "created_at": price.created_at.isoformat().replace("+00:00", "Z"),
    }
    assert operator("GET", f"prices/{price.pk}").json() == answer.json()


def test_batches_have_a_price_of_their_own_beside_the_standard_one(operator: Api) -> None:
    make_base()
    at = (timezone.now() + timedelta(days=1)).isoformat()
    for tier, status in (("standard", 201), ("batch", 201), ("batch", 400), ("weekend", 400)):
        asked = {"base_model": "base", "tier": tier, "starts_at": at, **VALUES}
        assert operator("POST", "prices", asked).status_code == status, tier
    assert {price.tier for price in Price.objects.at(timezone.now(), "scheduled")} == {
        "standard",
        "batch",
    }


def test_an_operator_prices_a_tenants_adapter(operator: Api, adapter: Adapter) -> None:
    make_adapter(make_tenant("other"))
    body = {"adapter": "support", "starts_at": LATER.isoformat(), **VALUES}
    assert errors(operator("POST", "prices", body)) == {
        "adapter": "Name the adapter's tenant with the query parameter `tenant`."
    }
    answer = operator("POST", "prices", body, tenant="acme")
    assert answer.status_code == 201
    shown = answer.json()
    assert (shown["tenant"], shown["adapter"], shown["base_model"]) == ("acme", "support", None)
    assert Price.objects.get().adapter == adapter


def test_visible_prices_by_role(operator: Api, adapter: Adapter) -> None:
    """A tenant sees those of base models and of its own adapters; an operator those of one tenant,
    or all."""
    foreign = make_adapter(make_tenant("other"), "secret")
    own = [make_price(adapter).pk, make_price(make_base()).pk]
    theirs = make_price(foreign).pk

    def seen(ask: Api, **query: str) -> set[int]:
        return {price["id"] for price in ask("GET", "prices", **query).json()["results"]}

    for ask in (person(adapter.tenant, "viewer")[0], with_key(adapter.tenant, "usage:read")[0]):
        assert seen(ask) == set(own)
        assert ask("GET", f"prices/{own[0]}").status_code == 200
        gone, hidden = ask("GET", "prices/999999"), ask("GET", f"prices/{theirs}")
        assert (hidden.status_code, hidden.content) == (404, gone.content)
    assert seen(operator, tenant="acme") == set(own)
    assert seen(operator) == {*own, theirs}
    assert seen(operator, adapter="secret") == {theirs}
    assert seen(operator, base_model="base") == {own[1]}
    assert operator("DELETE", f"prices/{theirs}", tenant="acme").status_code == 404


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"prompt": -1}, "prompt", "greater than or equal to 0."),
        ({"output": 10**12 + 1}, "output", "less than or equal to 1000000000000."),
        ({"output": 10**30}, "output", "less than or equal to 1000000000000."),
        ({"output": 0.5}, "output", "A valid integer is required."),
        ({"output": "1e3"}, "output", "A valid integer is required."),
        ({"output": None}, "output", "This field may not be null."),
        ({"cached_prompt": 150_001}, "cached_prompt", "150001 is more than the price of uncached"),
        ({"base_model": "none"}, "base_model", "The base model `none` does not exist."),
        ({"adapter": "none"}, "adapter", "The adapter `none` does not exist."),
        ({"adapter": "support"}, "", "either a base model or an adapter"),
        ({"base_model": None}, "", "either a base model or an adapter"),
        (OF_ADAPTER | {"tier": "overflow"}, "adapter", "Overflow engines have no adapters"),
        (OF_ADAPTER | {"tier": "training"}, "adapter", "Training has the price of the base"),
        ({"starts_at": "2020-01-01T00:00:00Z"}, "starts_at", "2020-01-01T00:00:00+00:00 is in the"),
        ({"starts_at": "soon"}, "starts_at", "Datetime has wrong format."),
        ({"currency": "eur"}, "currency", "This field is read-only."),
        ({"prize": 1}, "prize", "Unknown field."),
    ],
)
def test_a_price_that_cannot_be(
    operator: Api, adapter: Adapter, change: dict[str, Any], field: str, message: str
) -> None:
    body = {"base_model": "base", **VALUES} | change
    told = errors(operator("POST", "prices", body, tenant="acme"))
    assert list(told) == [field] and message in told[field]
    assert not Price.objects.exists()


def test_two_prices_cannot_start_at_the_same_time(operator: Api, adapter: Adapter) -> None:
    body = {"starts_at": LATER.isoformat(), **VALUES}
    for thing in ({"base_model": "base"}, {"adapter": "support"}):
        assert operator("POST", "prices", body | thing, tenant="acme").status_code == 201
        again = operator("POST", "prices", body | thing, tenant="acme")
        assert errors(again) == {"starts_at": "There is already a price that starts at this time."}
    assert Price.objects.count() == 2


def test_a_price_is_withdrawn_only_before_it_holds(operator: Api) -> None:
    base, now = make_base(), timezone.now()
    past, present = make_price(base, now - timedelta(days=2)), make_price(base, now)
    future = make_price(base, LATER)
    for price in (past, present):
        answer = operator("DELETE", f"prices/{price.pk}")
        assert (answer.status_code, answer.json()["code"]) == (409, "price_in_force")
        with pytest.raises(PriceInForce):
            price.withdraw()
    assert operator("DELETE", f"prices/{future.pk}").status_code == 204
    assert set(Price.objects.all()) == {past, present}


def test_a_price_outlives_its_adapter_and_is_shown_no_more(operator: Api, adapter: Adapter) -> None:
    price, other = make_price(adapter), make_price(make_base())
    adapter.retire()
    assert set(Price.objects.all()) == {price, other}
    assert [row["id"] for row in operator("GET", "prices").json()["results"]] == [other.pk]
    assert operator("GET", f"prices/{price.pk}").status_code == 404
    assert list(Price.objects.at(timezone.now())) == [other]


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_price_is_not_changed(operator: Api, method: str) -> None:
    price = make_price(make_base(), LATER)
    assert operator(method, f"prices/{price.pk}", VALUES).status_code == 405


def test_the_model_says_what_the_constraints_say(adapter: Adapter) -> None:
    for wrong in (
        {"base_model": make_base(), "adapter": adapter},
        {"adapter": adapter, "output": -1},
        {"adapter": adapter, "cached_prompt": VALUES["prompt"] + 1},
    ):
        with pytest.raises(ValidationError):
            Price(starts_at=LATER, **(VALUES | wrong)).clean()
    Price(starts_at=LATER, adapter=adapter, **VALUES).full_clean()
