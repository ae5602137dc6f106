"""The console's forms that send a file: whose bodies reach Django, and why others do not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync
from django.conf import settings as project
from pytest_django.fixtures import Settings

from tenants.directory.auth import PostgresDirectory
from tenants.files.intake import REFUSED, FileIntake
from tenants.models import Tenant
from tests.frontend.clients import client_of

BODY = b"x" * 1000


class FormReader:
    """In Django's place: notes the scope and the body that reach it."""

    def __init__(self) -> None:
        self.scope: Any = {}
        self.body = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope, more = scope, True
        while more:
            message = await receive()
            self.body += message.get("body", b"")
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def _sent(path: str, session: str) -> FormReader:
    reader = FormReader()
    async with PostgresDirectory() as directory:
        transport = httpx.ASGITransport(FileIntake(reader, directory))
        cookies = {project.SESSION_COOKIE_NAME: session}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", cookies=cookies
        ) as client:
            await client.post(path, content=BODY)
    return reader


def sent(tenant: Tenant, role: str, path: str = "/t/acme/files") -> FormReader:
    cookie = client_of(tenant, role).cookies.get(project.SESSION_COOKIE_NAME)
    return async_to_sync(_sent)(path, cookie.value if cookie else "")


@pytest.mark.parametrize("path", ["/t/acme/files", "/t/acme/batches/new"])
def test_a_members_file_arrives(tenant: Tenant, path: str) -> None:
    reader = sent(tenant, "developer", path)
    assert reader.body == BODY and REFUSED not in reader.scope


@pytest.mark.parametrize("role", ["viewer", "outsider", "nobody"])
def test_nobody_elses_does(tenant: Tenant, role: str) -> None:
    assert sent(tenant, role).body == b""


def test_a_file_without_room_is_not_read_and_the_page_is_told_why(
    tenant: Tenant, settings: Settings
) -> None:
    settings.MAX_FILE_BYTES = -(64 << 10)  # with what the form may add, nothing
    reader = sent(tenant, "developer")
    assert reader.body == b"" and reader.scope[REFUSED].http_status == 413
    settings.MAX_FILE_BYTES = 1 << 20
    Tenant.objects.update(max_stored_bytes=10)
    reader = sent(tenant, "developer")
    assert reader.body == b"" and reader.scope[REFUSED].code == "storage_quota_exceeded"
