"""A tenant with clients of its admin and of the operator. No test sees earlier sign-ins."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from tenants.models import ApiKey, Tenant
from tests.frontend.clients import client_of
from tests.tenants.making import make_key, make_tenant


@pytest.fixture(autouse=True)
def no_counts() -> None:
    """Failed sign-ins would otherwise be counted across tests."""
    cache.clear()


@pytest.fixture(autouse=True)
def nothing_collected(plain_files: None) -> None:
    """Every page links static files."""


@pytest.fixture
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops Django's clock, so that no hour, day or month ends while a test reads usage."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)


@pytest.fixture
def tenant(db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def admin(tenant: Tenant) -> Client:
    return client_of(tenant, "admin")


@pytest.fixture
def operator(tenant: Tenant) -> Client:
    return client_of(tenant, "operator")


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return make_key(tenant)[0]
