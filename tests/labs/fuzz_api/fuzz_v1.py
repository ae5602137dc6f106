"""Fuzzes every operation of `/v1`: those that generate, on a gateway with a synthetic engine, and
on a console those that report and those of files and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from anyio.from_thread import start_blocking_portal
from channels.db import database_sync_to_async
from django.utils import timezone
from pytest_django.fixtures import Settings
from schemathesis.specs.openapi import checks as openapi

from inference.errors import InvalidApiKey
from inference.interfaces.directory import Grant
from tenants.adapters.uploads.intake import without_body
from tenants.files.intake import FileIntake
from tenants.models import ApiKey, Scope, Tenant
from tests.inference.operations.examples import responses
from tests.inference.rig import rig
from tests.inference.samples import GRANT, MODEL
from tests.labs.fuzz_api.fuzzing import CHECKS, fuzz, in_time, operations, schema_of
from tests.labs.fuzz_api.in_process import URL, InProcess, console
from tests.storing import make_bytes, store_in
from tests.tenants.making import make_key
from tests.tenants.spending import spend

__all__ = ["in_time"]
OF_FILES = ("/v1/files", "/v1/uploads", "/v1/batches")
OF_GATEWAYS = ("/v1/models", "/v1/responses", "/v1/conversations")
KEPT = [one for one in operations("/v1/") if one[1].startswith(OF_FILES)]
GENERATED = [
    one
    for one in operations("/v1/")
    if one not in KEPT and (one[1].startswith(OF_GATEWAYS) or one[0] == "POST")
]
REPORTED = [one for one in operations("/v1/") if one not in (*GENERATED, *KEPT)]
ANSWERED = [check for check in CHECKS if check is not openapi.negative_data_rejection]
"""Checks that let bad data be accepted, because engines validate their fields themselves."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running gateway."""
    with start_blocking_portal() as portal:
        running = rig(tmp_path_factory.mktemp("rig"))
        with portal.wrap_async_context_manager(running) as made:
            made.gateway.keys.keeping.add("acme")
            yield made.gateway.url


def served(context: Any, body: Any) -> Any:
    """The body with an existing model and a small number of tokens, so that it is generated."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return body
    return body | {
        "model": MODEL.name,
        "max_tokens": 3,
        "max_output_tokens": 3,
        "n": 1,
        "min_tokens": 0,
    }


@pytest.mark.parametrize(("method", "path"), GENERATED)
def test_what_generates(method: str, path: str, gateway: str) -> None:
    session = requests.Session()
    session.headers["Authorization"] = "Bearer acme"
    stored = session.post(f"{gateway}/v1/responses", json=responses()).json()["id"]
    said = {"items": [{"role": "user", "content": "Hello"}]}
    conversation = session.post(f"{gateway}/v1/conversations", json=said).json()["id"]
    items = session.get(f"{gateway}/v1/conversations/{conversation}/items").json()
    known = {
        "models/model": [MODEL.name, "nothing"],
        "responses/id": [stored, "nothing"],
        "conversations/id": [conversation, "nothing"],
        "items/item": [items["last_id"], "nothing"],
    }
    schema = schema_of("/v1/", known)
    schema.hooks.hook("map_body")(served)
    checks = ANSWERED if method == "POST" else CHECKS
    assert fuzz(schema[path][method], session, gateway, checks) > 1


class StoredKeys:
    """A directory that sees the test's uncommitted data."""

    async def authenticate(self, secret: str) -> Grant:
        key = await database_sync_to_async(ApiKey.objects.find)(secret)
        if key is None:
            raise InvalidApiKey
        scopes = frozenset(key.scopes)
        return replace(GRANT, tenant_id=key.tenant_id, tenant=key.tenant.slug, scopes=scopes)


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "path"), KEPT)
def test_what_is_kept(
    method: str, path: str, tenant: Tenant, tmp_path: Path, settings: Settings
) -> None:
    store_in(settings, tmp_path)
    key, secret = make_key(tenant, *Scope.values)
    file = tenant.files.create(purpose="batch", filename="a.jsonl", size_bytes=1)
    make_bytes(file.pk, b"x")
    batch = tenant.batches.create(
        key=key,
        input_file=file,
        operation="chat",
        endpoint="/v1/chat/completions",
        expires_at=timezone.now() + timedelta(hours=1),
    )
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {secret}"
    session.mount(URL, InProcess(FileIntake(console(), StoredKeys())))  # type: ignore[arg-type]
    upload = tenant.file_uploads.create(
        purpose="batch", filename="a.jsonl", size_bytes=10, expires_at=batch.expires_at
    )
    known = {
        "files/id": [file.pk, "nothing"],
        "batches/id": [batch.pk, "nothing"],
        "uploads/id": [upload.pk, "nothing"],
    }
    assert fuzz(schema_of("/v1/", known)[path][method], session, URL) > 1


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "path"), REPORTED)
def test_what_reports(method: str, path: str, tenant: Tenant) -> None:
    key, secret = make_key(tenant, *Scope.values)
    event = spend(key)
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {secret}"
    session.mount(URL, InProcess(without_body(console())))
    known = {"receipts/request_id": [f"req_{event.pk}", "nothing"]}
    assert fuzz(schema_of("/v1/", known)[path][method], session, URL) > 1
