"""Lorikeet's peers: `vllm serve`, and vllm-router, LiteLLM and Portkey in front of a server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.local.supervisor import Child
from inference.agent.engines.profile import EngineProfile
from tests.environment import ROOT, VAR
from tests.labs.bench.machinery.client import Address
from tests.labs.bench.machinery.processes import HOST, PYTHON, free_port, running, url_of

LITELLM = ROOT / ".venv-clients" / "litellm" / "bin" / "litellm"
"""Installed by `make .venv-clients/litellm/.ready`: its dependencies exclude ours."""
PORTKEY = ROOT.joinpath(
    ".venv-clients", "portkey", "node_modules", "@portkey-ai", "gateway", "build", "start-server.js"
)
"""Installed by `make .venv-clients/portkey/.ready`."""
LITELLM_KEY = "sk-only-for-benchmarks-only-for-benchmarks"


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server."""

    address: Address
    child: Child


@asynccontextmanager
async def server(app: str, tokens_per_second: float = 0.0) -> AsyncIterator[Peer]:
    """`echo` or `mock` of `tests.labs.bench.machinery.servers`."""
    address = (HOST, free_port())
    command = [*PYTHON, "-m", "tests.labs.bench.machinery.servers", app, "--port", str(address[1])]
    command += ["--tokens-per-second", str(tokens_per_second)]
    async with running(app, command, f"{url_of(address)}/health") as child:
        yield Peer(address, child)


@asynccontextmanager
async def router(worker: Peer) -> AsyncIterator[Peer]:
    """vllm-router in front of one worker, with its cheapest policy and quiet logs."""
    address = (HOST, free_port())
    command = [*PYTHON, "-m", "vllm_router.launch_router", "--worker-urls", url_of(worker.address)]
    command += ["--host", HOST, "--port", str(address[1]), "--prometheus-port", str(free_port())]
    command += ["--policy", "round_robin", "--log-level", "warning"]
    async with running("vllm-router", command, f"{url_of(address)}/health") as child:
        yield Peer(address, child)


@asynccontextmanager
async def litellm(worker: Peer, models: Sequence[str]) -> AsyncIterator[Peer]:
    """LiteLLM's proxy in front of one worker, with quiet logs, one process and no database: it
    knows a single key and bills nothing."""
    address = (HOST, free_port())
    upstream = {"api_base": f"{url_of(worker.address)}/v1", "api_key": "none"}
    listed = [
        {"model_name": name, "litellm_params": {"model": f"hosted_vllm/{name}", **upstream}}
        for name in models
    ]
    config = VAR / "litellm.json"  # YAML too
    config.write_text(json.dumps({"model_list": listed}))
    command = [str(LITELLM), "--config", str(config), "--host", HOST, "--port", str(address[1])]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    quiet["LITELLM_MASTER_KEY"] = LITELLM_KEY
    ready = f"{url_of(address)}/health/liveliness"
    async with running("litellm", command, ready, quiet) as child:
        yield Peer(address, child)


@asynccontextmanager
async def portkey(worker: Peer) -> AsyncIterator[Peer]:
    """Portkey's open gateway, on Node.js. Requests name their server, so `worker` is not needed."""
    address = (HOST, free_port())
    command = ["node", str(PORTKEY), f"--port={address[1]}", "--headless"]
    async with running("portkey", command, url_of(address)) as child:
        yield Peer(address, child)


@asynccontextmanager
async def vllm_serve(
    profile: EngineProfile, adapters: dict[str, Path], *, lean: bool
) -> AsyncIterator[Peer]:
    """`vllm serve` with this profile; `lean` leaves out its statistics and access log."""
    address = (HOST, free_port())
    command = [*PYTHON, "-m", "tests.labs.bench.sides.vllm_serve", "serve", profile.model]
    command += ["--host", HOST, "--port", str(address[1]), *_flags(profile)]
    if lean:
        command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    if adapters:
        command += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
    async with running("vllm-serve", command, f"{url_of(address)}/health") as child:
        yield Peer(address, child)


def _flags(profile: EngineProfile) -> list[str]:
    """The profile as options of `vllm serve`, with those that Lorikeet's engine always sets."""
    values = {
        "--served-model-name": profile.name,
        "--dtype": profile.dtype,
        "--max-model-len": profile.max_model_len,
        "--max-loras": profile.max_loras,
        "--max-cpu-loras": profile.max_cpu_loras,
        "--max-lora-rank": profile.max_lora_rank,
        "--max-num-seqs": profile.max_num_seqs,
        "--kv-cache-memory-bytes": profile.kv_cache_memory_bytes,
        "--block-size": profile.block_size,
        "--distributed-executor-backend": profile.executor,
        "--scheduling-policy": "priority",
    }
    flags = ["--enable-lora", "--enable-prefix-caching"]
    flags += ["--enforce-eager"] if profile.enforce_eager else []
    for name, value in values.items():
        flags += [] if value is None else [name, str(value)]
    return flags
