"""The cost of traffic over more adapters than the engine has slots, on real vLLM."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copyfile
from statistics import median

import httpx
from asgiref.sync import sync_to_async
from safetensors.numpy import load_file, save_file

import demo
from gateway.local import seed
from inference.content import CONFIG, WEIGHTS
from tenants.models import ApiKey, Tenant
from tests.labs.bench.fairness import p99
from tests.labs.bench.machinery.measure import Sample, Samples, Side
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet
from tests.labs.bench.vllm import KV_BYTES

BASE = demo.MODEL_NAME
SLOTS = 4
"""Adapters in one batch of the engine."""
IN_USE = (4, 5, 6, 8)
"""Adapters that the traffic uses, up to twice as many as there are slots."""
LOADED = (SLOTS, 16)
"""Adapters loaded at once: only those in slots, or twice as many as the traffic uses, in host
memory."""
CLIENTS, TOKENS = 16, 48
Model = tuple[str, str]
"""An adapter's name and a key that may use it."""


async def run(scale: Scale) -> Report:
    """Measure streams over 4, 5, 6 and 8 adapters on 4 slots, in turns."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for loaded in LOADED:
            rows += await _with_loaded(loaded, scale, Path(folder))
    return Report(
        f"{CLIENTS} streams of {TOKENS} tokens over more adapters than {SLOTS} slots, on vLLM",
        rows,
        f"Every stream asks for another adapter than the one before. {SLOTS} loaded: an adapter is "
        f"read from its files again whenever it comes back; {LOADED[1]} loaded: it is in memory.",
    )


async def _with_loaded(loaded: int, scale: Scale, folder: Path) -> list[Row]:
    options = ["--model", str(demo.BASE), "--served-name", BASE]
    options += ["--max-loras", str(SLOTS), "--max-cpu-loras", str(loaded)]
    # All streams run at once, beside the places that an engine keeps for newcomers.
    options += ["--max-num-seqs", str(2 * CLIENTS), "--kv-cache-memory-bytes", str(KV_BYTES)]
    async with (
        lorikeet.gateway("gateway-thrash") as gateway,
        lorikeet.engine(gateway, f"engine-thrash-{loaded}", *options),
    ):
        await lorikeet.until_served(gateway, scale.key, BASE)
        adapter_keys = await sync_to_async(keys)(f"thrash-{loaded}", IN_USE[-1])
        async with lorikeet.console() as console, lorikeet.worker():
            models = await upload(console.url, adapter_keys, folder, demo.TINY)
        side = Side(gateway.address, {})
        turns = {
            str(count): partial(_turn, side, models[:count], scale.thrash_streams)
            for count in IN_USE
        }
        await take_turns(1, turns)
        found = await take_turns(scale.thrash_rounds, turns)
    return _rows(loaded, {count: Samples(found[str(count)]) for count in IN_USE})


async def _turn(side: Side, models: list[Model], streams: int) -> Sample:
    """Measure streams over these models, each of which was asked before: the slots hold none of the
    turn before."""
    await side.answer(_requests(models, len(models)), clients=1)
    return await side.answer(_requests(models, streams), clients=CLIENTS)


def keys(prefix: str, count: int) -> list[str]:
    """Keys of as many new tenants: each has one adapter."""
    scopes = ["inference", "adapters:write"]
    tenants = [Tenant.objects.create(slug=f"{prefix}-{i}", name=prefix) for i in range(count)]
    return [ApiKey.objects.issue(one, name="bench", scopes=scopes)[1] for one in tenants]


async def upload(url: str, keys: list[str], folder: Path, served: demo.Demo) -> list[Model]:
    """Upload an adapter for each tenant through the API; all are ready when this returns."""
    models = [(f"adapter-{i}", key) for i, key in enumerate(keys)]
    source = next(iter(served.adapters[demo.TENANTS[0].slug].values()))
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for i, (name, key) in enumerate(models):
            variant = _variant(source, folder / name, i)
            tasks.create_task(seed.adapter(client, key, name, variant, served.model_name))
    return models


def _variant(source: Path, folder: Path, number: int) -> Path:
    """A copy of an adapter, with weights scaled by 1 % per `number`."""
    folder.mkdir(exist_ok=True)
    copyfile(source / CONFIG, folder / CONFIG)
    weights = load_file(source / WEIGHTS)
    save_file({name: one * (1 + number / 100) for name, one in weights.items()}, folder / WEIGHTS)
    return folder


def _requests(models: list[Model], streams: int) -> list[bytes]:
    return [
        lorikeet.chat(
            models[i % len(models)][0],
            f"{i}: what is the capital of Peru?",
            max_tokens=TOKENS,
            stream=True,
            key=models[i % len(models)][1],
        )
        for i in range(streams)
    ]


def _rows(loaded: int, found: dict[int, Samples]) -> list[Row]:
    rows: list[Row] = []
    for count, samples in found.items():
        what = f"{loaded} loaded, {count} in use"
        rows += [
            Row(f"{what}: p50 TTFT", _ttft_ms(samples, median), "ms"),
            Row(f"{what}: p99 TTFT", _ttft_ms(samples, p99), "ms"),
            Row(f"{what}: speed", samples.tokens_per_s(), "tokens/s"),
        ]
    resident, most = found[IN_USE[0]], found[IN_USE[-1]]
    what = f"{loaded} loaded, {IN_USE[-1]} in use over {IN_USE[0]}"
    ratio = _ttft_ms(most, p99).over(_ttft_ms(resident, p99))
    return [
        *rows,
        Row(f"{what}: p99 TTFT", ratio, "x"),
        Row(f"{what}: speed", most.tokens_per_s().over(resident.tokens_per_s()), "x"),
    ]


def _ttft_ms(samples: Samples, of: Callable[[list[float]], float]) -> Figure:
    return samples.of(lambda one: 1000 * of(one.tally.firsts_s))
