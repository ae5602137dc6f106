"""One real engine for this folder, a synthetic one, and a random model with its adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.agent.engines.vllm import environment  # noqa: F401  sets variables before torch is imported
from tests.engine.adapter_servers import AdapterServer, listening
from tests.engine.factory import MAX_MODEL_LEN, AdapterFactory, make_base

SLOTS, MAX_LOADED = 4, 6


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama."""
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def factory(base: Path, tmp_path_factory: pytest.TempPathFactory) -> AdapterFactory:
    """Creates adapters for `base`."""
    return AdapterFactory(base, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def profile(base: Path) -> EngineProfile:
    """The profile of all engines."""
    return EngineProfile.on_cpu(
        str(base),
        served_name="tiny",
        max_model_len=MAX_MODEL_LEN,
        max_loras=SLOTS,
        max_cpu_loras=MAX_LOADED,
        max_num_seqs=32,
        kv_cache_memory_bytes=16 << 20,
        tool_parser="hermes",
    )


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def vllm(profile: EngineProfile) -> AsyncIterator[Engine]:
    """The real engine of this folder. Tests must leave no adapter loaded."""
    from inference.agent.engines.vllm.engine import VLLMEngine

    engine = await VLLMEngine.start(profile)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def synthetic(profile: EngineProfile) -> AsyncIterator[Engine]:
    """The synthetic engine of this folder."""
    engine = SyntheticEngine.of(profile)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def upstream(profile: EngineProfile, factory: AdapterFactory) -> AsyncIterator[Engine]:
    """An engine whose server loads adapters, as vLLM's does."""
    async with listening(AdapterServer()) as server:
        slots = replace(profile, max_loras=MAX_LOADED)
        folder = PurePosixPath(factory.folder)
        engine = await UpstreamEngine.start(slots, server.url, "", adapters=folder)
        yield engine
        await engine.close()


@pytest.fixture(scope="package", params=["synthetic", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each kind of engine in turn."""
    found: Engine = request.getfixturevalue(request.param)
    return found
