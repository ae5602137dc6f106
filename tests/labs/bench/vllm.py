"""Lorikeet on real vLLM and `vllm serve`, in turns, with the same model, settings and requests."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from asgiref.sync import sync_to_async

import demo
from demo import smollm2
from gateway.local import seed
from gateway.local.supervisor import Child
from inference.agent.engines.profile import EngineProfile
from tests.labs.bench.machinery.measure import Samples, Side
from tests.labs.bench.machinery.processes import (
    CpuTime,
    cpu_of,
    engine_cpu_of,
    front_cpu_of,
    postgres_cpu_s,
)
from tests.labs.bench.machinery.report import Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet, peers

STREAMS = 32
TOKENS = 96
"""Output tokens of each stream."""
CPU_TARGET, SPEED_TARGET = 0.6, 1.0
MAX_CPU_LORAS = 16
"""The default of `manage.py engine`."""

SEQUENCES = 64
"""Concurrent sequences on both sides: twice as many as the streams need."""
DTYPE, KV_BYTES, CONTEXT = "float32", 1 << 30, 2048
"""On both sides, and enough for all sequences: each would fit itself to the machine alone."""

OURS, PEER, LEAN = "Lorikeet", "vllm serve", "lean vllm serve"
Found = dict[str, Samples]


async def run(scale: Scale) -> Report:
    """Measure streams of the base model, then (demo only) of its tenants' adapters mixed."""
    served = demo_on(scale.model)
    profile = same_profile(served)
    adapters = folders_of(served)
    async with (
        lorikeet.gateway() as gateway,
        lorikeet.engine(gateway, "engine-vllm", *options_of(profile)) as engine,
        peers.vllm_serve(profile, adapters, lean=False) as peer,
        peers.vllm_serve(profile, adapters, lean=True) as lean,
    ):
        await lorikeet.until_served(gateway, scale.key, profile.name)
        sides = {
            OURS: Side(gateway.address, _parts(gateway, engine)),
            PEER: _peer(peer),
            LEAN: _peer(lean),
        }
        rows = _rows("base", await _measure(sides, scale, [(profile.name, scale.key)]))
        if adapters:
            callers = await tenants_with_adapters(served)
            rows += _rows("adapters", await _measure(sides, scale, callers))
    return Report(f"vLLM, {STREAMS} streams of {TOKENS} tokens", rows)


def same_profile(served: demo.Demo) -> EngineProfile:
    """The settings of the engines on both sides."""
    return EngineProfile.here(
        str(served.base),
        served_name=served.model_name,
        max_cpu_loras=MAX_CPU_LORAS,
        max_num_seqs=SEQUENCES,
        dtype=DTYPE,
        kv_cache_memory_bytes=KV_BYTES,
        max_model_len=CONTEXT,
    )


def options_of(profile: EngineProfile) -> list[str]:
    """The profile as options of `manage.py engine`."""
    options = ["--model", profile.model, "--served-name", profile.name, "--dtype", DTYPE]
    options += ["--max-num-seqs", str(SEQUENCES), "--kv-bytes", str(KV_BYTES)]
    return [*options, "--max-model-len", str(CONTEXT)]


def folders_of(served: demo.Demo) -> dict[str, Path]:
    """The folder of each adapter by its name."""
    return {name: one for each in served.adapters.values() for name, one in each.items()}


def _peer(peer: peers.Peer) -> Side:
    parts = {"API server": front_cpu_of(peer.child), "core": engine_cpu_of(peer.child)}
    return Side(peer.address, parts)


def _parts(gateway: lorikeet.Gateway, engine: Child) -> dict[str, CpuTime]:
    return {
        "gateway": cpu_of(gateway.child),
        "agent": front_cpu_of(engine),
        "core": engine_cpu_of(engine),
        "PostgreSQL": postgres_cpu_s,
    }


def demo_on(model: str | None) -> demo.Demo:
    """The demo on this model's folder, by default the tiny one. Another model has no adapters."""
    if model is None:
        return demo.TINY
    if Path(model).name == smollm2.MODEL_NAME:
        return smollm2.demo_on(Path(model))
    return demo.Demo("base", Path(model), {})


async def tenants_with_adapters(served: demo.Demo) -> list[tuple[str, str]]:
    """Upload the demo's adapters as tenants do; returns each probed adapter's name with its key."""
    keys = await sync_to_async(seed.tenants)({})
    async with lorikeet.console() as console, lorikeet.worker():
        await seed.adapters(console.url, served, keys)
    return [(name, keys[slug]) for slug, folders in served.adapters.items() for name in folders]


async def _measure(sides: dict[str, Side], scale: Scale, callers: list[tuple[str, str]]) -> Found:
    """Measure every side in turns. `callers` are pairs of a model and a key that may use it."""
    requests = [
        lorikeet.chat(
            callers[i % len(callers)][0],
            f"{i}: what is the capital of Peru?",
            max_tokens=TOKENS,
            stream=True,
            key=callers[i % len(callers)][1],
        )
        for i in range(scale.engine_streams)
    ]
    turns = {name: partial(side.answer, requests, clients=STREAMS) for name, side in sides.items()}
    await take_turns(1, turns)  # the first requests load adapters and fill caches
    found = await take_turns(scale.engine_rounds, turns)
    return {name: Samples(samples) for name, samples in found.items()}


def _rows(traffic: str, found: Found) -> list[Row]:
    ours, theirs = found[OURS], found[PEER]
    cpu = ours.s_per_1000_tokens("gateway", "agent")
    peer_cpu = theirs.s_per_1000_tokens("API server")
    lean_cpu = found[LEAN].s_per_1000_tokens("API server")
    speed, peer_speed = ours.tokens_per_s(), theirs.tokens_per_s()
    unit = "CPU s/1,000 tokens"
    return [
        Row(f"{traffic}: gateway", ours.s_per_1000_tokens("gateway"), unit),
        Row(f"{traffic}: agent, without its engine core", ours.s_per_1000_tokens("agent"), unit),
        Row(f"{traffic}: API server of vllm serve", peer_cpu, unit),
        Row(f"{traffic}: gateway and agent over API server", cpu.over(peer_cpu), "x", CPU_TARGET),
        Row(f"{traffic}: API server of lean vllm serve", lean_cpu, unit),
        Row(f"{traffic}: gateway and agent over the lean one", cpu.over(lean_cpu), "x"),
        Row(f"{traffic}: PostgreSQL, not in the ratio", ours.s_per_1000_tokens("PostgreSQL"), unit),
        Row(f"{traffic}: engine core under Lorikeet", ours.s_per_1000_tokens("core"), unit),
        Row(f"{traffic}: engine core under vllm serve", theirs.s_per_1000_tokens("core"), unit),
        Row(f"{traffic}: speed of Lorikeet", speed, "tokens/s"),
        Row(f"{traffic}: speed of vllm serve", peer_speed, "tokens/s"),
        Row(f"{traffic}: speed ratio", speed.over(peer_speed), "x", at_least=SPEED_TARGET),
        Row(f"{traffic}: speed of lean vllm serve", found[LEAN].tokens_per_s(), "tokens/s"),
        Row(f"{traffic}: events per token of Lorikeet", ours.events_per_token()),
        Row(f"{traffic}: events per token of vllm serve", theirs.events_per_token()),
    ]
