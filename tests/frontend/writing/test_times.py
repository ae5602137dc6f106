"""Pages show times in the viewer's time zone; addresses, bills and the API are in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import Client

from frontend.times import ZONE_COOKIE
from tenants.models import ApiKey, Tenant
from tests.frontend.clients import address, client_of
from tests.tenants.spending import spend

AT = datetime(2020, 1, 15, 23, 31, 58, tzinfo=UTC)


@pytest.fixture
def admin(tenant: Tenant) -> Client:
    client = client_of(tenant, "admin")
    client.cookies[ZONE_COOKIE] = "Asia/Tokyo"
    return client


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("Asia/Tokyo", "16 Jan 2020, 08:31:58"),
        ("UTC", "15 Jan 2020, 23:31:58"),
        ("../../etc/passwd", "15 Jan 2020, 23:31:58"),
        ("Nowhere/City", "15 Jan 2020, 23:31:58"),
    ],
)
def test_a_page_is_in_the_browsers_time_zone(
    admin: Client, tenant: Tenant, key: ApiKey, zone: str, shown: str
) -> None:
    event = spend(key, AT)
    admin.cookies[ZONE_COOKIE] = zone
    assert f">{shown}</time>" in admin.get(address(tenant, f"requests/{event.id}")).text


def test_an_address_means_the_same_to_everybody(admin: Client, tenant: Tenant, key: ApiKey) -> None:
    event = spend(key, AT)
    asked = {"since": "2020-01-15T23:30", "until": "2020-01-15T23:32"}
    page = admin.get(address(tenant, "requests"), asked)
    assert [row.event.id for row in page.context["rows"]] == [event.id]
    assert 'value="2020-01-15T23:30"' in page.text


def test_the_bills_days_stay_utc(admin: Client, tenant: Tenant, key: ApiKey) -> None:
    spend(key, AT)
    asked = {"period": "custom", "first": "2020-01-15", "last": "2020-01-15"}
    page = admin.get(address(tenant, "usage"), asked).text
    assert ">15 Jan 2020, 00:00</time> to" in page and ">16 Jan 2020, 00:00</time>, UTC." in page


def test_the_api_tells_utc(admin: Client, tenant: Tenant, key: ApiKey) -> None:
    listed = admin.get("/api/v1/keys", {"tenant": tenant.slug}).json()["results"]
    assert listed[0]["created_at"].endswith("Z")
