"""The profile check finds cached prompts that cross tenants or adapters, on a real engine."""

from __future__ import annotations

import pytest

from inference.agent.engines.engine import Engine, EngineWork
from inference.agent.profile_check.observing import crossings
from tests.engine.driving import run, work_of
from tests.engine.factory import AdapterFactory

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


async def test_no_prompt_is_found_by_another_tenant_or_adapter(
    vllm: Engine, factory: AdapterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = {"one": factory.make(), "two": factory.make()}
    for adapter in adapters.values():
        await vllm.load(adapter)
    assert await crossings(vllm, adapters) == []
    monkeypatch.setattr(EngineWork, "cache_salt", None)
    assert await crossings(vllm, adapters) == [
        "a prompt of one tenant was found in the cache by another"
    ]
    for adapter in adapters.values():
        await vllm.unload(adapter)


async def test_the_salt_that_vllm_gets_is_of_tenant_and_adapter(
    vllm: Engine, factory: AdapterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On both paths: a KV connector may key on tokens and salt alone."""
    from vllm.v1.engine.core_client import AsyncMPClient

    sent: list[str | None] = []
    add = AsyncMPClient.add_request_async

    async def adding(client: AsyncMPClient, request: object) -> None:
        sent.append(request.cache_salt)  # type: ignore[attr-defined]
        await add(client, request)

    monkeypatch.setattr(AsyncMPClient, "add_request_async", adding)
    adapter = factory.make()
    await vllm.load(adapter)
    for full in (False, True):
        for one in (None, adapter):
            work = work_of(adapter=one, max_tokens=1, stream=True, logprobs=full)
            wanted = work.cache_salt
            await run(vllm, work)
            assert sent.pop() == wanted
    await vllm.unload(adapter)
