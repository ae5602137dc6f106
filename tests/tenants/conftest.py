"""A tenant with an adapter that is live."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from tenants.models import Adapter, AdapterVersion, Tenant
from tests.tenants.making import make_adapter, make_tenant, make_version


@pytest.fixture
def tenant(db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def adapter(tenant: Tenant) -> Adapter:
    return make_adapter(tenant)


@pytest.fixture
def live(adapter: Adapter) -> AdapterVersion:
    """A version that `live` points at."""
    version = make_version(adapter)
    adapter.promote(version)
    return version


@pytest.fixture
async def async_db(transactional_db: None) -> AsyncIterator[None]:
    """A database for coroutines that use the ORM through `sync_to_async`, whose thread opens a
    connection of its own."""
    yield
    await sync_to_async(connections.close_all)()
