"""What `GET /v1/models` says of a model besides its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from anthropic import AsyncAnthropic, NotFoundError

from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.gateway.models import pricing
from inference.interfaces.directory import TokenPrice
from inference.link.engine_info import AdapterRef
from inference.operations.registry import OPERATIONS
from tests.inference.rig import agent_on, gateway, until
from tests.inference.samples import MODEL

ABLE = msgspec.structs.replace(
    MODEL, operations=["chat", "tokenize"], parsers={"tool": "hermes"}, structured_outputs=True
)


@pytest.mark.parametrize(
    ("micros", "shown"), [(0, "0"), (150_000, "0.15"), (3_000_000, "3"), (1, "0.000001")]
)
def test_prices_are_exact(micros: int, shown: str) -> None:
    assert pricing(TokenPrice(micros, 0, 10 * micros), "eur")["prompt"] == shown


async def test_it_tells_what_its_engines_can_and_could_last(tmp_path: Path) -> None:
    async with gateway() as one, one.client() as client:

        async def card() -> dict[str, Any]:
            (found,) = (await client.get("/v1/models")).json()["data"]
            assert (await client.get(f"/v1/models/{MODEL.name}")).json()["id"] == found["id"]
            return dict(found)

        assert "operations" not in await card(), "nobody has said yet"
        for name, info in (("a", ABLE), ("b", msgspec.structs.replace(MODEL, operations=["chat"]))):
            (tmp_path / name).mkdir()
            engine = SyntheticEngine(info)
            async with agent_on(engine, tmp_path / name, [one], id=name):
                assert (await card())["operations"][0] == "/v1/chat/completions"
            await engine.close()
            await until(lambda: not one.hub.snapshot())
        last = await card()
        assert last["operations"] == ["/v1/chat/completions"]
        assert last["capabilities"]["tools"] is False


async def test_several_engines_tell_it_together(tmp_path: Path) -> None:
    plain = msgspec.structs.replace(MODEL, operations=[one.name for one in OPERATIONS])
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    async with gateway() as one, one.client() as client:
        async with agent_on(SyntheticEngine(ABLE), folders[0], [one], id="a"):
            async with agent_on(SyntheticEngine(plain), folders[1], [one], id="b"):
                await until(lambda: len(one.hub.snapshot()) == 2)
                (found,) = (await client.get("/v1/models")).json()["data"]
    assert found["operations"] == [one.path for one in OPERATIONS]
    can = {"tools": True, "reasoning": False, "structured_outputs": True, "vision": False}
    assert found["capabilities"] == can


async def test_a_list_is_the_same_whatever_its_query_and_with_a_slash() -> None:
    async with gateway() as one, one.client() as client:
        whole = (await client.get("/v1/models")).json()
        for rest in (
            "/",
            "?limit=1000",
            "?after_id=a&before_id=b",
            "?owned_by=me",
            "?limit=1&limit=1",
        ):
            assert (await client.get(f"/v1/models{rest}")).json() == whole, rest


async def test_anthropics_sdk_gets_its_own_shape(tmp_path: Path) -> None:
    async with gateway() as one, agent_on(SyntheticEngine(ABLE), tmp_path, [one], id="a"):
        one.keys.adapters["acme", "aa"] = AdapterRef("acme/aa@" + "d" * 64, "d" * 64)
        async with one.client() as client:
            listed = (await client.get("/v1/models")).json()["data"]
        async with AsyncAnthropic(base_url=one.url, api_key="acme", max_retries=0) as sdk:
            page = await sdk.models.list()
            (first, *_) = page.data
            assert [model.id for model in page.data] == [card["id"] for card in listed]
            assert (page.has_more, page.first_id) == (False, first.id)
            assert (await sdk.models.retrieve(first.id)).id == first.id
            assert first.display_name == first.id
            assert first.created_at.timestamp() == listed[0]["created"]
            with pytest.raises(NotFoundError) as caught:
                await sdk.models.retrieve("nothing")
    assert caught.value.body["type"] == "error"  # type: ignore[index]
