"""The initial data of a first `up`: an operator, and the demo's tenants and adapters.

The demo's adapters are treated like any tenant's: uploaded over HTTP with the tenant's own key,
validated by the worker, probed on the engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from django.utils import timezone

from demo import TENANTS, Demo
from inference.content import FILES
from tenants.models import Adapter, ApiKey, BaseModel, EngineCredential, Price, Tenant, User

OPERATOR = "operator"
PRICE = {"prompt": 100_000, "cached_prompt": 25_000, "output": 400_000}
"""The demo's prices, in micro-units of the currency per million tokens: 0.10, 0.025 and 0.40."""
EMBEDDING_PRICE = {"prompt": 20_000, "cached_prompt": 5_000, "output": 0}
POLL_S = 0.5
ADAPTER_S = 600.0
"""Longest wait for one adapter to be uploaded, validated and probed, on a busy machine."""


class SeedFailed(Exception):
    """The installation could not be filled; the message says with what and why."""


@dataclass(frozen=True)
class Facts:
    """What `up` prints, and keeps in `up.json` for the next start."""

    base_url: str
    console_url: str
    operator: dict[str, str]
    tenants: list[dict[str, Any]]
    engines: dict[str, str]
    """The credential of each engine."""
    metrics_token: str
    """Authenticates Prometheus to gateways."""
    embedding_model: str = ""
    """The embedding model, which may still be starting; empty if there is none."""

    @classmethod
    def read(cls, file: Path) -> dict[str, Any]:
        """The last start's facts; empty if there was none or the file is broken."""
        try:
            facts = json.loads(file.read_text())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def write(self, file: Path) -> None:
        """Replace the file atomically, readable only by its owner."""
        draft = file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            json.dump(vars(self), out, indent=2)
        draft.replace(file)


def operator(known: dict[str, Any]) -> dict[str, str]:
    """The operator's login: created once with a random password, kept as long as it works."""
    login: dict[str, str] = known.get("operator") or {}
    user = User.objects.filter(username=login.get("username", OPERATOR)).first()
    if user is None:
        user = User(username=OPERATOR, is_staff=True, is_superuser=True)
    elif user.check_password(login.get("password", "")):
        return login
    password = secrets.token_urlsafe(15)
    user.set_password(password)
    user.save()
    return {"username": user.username, "password": password}


def engines(known: dict[str, Any], names: Sequence[str]) -> dict[str, str]:
    """The credential of each of these engines: the known one as long as it works. If its secret is
    lost the credential is rotated and not replaced, so that the engine can still bill its
    journal."""
    texts: dict[str, str] = known.get("engines") or {}
    return {name: _credential(name, texts.get(name, "")) for name in names}


def _credential(name: str, known: str) -> str:
    credential = EngineCredential.objects.live().filter(name=name).first()
    if credential is None:
        return EngineCredential.objects.issue(name=name)[1]
    return known if credential.matches(known) else credential.rotate()


def tenants(known: dict[str, Any]) -> dict[str, str]:
    """A key for each demo tenant, by slug: the known one as long as it works, or a new one. Those
    that somebody suspended or deleted are left as they are, and have none."""
    keys = {tenant["slug"]: tenant["api_key"] for tenant in known.get("tenants", [])}
    found = {}
    for demo in TENANTS:
        named = {"name": demo.company}
        tenant, _ = Tenant.objects.get_or_create(slug=demo.slug, defaults=named)
        if tenant.active:
            found[demo.slug] = _key(tenant, keys.get(demo.slug, ""))
    return found


def _key(tenant: Tenant, known: str) -> str:
    key = ApiKey.objects.find(known)
    if key is not None and key.tenant_id == tenant.pk and key.revoked_at is None:
        return known
    scopes = ["inference", "adapters:write", "usage:read", "scores:write", "admin"]
    _, text = ApiKey.objects.issue(tenant, name="demo", scopes=scopes)
    return text


def prices(base_model: str, price: Mapping[str, int] = PRICE) -> None:
    """Set the price of the demo's tokens unless the base model has one. The model is known once an
    adapter of it is ready or `/v1/models` lists it, but not yet when its engine is ready."""
    known = BaseModel.objects.filter(name=base_model, prices=None).first()
    if known is not None:
        Price.objects.create(base_model=known, starts_at=timezone.now(), **price)


def forget_others(demo: Demo) -> list[str]:
    """Delete the demo's adapters of another base model, which an earlier start served: an adapter
    can't change its base. Returns their names."""
    forgotten = []
    for slug, folders in demo.adapters.items():
        mine = Adapter.objects.filter(tenant__slug=slug, name__in=folders)
        for one in mine.exclude(base_model__name=demo.model_name):
            one.discard()
            forgotten.append(one.name)
    return forgotten


async def adapters(base_url: str, demo: Demo, keys: dict[str, str]) -> None:
    """Upload the adapters of the demo's tenants that have a key, and wait until all are ready.

    Raises:
        SeedFailed: one was refused, or was not ready in time.
    """
    async with httpx.AsyncClient(base_url=base_url, timeout=ADAPTER_S) as client:
        uploads = (
            adapter(client, keys[slug], name, folder, demo.model_name)
            for slug, folders in demo.adapters.items()
            if slug in keys
            for name, folder in folders.items()
        )
        await asyncio.gather(*uploads)


async def adapter(
    client: httpx.AsyncClient, key: str, name: str, folder: Path, base_model: str
) -> None:
    """Upload one adapter and wait until it is ready.

    Raises:
        SeedFailed: as `adapters`.
    """
    headers = {"Authorization": f"Bearer {key}"}
    state = "uploading"
    try:
        async with asyncio.timeout(ADAPTER_S):
            version = await _uploaded(client, name, folder, base_model, headers)
            while (state := version["state"]) not in ("ready", "rejected", "archived"):
                await asyncio.sleep(POLL_S)
                url = f"/api/v1/adapters/{name}/versions/{version['number']}"
                version = (await client.get(url, headers=headers)).raise_for_status().json()
    except TimeoutError:
        raise SeedFailed(f"the adapter {name} is still {state} after {ADAPTER_S:g} s") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise SeedFailed(f"the adapter {name} could not be uploaded: {reason}") from None
    if state != "ready":
        raise SeedFailed(f"the adapter {name} was {state}: {version['report']}")


async def _uploaded(
    client: httpx.AsyncClient, name: str, folder: Path, base_model: str, headers: dict[str, str]
) -> dict[str, Any]:
    """Upload the adapter's files. Returns its version, which a worker may still check."""
    answer = await client.post(
        f"/api/v1/adapters/{name}/versions",
        headers=headers,
        files=[("files", (file, (folder / file).read_bytes())) for file in FILES],
        data={"base_model": base_model},
    )
    if answer.is_error:
        raise SeedFailed(f"the adapter {name} was refused: {answer.text}")
    version: dict[str, Any] = answer.json()
    if answer.status_code == HTTPStatus.ACCEPTED:
        version = await _looked_into(client, version["id"], headers)
    return version


async def _looked_into(
    client: httpx.AsyncClient, upload: str, headers: dict[str, str]
) -> dict[str, Any]:
    """The version that an upload becomes once a worker has checked it."""
    while True:
        answer = await client.get(f"/api/v1/uploads/{upload}", headers=headers)
        body = answer.raise_for_status().json()
        if body["problem"]:
            raise SeedFailed(f"the adapter {body['adapter']} was refused: {body['problem']}")
        if body["version"]:
            version: dict[str, Any] = body["version"]
            return version
        await asyncio.sleep(POLL_S)
