"""The outcomes of a gateway's requests are in the database, at the latest when the gateway ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from channels.db import database_sync_to_async

from gateway.planes.inference import InferenceParts, application
from tenants.models import ApiKey, RefusedRequest, TotalHour
from tests.tenants.making import make_base, make_key, make_tenant

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def running() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a whole gateway that lacks only the listener."""
    app = application(InferenceParts.configured())
    said: asyncio.Queue[Any] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()
    told.put_nowait({"type": "lifespan.startup"})
    living = asyncio.create_task(app({"type": "lifespan"}, told.get, said.put))
    assert (await said.get())["type"] == "lifespan.startup.complete"
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        yield client
    told.put_nowait({"type": "lifespan.shutdown"})
    assert (await said.get())["type"] == "lifespan.shutdown.complete"
    await living


def keys() -> tuple[tuple[ApiKey, str], tuple[ApiKey, str]]:
    """A valid key, and a revoked one of another tenant."""
    make_base()
    good, revoked = make_key(make_tenant("acme")), make_key(make_tenant("globex"))
    revoked[0].revoke()
    return good, revoked


async def test_refusals_of_known_keys_are_kept_and_those_of_strangers_are_not(
    transactional_db: None,
) -> None:
    (good, text), (revoked, ended) = await database_sync_to_async(keys)()
    asked = {"model": "nothing", "messages": [{"role": "user", "content": "hi"}]}
    async with running() as client:
        answers = {}
        for name, key in {
            "good": text,
            "revoked": ended,
            "wrong": text[:-5] + "wrong",
            "stranger": f"lk_{'z' * 12}_{'z' * 43}",
            "nobody": "",
        }.items():
            headers = {"Authorization": f"Bearer {key}"}
            answers[name] = await client.post(CHAT, json=asked, headers=headers)
    assert [one.status_code for one in answers.values()] == [404, 401, 401, 401, 401]
    ids = {one.headers["x-request-id"].removeprefix("req_"): name for name, one in answers.items()}
    rows = await database_sync_to_async(lambda: list(RefusedRequest.objects.all()))()
    found = {ids[row.id]: row for row in rows}
    assert found.keys() == {"good", "revoked", "wrong"}
    for name, row in found.items():
        error = answers[name].json()["error"]
        assert (row.status, row.code, row.message) == (
            answers[name].status_code, error["code"], error["message"],
        )  # fmt: skip
    whose = {name: (row.tenant_id, row.key_id) for name, row in found.items()}
    acme, globex = (good.tenant_id, good.pk), (revoked.tenant_id, revoked.pk)
    assert whose == {"good": acme, "revoked": globex, "wrong": acme}
    counted = await database_sync_to_async(
        lambda: {one.tenant_id: one.requests for one in TotalHour.objects.filter(outcome="refused")}
    )()
    assert sum(counted.values()) > 0 and set(counted) == {good.tenant_id, revoked.tenant_id, None}
