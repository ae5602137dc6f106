"""A tenant, and no memory of earlier sign-ins."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache

from tenants.models import Tenant
from tests.tenants.making import make_tenant


@pytest.fixture(autouse=True)
def no_counts() -> None:
    """Failed sign-ins are counted over tests otherwise."""
    cache.clear()


@pytest.fixture(autouse=True)
def plain_files(settings: Any) -> None:
    """Nothing is collected here, so there is no manifest of static files."""
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}


@pytest.fixture
def tenant(db: None) -> Tenant:
    return make_tenant("acme")
