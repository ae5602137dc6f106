"""A console that hub clients can reach, and a tenant with a key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings as django_settings
from huggingface_hub import HfApi

from gateway.planes.control import ControlParts, application
from tenants.models import Tenant
from tests.adapters.conftest import base_model, gateway, no_jobs, object_storage, worker
from tests.adapters.servers import serving
from tests.tenants.making import make_key, make_tenant

__all__ = ["base_model", "gateway", "no_jobs", "object_storage", "worker"]


@pytest.fixture(autouse=True, scope="session")
def conforming() -> None:
    """The hub's protocol is not in the OpenAPI document, so its tests do without the checker."""


@pytest.fixture(scope="package")
def console() -> Iterator[str]:
    """The base URL of a console that runs in a thread of its own."""
    Path(django_settings.STATIC_ROOT).mkdir(exist_ok=True)  # else a warning says that it is missing
    began, ended = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def run() -> None:
        async with serving(application(ControlParts.configured()), lifespan="on") as url:
            found.extend([url, asyncio.get_running_loop()])
            began.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert began.wait(60)
    url, loop = found
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@dataclass
class Hub:
    """A console's hub, called with one of a tenant's keys."""

    url: str
    token: str

    @property
    def endpoint(self) -> str:
        """The value of HF_ENDPOINT."""
        return f"{self.url}/hub"

    @property
    def api(self) -> HfApi:
        return HfApi(endpoint=self.endpoint, token=self.token)

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"} | options.pop("headers", {})
        return httpx.request(
            method, f"{self.endpoint}/{path}", headers=headers, timeout=60, **options
        )

    def with_key(self, tenant: Tenant, *scopes: str, **fields: Any) -> Hub:
        return Hub(self.url, make_key(tenant, *scopes, **fields)[1])


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def hub(tenant: Tenant, console: str) -> Hub:
    return Hub(console, make_key(tenant, "adapters:write")[1])
