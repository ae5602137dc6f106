"""A console queries every live gateway over its internal interface."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async

from gateway.planes.internal import Internal
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.gateway.measuring.history import History
from inference.interfaces.directory import Limits
from tenants.fleet.gateways import HttpGateways
from tenants.limits.failover import Failover
from tenants.limits.limiter import StoreLimiter
from tenants.limits.memory import MemoryStore
from tests.adapters.servers import serving
from tests.inference.rig import Rig, rig
from tests.inference.samples import MODEL
from tests.tenants.making import NoBudgets

TOKEN = "i" * 40
LIMITS = Limits("t1", "tenant `acme`", {"requests_per_minute": 10, "concurrent_streams": 3})


@dataclass
class Stage:
    """Two gateways, the first with an engine, and a console that queries both and a dead one."""

    rig: Rig
    histories: list[History]
    gateways: HttpGateways
    urls: list[str]


@asynccontextmanager
async def stage(root: Path, **options: Any) -> AsyncIterator[Stage]:
    engine = SyntheticEngine(MODEL)
    limiter = StoreLimiter(Failover(MemoryStore()), NoBudgets(), "usd")
    histories = [History(), History()]
    dead = f"http://127.0.0.1:{_unused_port()}"
    async with rig(root, engine=engine) as made:
        hub = made.gateway.hub
        async with (
            serving(Internal(TOKEN, hub, limiter, histories[0])) as first,
            serving(Internal(TOKEN, hub, limiter, histories[1])) as second,
        ):
            urls = [first, second, dead]
            gateways = HttpGateways(TOKEN, lambda: urls, **options)
            yield Stage(made, histories, gateways, urls)
            gateways.close()
    await engine.close()


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


async def test_every_engine_is_told_once_and_who_does_not_answer_is_named(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        found = await sync_to_async(here.gateways.fleet)()
        assert [one["id"] for one in found.engines] == ["engine-1"]
        assert found.engines[0] == here.rig.gateway.hub.snapshot()[0]
        assert found.silent == here.urls[2:] and not found.limits_degraded


async def test_what_was_told_is_kept_for_a_moment(tmp_path: Path) -> None:
    async with stage(tmp_path, fresh_s=3600.0) as here:
        first = await sync_to_async(here.gateways.fleet)()
        here.urls.clear()
        assert await sync_to_async(here.gateways.fleet)() is first


async def test_a_gateway_that_hangs_is_waited_for_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        async with stage(tmp_path, answer_s=0.3, fresh_s=0.0) as here:
            here.urls[2] = f"http://127.0.0.1:{hanging.getsockname()[1]}"
            found = await sync_to_async(here.gateways.fleet)()
            assert (len(found.engines), found.silent) == (1, here.urls[2:])
            hanging.setblocking(False)
            hanging.accept()[0].close()
            again = await sync_to_async(here.gateways.fleet)()
            assert again.silent == found.silent
            with pytest.raises(BlockingIOError):
                hanging.accept()


async def test_the_past_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        here.histories[0].note(here.rig.gateway.hub.snapshot(), time.time())
        (point,) = await sync_to_async(here.gateways.history)()
        assert point.loads.keys() == {"engine-1"}


async def test_what_each_counts_by_itself_is_added_up(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        used = await sync_to_async(here.gateways.used)(LIMITS)
        assert used == {"requests_per_minute": 0, "concurrent_streams": 0}
        assert await sync_to_async(here.gateways.used)(replace(LIMITS, scope_id="t2")) == used


async def test_an_engine_is_drained(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        assert not await sync_to_async(here.gateways.drain)("engine-9")
        assert await sync_to_async(here.gateways.drain)("engine-1")
        (engine,) = (await sync_to_async(here.gateways.fleet)()).engines
        assert engine["draining"]


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", "/internal/fleet", TOKEN, 200),
        ("GET", "/internal/fleet", "lk_" + "x" * 40, 401),
        ("GET", "/internal/fleet", "", 401),
        ("GET", "/internal/fleet", "é" * 40, 401),
        ("GET", "/internal/sauna", "", 401),
        ("GET", "/internal/sauna", TOKEN, 404),
        ("GET", "/internal/drain", TOKEN, 405),
        ("POST", "/internal/drain", TOKEN, 400),
        ("POST", "/internal/limits", TOKEN, 400),
    ],
)
async def test_only_consoles_are_answered(
    tmp_path: Path, method: str, path: str, token: str, status: int
) -> None:
    async with (
        stage(tmp_path) as here,
        httpx.AsyncClient(base_url=here.urls[0], timeout=60) as client,
    ):
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        answer = await client.request(method, path, headers=headers, content=b"{}")
        assert answer.status_code == status
