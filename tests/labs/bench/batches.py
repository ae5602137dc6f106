"""A batch of short lines compared with the same requests sent directly, and its effect on another
tenant that asks one question at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import httpx
from asgiref.sync import sync_to_async

from tenants.models import ApiKey, Batch, Tenant
from tests.labs.bench.fairness import Contest, p99
from tests.labs.bench.machinery.load import drive
from tests.labs.bench.machinery.processes import Failed, cpu_of, postgres_cpu_s
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.machinery.servers import MODEL
from tests.labs.bench.sides import lorikeet

SEATS, PACE, TOKENS = 128, 40, 8
"""The engine's concurrent streams, tokens per second of each, tokens of each line: 640 lines a
second, which leaves some of two cores idle."""
CLIENTS = 2 * SEATS
"""Clients of the direct load: as many requests wait as run."""
LEAST, MOST_TTFT = 0.9, 1.1
UPLOAD_S, ENDED_S = 120.0, 1_800.0


@dataclass(slots=True)
class Found:
    """Results by round: lines per second, seconds of TTFT, CPU milliseconds per line."""

    direct: list[float] = field(default_factory=list)
    run: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    quiet: list[list[float]] = field(default_factory=list)
    beside: list[list[float]] = field(default_factory=list)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)


async def run(scale: Scale) -> Report:
    """Send the same requests from one program and as a batch.

    Raises:
        Failed: a line was not answered, or not billed once.
    """
    found, count = Found(), scale.batch_lines
    victim = await sync_to_async(_victim)()
    requests = [
        lorikeet.chat(MODEL, _text(number), max_tokens=TOKENS, key=scale.key)
        for number in range(count)
    ]
    async with _platform() as (gateway, client, parts):
        await lorikeet.until_served(gateway, scale.key, MODEL)
        contest = Contest(gateway.address, MODEL, [victim], scale.key, 0)
        await contest.ask(scale.questions)  # the first questions look up keys
        billed = await sync_to_async(lorikeet.billed)(scale.key)
        for number in range(scale.batch_rounds):
            found.quiet.append(await contest.ask(scale.questions))
            tally = await drive(gateway.address, requests, clients=CLIENTS)
            found.direct.append(count / tally.wall_s)
            before = {name: read() for name, read in parts.items()}
            batch, beside = await _batch(client, contest, scale)
            found.beside.append(beside)
            for name, read in parts.items():
                used = 1e3 * (read() - before[name]) / count
                found.cpu_ms.setdefault(name, []).append(used)
            found.run.append(count / _seconds(batch.in_progress_at, batch.finalizing_at))
            found.whole.append(count / _seconds(batch.created_at, batch.ended_at))
            requested = billed["requests"] + 2 * count * (number + 1)
            await lorikeet.until_billed(scale.key, requested)
    return _report(scale, found)


def _victim() -> str:
    tenant = Tenant.objects.create(slug="bench-victim", name="Victim")
    return ApiKey.objects.issue(tenant, name="bench", scopes=["inference"])[1]


def _text(number: int) -> str:
    return f"{number}: hello"


@asynccontextmanager
async def _platform() -> AsyncIterator[tuple[lorikeet.Gateway, httpx.AsyncClient, dict[str, Any]]]:
    """A gateway with an engine, a console and a worker; its client, and readers of CPU seconds."""
    options = ["--engine", "synthetic", "--model", MODEL]
    options += ["--max-num-seqs", str(SEATS), "--tokens-per-second", str(PACE)]
    async with (
        lorikeet.console() as console,
        lorikeet.gateway("gateway-batches", LORIKEET_CONSOLE_INTERNAL_URL=console.url) as gateway,
        lorikeet.worker() as worker,
        lorikeet.engine(gateway, "engine-batches", *options),
        httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=UPLOAD_S) as client,
    ):
        parts = {"gateway": cpu_of(gateway.child), "worker": cpu_of(worker)}
        yield gateway, client, parts | {"PostgreSQL": postgres_cpu_s}


async def _batch(
    client: httpx.AsyncClient, contest: Contest, scale: Scale
) -> tuple[Batch, list[float]]:
    """Run a batch to its end; returns it, and the TTFT of questions asked meanwhile.

    Raises:
        Failed: not all of its lines were answered, or it ended before all questions were asked.
    """
    headers = {"Authorization": f"Bearer {scale.key}"}
    content = await asyncio.to_thread(_lines, scale.batch_lines)
    upload = {"file": ("lines.jsonl", content)}
    answer = await client.post(
        "/v1/files", headers=headers, files=upload, data={"purpose": "batch"}
    )
    wanted = {
        "input_file_id": answer.raise_for_status().json()["id"],
        "endpoint": lorikeet.CHAT,
        "completion_window": "24h",
    }
    answer = await client.post("/v1/batches", headers=headers, json=wanted)
    id = answer.raise_for_status().json()["id"]
    found = partial(sync_to_async(Batch.objects.get), pk=id)
    async with asyncio.timeout(ENDED_S):
        while not (batch := await found()).completed:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        beside = await contest.ask(scale.questions)
        if (await found()).finalizing_at is not None:
            raise Failed("the batch had ended before all questions were asked")
        while (batch := await found()).ended_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    if batch.completed != scale.batch_lines:
        raise Failed(f"{batch.completed} of {scale.batch_lines} lines were answered")
    return batch, beside


def _lines(count: int) -> bytes:
    body = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    lines = (
        {
            "custom_id": str(number),
            "method": "POST",
            "url": lorikeet.CHAT,
            "body": body | {"messages": [{"role": "user", "content": _text(number)}]},
        }
        for number in range(count)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _seconds(start: Any, end: Any) -> float:
    seconds: float = (end - start).total_seconds()
    return seconds


def _report(scale: Scale, found: Found) -> Report:
    direct, run, whole = map(Figure.of, (found.direct, found.run, found.whole))
    quiet, beside = (
        {of: Figure.of([1e3 * of(round) for round in rounds]) for of in (median, p99)}
        for rounds in (found.quiet, found.beside)
    )
    return Report(
        f"A batch of {scale.batch_lines:,} lines, synthetic engine of {SEATS} streams",
        [
            Row("sent directly", direct, "lines/s"),
            Row("as a batch, from its first line to its last", run, "lines/s"),
            Row("batch over direct", run.over(direct), "x", at_least=LEAST),
            Row("batch, from its making to its files", whole, "lines/s"),
            Row("the same over direct", whole.over(direct), "x"),
            Row("another tenant's p50 TTFT, quiet", quiet[median], "ms"),
            Row("the same beside the batch", beside[median], "ms"),
            Row("p50 beside over quiet", beside[median].over(quiet[median]), "x", MOST_TTFT),
            Row("another tenant's p99 TTFT, quiet", quiet[p99], "ms"),
            Row("the same beside the batch", beside[p99], "ms"),
            *(Row(f"CPU of {name}", Figure.of(used), "ms/line")
              for name, used in found.cpu_ms.items()),
        ],
        f"{PACE} tokens/s of each stream, {TOKENS} tokens a line; every line was billed once.",
    )  # fmt: skip
