"""A console's `/v1` behind its intake, called with a tenant's keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from asgiref.sync import async_to_sync
from django.core.asgi import get_asgi_application
from pytest_django.fixtures import Settings

from tenants.directory.auth import PostgresDirectory
from tenants.files.intake import FileIntake
from tenants.models import BaseModel, Tenant
from tests.adapters.conftest import no_jobs
from tests.storing import store_in
from tests.tenants.making import make_base, make_key, make_tenant

__all__ = ["no_jobs"]

Ask = Callable[..., httpx.Response]


@pytest.fixture(autouse=True)
def files_dir(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> None:
    """Give the test its own folders of files and uploads."""
    store_in(settings, tmp_path)


@pytest.fixture
def tenant(no_jobs: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def base(tenant: Tenant) -> BaseModel:
    return make_base("base")


@pytest.fixture
def secret(tenant: Tenant) -> str:
    return make_key(tenant)[1]


async def asked(method: str, path: str, secret: str, **options: Any) -> httpx.Response:
    """The console's response to a request with the key `secret`."""
    async with PostgresDirectory() as directory:
        transport = httpx.ASGITransport(FileIntake(get_asgi_application(), directory))  # type: ignore[arg-type]
        headers = options.pop("headers", {})
        headers |= {"Authorization": f"Bearer {secret}"} if secret else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, f"/v1/{path}", headers=headers, **options)


@pytest.fixture
def ask(secret: str) -> Ask:
    """Sends requests with the tenant's key, or with another `secret`."""
    return lambda method, path, secret=secret, **options: async_to_sync(asked)(
        method, path, secret, **options
    )


def with_sdk(secret: str, script: Callable[[openai.AsyncOpenAI], Any]) -> Any:
    """What a script with OpenAI's SDK returns."""

    async def run() -> Any:
        async with PostgresDirectory() as directory:
            django: Any = get_asgi_application()
            app: Any = FileIntake(django, directory)
            http: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app))
            async with http:
                client = openai.AsyncOpenAI(
                    api_key=secret, base_url="http://localhost/v1", http_client=http, max_retries=0
                )
                return await script(client)

    return async_to_sync(run)()
