"""The initial data of `up`: what is said if its adapters cannot be uploaded."""

from __future__ import annotations

import httpx
import pytest

from demo import ADAPTERS, TENANTS, TINY
from gateway.local import seed
from gateway.local.seed import SeedFailed
from tenants.models import Tenant
from tests.tenants.making import make_base, make_tenant, make_version

NAME = TENANTS[0].adapter
KEYS = {tenant.slug: "key" for tenant in TENANTS}


async def adapter(answer: httpx.Response | httpx.TransportError) -> None:
    """Upload to a console that gives this answer to everything."""

    def answered(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.Response):
            return answer
        raise answer

    transport = httpx.MockTransport(answered)
    async with httpx.AsyncClient(base_url="http://console", transport=transport) as client:
        await seed.adapter(client, "key", NAME, ADAPTERS[NAME], "base")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.ReadTimeout(""), "could not be uploaded: ReadTimeout"),
        (httpx.Response(422, text="too large"), "was refused: too large"),
        (
            httpx.Response(201, json={"state": "rejected", "report": "rank 9", "number": 1}),
            "was rejected: rank 9",
        ),
    ],
)
async def test_one_line_says_what_failed(
    answer: httpx.Response | httpx.TransportError, said: str
) -> None:
    with pytest.raises(SeedFailed, match=f"the adapter {NAME} {said}"):
        await adapter(answer)


@pytest.mark.django_db
def test_a_tenant_that_is_suspended_or_deleted_stays_so() -> None:
    """It has no key; the others keep theirs."""
    before = seed.tenants({})
    assert [*before] == [tenant.slug for tenant in TENANTS]
    Tenant.objects.filter(slug=TENANTS[0].slug).update(status="suspended")
    known = [{"slug": slug, "api_key": key} for slug, key in before.items()]
    del before[TENANTS[0].slug]
    assert seed.tenants({"tenants": known}) == before


async def test_a_tenant_without_a_key_gets_no_adapters() -> None:
    await seed.adapters("http://127.0.0.1:1", TINY, {})  # where nothing listens


@pytest.mark.django_db
def test_adapters_of_the_other_demo_make_room() -> None:
    tenant, other = make_tenant(TENANTS[0].slug), make_base("other")
    old = tenant.adapters.create(name=NAME, base_model=other)
    old.promote(make_version(old))
    tenant.adapters.create(name="own", base_model=other)
    make_tenant("stranger").adapters.create(name=NAME, base_model=other)
    assert seed.forget_others(TINY) == [NAME]
    assert [one.name for one in tenant.adapters.all()] == ["own"]
    tenant.adapters.create(name=NAME, base_model=make_base(TINY.model_name))
    assert seed.forget_others(TINY) == []


async def test_a_console_that_is_not_there_is_named_as_one_failure() -> None:
    with pytest.raises(SeedFailed, match="could not be uploaded"):
        await seed.adapters("http://127.0.0.1:1", TINY, KEYS)
