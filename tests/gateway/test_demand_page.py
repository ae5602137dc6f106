"""The page of any gateway from which autoscalers read the demand for engines."""

from __future__ import annotations

import time
from contextlib import suppress

import httpx
import msgspec
import pytest

from gateway.planes.monitoring.demand import DemandPage
from gateway.scaling.fleet import EngineLoad, ScaledFleet, ScaledPool, UnknownFleet, ask
from inference.errors import NoEngine
from inference.gateway.fleet.demand import Demand, FleetDemand
from inference.gateway.routing.engine_state import OUTPUT_TOKENS
from tests.inference.played import Bench, benched
from tests.inference.samples import MODEL

TOKEN = "m" * 32


def page(bench: Bench, token: str = TOKEN) -> httpx.AsyncClient:
    demand = FleetDemand(bench.hub.demand, 0.0)
    demand.set_others([{"base": Demand(held=2)}], time.monotonic())
    app = DemandPage(token, bench.hub, demand)
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)


async def test_the_demand_page_requires_the_token() -> None:
    async with benched() as bench:
        async with page(bench) as client:
            assert (await client.get("/demand", headers={"Authorization": "x"})).status_code == 401
            assert (await client.post("/demand")).status_code == 405
        async with page(bench, "") as client:
            assert (await client.get("/demand")).status_code == 404


async def test_the_demand_page_lists_pools_and_engines() -> None:
    async with benched() as bench:
        await bench.join()
        bench.submit()
        async with page(bench) as client:
            told = (await client.get("/demand")).json()
            of_pool = (await client.get("/demand?pool=base")).json()
            stopped = (await client.get("/demand?pool=another")).json()
    assert told["pools"]["base"] | {"pool": "base"} == of_pool
    assert (of_pool["running"], of_pool["held"], of_pool["demand"]) == (1, 2, 3)
    assert [(one["pool"], one["load"]) for one in told["engines"]] == [("base", OUTPUT_TOKENS)]
    assert stopped["demand"] == stopped["engines"] == 0


def test_the_next_gateway_is_asked_where_one_does_not_tell() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "dead":
            raise httpx.ConnectError("refused")
        if request.url.host == "new":
            return httpx.Response(503)
        pools = {"base": {"demand": 3, "engines": 1, "held": 2}}
        engines = [{"id": "e1", "pool": "base", "load": 3, "draining": False}]
        return httpx.Response(200, json={"pools": pools, "engines": engines})

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        found = ask(client, ["http://dead", "http://new", "http://good"], TOKEN)
        assert found == ScaledFleet(
            {"base": ScaledPool(3, 1)}, [EngineLoad("e1", "base", 3, False)]
        )
        with pytest.raises(UnknownFleet, match="503"):
            ask(client, ["http://dead", "http://new"], TOKEN)


async def test_a_request_without_an_engine_is_asked_of_its_pool() -> None:
    """Requests that no engine of the pool can serve don't count, because more engines would not
    help."""
    async with benched() as bench:
        with suppress(NoEngine):
            bench.submit()
        found = bench.hub.demand()["base"]
        assert (found.engines, found.held + found.unmet) == (0, 1)
    async with benched() as bench:
        await bench.join(model=msgspec.structs.replace(MODEL, operations=["another"]))
        with suppress(NoEngine):
            bench.submit()
        assert bench.hub.demand()["base"] == Demand(engines=1)
