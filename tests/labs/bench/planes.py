"""Pages and uploads must not affect running streams, because they have their own processes."""

from __future__ import annotations

import asyncio
import json
import os
import time
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from asgiref.sync import sync_to_async

from inference.content import CONFIG, WEIGHTS
from tenants.models import Adapter, AdapterVersion, ApiKey, BaseModel, PoolRevision, State, Tenant
from tests.adapters.checks.builder import config_bytes
from tests.environment import VAR
from tests.frontend.addresses import Page
from tests.labs.bench import pages
from tests.labs.bench.machinery.processes import PYTHON, Failed
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.machinery.servers import ENGINE_OPTIONS, MODEL
from tests.labs.bench.sides import lorikeet

GAP_RATIO = 1.2
"""Bound on the p99 gap under load over the one in quiet times."""
TOKENS_PER_SECOND = 40
"""Rate of each stream: a chunk every 25 ms."""
CLICKERS = 10
HEAVIEST = (
    "operate", "operate_requests", "operate_tenants", "operate_audit", "usage", "requests",
    "adapters", "overview",
)  # fmt: skip
ADAPTER = "planes"
RANK, WIDTH = 16, 1 << 16
"""Rank and width of the uploaded adapter; a module takes 8 MiB."""
MODULES = 60
QUIET_S = 20.0
SETTLE_S = 3.0
"""Seconds from the first streams to the first gap that counts."""
JUDGED_S = 600.0
CORES = os.cpu_count() or 1
TOKEN_CORES = "0" if CORES < 4 else ""
"""With fewer than 4 cores, the core reserved for the token path and its clients; console, worker,
PostgreSQL and this process use the rest."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work done beside the streams."""

    received_s: float
    judged_s: float
    pages_per_s: float


def _pinned(command: Sequence[str]) -> list[str]:
    return ["taskset", "-c", TOKEN_CORES, *command] if TOKEN_CORES else list(command)


async def run(scale: Scale) -> Report:
    """Measure in turn in quiet times, and beside page requests and an upload."""
    heaviest, sessions = await sync_to_async(_prepare_pages)(scale)
    archive = await asyncio.to_thread(_archive)
    quiet, busy, work = [], [], []
    with _room():
        async with _platform() as (gateway, console_url):
            await lorikeet.until_served(gateway, scale.key, MODEL)
            key = await sync_to_async(_prepare_upload)()
            for _ in range(scale.plane_rounds):
                async with _streams(gateway, scale) as found:
                    await asyncio.sleep(QUIET_S)
                quiet.append(found)
                async with _streams(gateway, scale) as found:
                    work.append(await _busy(console_url, key, archive, heaviest, sessions))
                busy.append(found)
    return _report(scale, quiet, busy, work)


def _prepare_pages(scale: Scale) -> tuple[list[Page], dict[str, str]]:
    tenant, clients = pages.crowded(scale)
    heaviest = [page for page in pages.asked(tenant) if page.name in HEAVIEST]
    return heaviest, pages.sessions_of(clients)


@contextmanager
def _room() -> Iterator[None]:
    """Keep other processes off the token path's core while the context runs, if it has one."""
    pid = int((VAR / "postgres" / "postmaster.pid").read_text().split()[0])
    postmaster = psutil.Process(pid)
    moved = [psutil.Process(), postmaster, *postmaster.children()] if TOKEN_CORES else []
    for process in moved:
        process.cpu_affinity([core for core in range(CORES) if str(core) != TOKEN_CORES])
    try:
        yield
    finally:
        for process in moved:
            with suppress(psutil.NoSuchProcess):
                process.cpu_affinity(list(range(CORES)))


@asynccontextmanager
async def _platform() -> AsyncIterator[tuple[lorikeet.Gateway, str]]:
    """A gateway with an engine, a console and a worker; the console's address."""
    pace = ["--tokens-per-second", str(TOKENS_PER_SECOND)]
    gateway_command, engine_command = _pinned(lorikeet.GATEWAY), _pinned(lorikeet.ENGINE)
    async with (
        lorikeet.gateway("gateway-planes", command=gateway_command) as gateway,
        lorikeet.console() as console,
        lorikeet.worker(),
        lorikeet.engine(gateway, "engine-planes", *ENGINE_OPTIONS, *pace, command=engine_command),
    ):
        yield gateway, console.url


@asynccontextmanager
async def _streams(gateway: lorikeet.Gateway, scale: Scale) -> AsyncIterator[dict[str, float]]:
    """Run streams inside the context; afterwards the yielded dict has the figures of their gaps."""
    host, port = gateway.address
    options = {"host": host, "port": port, "model": MODEL, "streams": scale.plane_streams}
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [*PYTHON, "-m", "tests.labs.bench.machinery.gaps", *given]
    process = await asyncio.create_subprocess_exec(
        *_pinned(command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "BENCH_KEY": scale.key},
    )
    found: dict[str, float] = {}
    try:
        await asyncio.sleep(SETTLE_S)
        yield found
    finally:
        said, _ = await process.communicate(b"")  # without input, Python 3.11 leaves stdin open
    if process.returncode:
        raise Failed("the streams broke")
    found |= json.loads(said)


# --- Load beside the streams ---------------------------------------------------------------------


async def _busy(
    url: str, key: str, archive: Path, wanted: Sequence[Page], sessions: Mapping[str, str]
) -> Work:
    """Request pages until an upload was received, unpacked and checked."""
    answered = 0

    async def click(start: int) -> None:
        nonlocal answered
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as client:
            for page in cycle([*wanted[start:], *wanted[:start]]):
                answer = await client.get(page.url, cookies=pages.cookies_of(page, sessions))
                if answer.status_code != 200:
                    raise Failed(f"{page} answered {answer.status_code}")
                answered += 1

    began = time.monotonic()
    clickers = [asyncio.create_task(click(n * len(wanted) // CLICKERS)) for n in range(CLICKERS)]
    try:
        received_s = await _upload(url, key, archive)
        await _until_judged()
    finally:
        for clicker in clickers:
            clicker.cancel()
        ended = await asyncio.gather(*clickers, return_exceptions=True)
    for failure in ended:
        if isinstance(failure, Exception):
            raise failure
    judged_s = time.monotonic() - began
    await sync_to_async(Adapter.objects.filter(name=ADAPTER).delete)()
    return Work(received_s, judged_s, answered / judged_s)


async def _upload(url: str, key: str, archive: Path) -> float:
    """Send the archive; returns seconds until the answer."""
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=JUDGED_S) as client:
        with archive.open("rb") as file:
            answer = await client.post(
                f"/api/v1/adapters/{ADAPTER}/versions",
                headers={"Authorization": f"Bearer {key}"},
                files={"files": (archive.name, file)},
                data={"base_model": MODEL},
            )
    if answer.status_code not in (201, 202):
        raise Failed(f"the upload was answered {answer.status_code}: {answer.text}")
    return time.monotonic() - began


async def _until_judged() -> None:
    """Wait until the check reached the adapter's last value, which is the only invalid one.

    Raises:
        Failed: the check found anything else.
    """
    named = AdapterVersion.objects.filter(adapter__name=ADAPTER)
    async with asyncio.timeout(JUDGED_S):
        while True:
            version = await named.afirst()
            if version is not None and version.state != State.VALIDATING:
                break
            await asyncio.sleep(0.2)
    codes = [finding["code"] for finding in version.report.get("findings", [])]
    if codes != ["not_finite"]:
        raise Failed(f"the adapter is {version.state}: {version.report}")


def _prepare_upload() -> str:
    """Let the base model accept an adapter of this size; returns a key to upload it with."""
    paths = (_path(number) for number in range(MODULES))
    takes: dict[str, Any] = {"modules": {path: [WIDTH, WIDTH] for path in paths}}
    takes["max_lora_rank"] = RANK
    BaseModel.objects.filter(name=MODEL).update(**takes)
    PoolRevision.objects.filter(base_model__name=MODEL).update(**takes)
    tenant = Tenant.objects.get(slug="bench")
    return ApiKey.objects.issue(tenant, name="planes", scopes=["adapters:write"])[1]


def _path(number: int) -> str:
    return f"model.layers.{number}.mlp.wide_proj"


def _archive() -> Path:
    """A zip archive of a 500 MB adapter whose last value is NaN."""
    target = VAR / "planes.zip"
    names = [
        f"base_model.model.{_path(number)}.lora_{side}.weight"
        for number in range(MODULES)
        for side in "AB"
    ]
    each = 4 * RANK * WIDTH
    header = json.dumps(
        {
            name: {
                "dtype": "F32",
                "shape": [RANK, WIDTH] if "lora_A" in name else [WIDTH, RANK],
                "data_offsets": [each * at, each * (at + 1)],
            }
            for at, name in enumerate(names)
        }
    ).encode()
    config = config_bytes(base_model_name_or_path=MODEL, r=RANK, target_modules=["wide_proj"])
    random = np.random.default_rng(1)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(CONFIG, config)
        with archive.open(WEIGHTS, "w", force_zip64=True) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for number in range(len(names)):
                values = random.standard_normal(RANK * WIDTH, dtype=np.float32)
                values[-1] = np.nan if number == len(names) - 1 else values[-1]
                file.write(values.tobytes())
    return target


def _report(
    scale: Scale,
    quiet: Sequence[Mapping[str, float]],
    busy: Sequence[Mapping[str, float]],
    work: Sequence[Work],
) -> Report:
    before = Figure.of([found["p99"] for found in quiet])
    beside = Figure.of([found["p99"] for found in busy])
    where = (
        f"{CORES} cores: gateway, engine and the streams' clients on core {TOKEN_CORES}, all else "
        "on the rest"
        if TOKEN_CORES
        else f"{CORES} cores, nothing pinned"
    )
    return Report(
        f"{scale.plane_streams} streams beside {CLICKERS} people and an upload of 500 MB",
        [
            Row("p50 between chunks, quiet", Figure.of([one["p50"] for one in quiet]), "ms"),
            Row("p50 between chunks, beside", Figure.of([one["p50"] for one in busy]), "ms"),
            Row("p99 between chunks, quiet", before, "ms"),
            Row("p99 between chunks, beside", beside, "ms"),
            Row("p99 beside over quiet", beside.over(before), at_most=GAP_RATIO),
            Row("longest gap, quiet", Figure.of([one["max"] for one in quiet]), "ms"),
            Row("longest gap, beside", Figure.of([one["max"] for one in busy]), "ms"),
            Row("upload answered after", Figure.of([one.received_s for one in work]), "s"),
            Row("unpacked and checked after", Figure.of([one.judged_s for one in work]), "s"),
            Row("pages", Figure.of([one.pages_per_s for one in work]), "pages/s"),
        ],
        f"{where}; load average {os.getloadavg()[1]:.1f}.",
    )
