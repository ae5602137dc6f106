"""With their tickets, engines get the files of versions that they may serve, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from inference.agent.adapters.store import AdapterStore, HttpFetch
from inference.content import CONFIG, FILES, TICKET_HEADER, WEIGHTS
from inference.errors import AdapterUnavailable
from inference.gateway.fleet.dispatches import Dispatches
from inference.interfaces.credentials import EngineIdentity
from tenants.adapters import store
from tenants.adapters.files import CHUNK_BYTES, AdapterFiles
from tenants.database import Database
from tenants.models import Adapter, AdapterVersion, BaseModel, State, Tenant
from tests.adapters.servers import serving
from tests.adapters.test_jobs import kept
from tests.inference.rig import ENGINE, SECRET, KnownEngines
from tests.inference.samples import DISPATCH_KEY

pytestmark = pytest.mark.django_db(transaction=True)
DISPATCHES = Dispatches(DISPATCH_KEY)
OTHER, OTHERS_SECRET = EngineIdentity(8, "other"), "o" * 40


def files(database: Database) -> AdapterFiles:
    """The endpoint of adapter files; it knows two engines, each with its own credential."""
    engines = KnownEngines()
    engines.known[OTHERS_SECRET] = OTHER
    return AdapterFiles(engines, DISPATCHES, database)


def shown(version: AdapterVersion) -> dict[str, str]:
    """The headers of the engine to which this version was dispatched: credential and ticket."""
    ticket = DISPATCHES.ticketed(version.ref, ENGINE.id).ticket
    return {"Authorization": f"Bearer {SECRET}", TICKET_HEADER: ticket}


CONTENT = {CONFIG: b'{"r": 1}', WEIGHTS: bytes(range(256)) * (CHUNK_BYTES // 100)}


@pytest.fixture
def version(tenant: Tenant, base_model: BaseModel, storage: Any) -> AdapterVersion:
    adapter = Adapter.objects.create(tenant=tenant, name="pirate", base_model=base_model)
    version = kept(adapter, CONTENT[CONFIG], CONTENT[WEIGHTS])
    version.advance(State.PROBING)
    return AdapterVersion.objects.select_related("adapter__tenant").get(pk=version.pk)


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    database = Database("files")
    await database.open()
    yield database
    await database.close()


def _move(version: AdapterVersion, state: State) -> None:
    AdapterVersion.objects.filter(pk=version.pk).update(state=state)
    connection.close()


def path_of(version: AdapterVersion, name: str) -> str:
    return f"/engine/adapters/{version.digest}/{name}"


async def test_files_are_served_while_the_engine_may_have_them(
    version: AdapterVersion, database: Database
) -> None:
    async with (
        serving(files(database)) as url,
        httpx.AsyncClient(base_url=url, headers=shown(version), timeout=60) as client,
    ):
        for state in State:
            await sync_to_async(_move)(version, state)
            answer = await client.get(path_of(version, WEIGHTS))
            if state in (State.PROBING, State.READY):
                assert (answer.status_code, answer.content) == (200, CONTENT[WEIGHTS])
            else:
                assert answer.status_code == 404, state


async def test_only_what_is_asked_for_rightly(version: AdapterVersion, database: Database) -> None:
    async with (
        serving(files(database)) as url,
        httpx.AsyncClient(base_url=url, headers=shown(version), timeout=60) as client,
    ):
        config = path_of(version, CONFIG)
        head = await client.head(config)
        assert (head.status_code, head.headers["content-length"]) == (200, "8")
        posted = await client.post(config)
        assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
        for token in ("", "Bearer", "Bearer wrong", f"Bearer {SECRET}x"):
            answer = await client.get(config, headers={"Authorization": token})
            assert answer.status_code == 401, token
        for ticket in ("", "x" * 32, shown(version)[TICKET_HEADER][:-1]):
            answer = await client.get(config, headers={TICKET_HEADER: ticket})
            assert (answer.status_code, answer.content[:12]) == (403, b"This adapter"), ticket
        another = config.replace(version.digest, "0" * 64)
        assert (await client.get(another)).status_code == 403, "its ticket is another one"
        others = {"Authorization": f"Bearer {OTHERS_SECRET}"}
        assert (await client.get(config, headers=others)).status_code == 403, "so is another's"
        for path in (
            path_of(version, "adapter_model.bin"),
            path_of(version, "../" + CONFIG),
            path_of(version, CONFIG).upper(),
            config + "/",
            config.replace(version.digest, version.digest[:63]),
            config.replace(version.digest, f"%2e%2e/{version.adapter.tenant.slug}"),
        ):
            assert (await client.get(path)).status_code == 404, path
        await sync_to_async(store.remove)(version.folder)
        assert (await client.get(config)).status_code == 404, "its file is gone"


async def test_agent_fetches_it(
    version: AdapterVersion, tmp_path: Path, database: Database
) -> None:
    ref = DISPATCHES.ticketed(version.ref, ENGINE.id)
    fetch, stranger = HttpFetch(SECRET), HttpFetch("other")
    async with serving(files(database)) as url:
        async with AdapterStore(tmp_path / "cache", 1 << 24, fetch) as cache:
            folder = await cache.get(ref, url)
            assert {name: (folder / name).read_bytes() for name in FILES} == CONTENT
        async with AdapterStore(tmp_path / "cache2", 1 << 24, stranger) as cache:
            with pytest.raises(AdapterUnavailable, match="answered 401"):
                await cache.get(ref, url)
        async with AdapterStore(tmp_path / "cache3", 1 << 24, fetch) as cache:
            with pytest.raises(AdapterUnavailable, match="answered 403"):
                await cache.get(version.ref, url)
    await fetch.aclose()
    await stranger.aclose()
