"""The installation under test: PostgreSQL, Redis, gateways, agents, console, workers and a trainer
as real processes."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import psycopg
import redis.asyncio

import demo
from gateway.database import redis_command
from gateway.local.postgres import DATA, Postgres, account_to_run, programs
from gateway.start import SECRETS
from tests.labs.chaos.judging.facts import DRAINED, Kill, Life
from tests.labs.chaos.plan import CONSOLE, ENGINES, GATEWAYS, POOLERS, TRAINER, WORKERS, Strike
from tests.labs.chaos.processes import ROOT, Actor, Program, Ready, running
from tests.labs.chaos.relay import Relay
from tests.stack.running import command_of

HOST = "127.0.0.1"
READY_S = 600.0
"""Seconds to wait for a process; on a very busy machine a gateway takes a minute, vLLM several."""
ANSWER_S = 1.0
DRAIN_S = 30
SHORT_DRAIN_S = 1
"""For gateways if only those die: shorter than most answers, so that the rest continues
elsewhere."""
NOTICE_S = 1
AGENTS_DRAIN_S = {"synthetic": 1, "vllm": 5}
"""Shorter than most answers, so that the rest moves."""
HANGS_S = ((0.5, 4.0), (11.0, 14.0))
"""Too short to be noticed, or longer than a silent link is trusted."""
STALLS_S = (16.0, 21.0)
"""For a worker: longer than its lease of a batch (`tenants.batches.leases.LEASE_S`), so that it
goes on with batches that others have taken."""
REQUEST_TIMEOUT_S = 30
MODEL, EMBEDDING = demo.MODEL_NAME, demo.EMBEDDING_NAME
TUNING_PREFIX = "ftjob-"
WITHOUT_REDIS = dict(zip(GATEWAYS, ("local", "refuse"), strict=True))
"""While Redis is unavailable, one gateway counts by itself and the other refuses."""
TOKENS_PER_SECOND = 30
"""Per stream of the synthetic engine: an answer takes a few seconds, so that kills meet it."""


@dataclass(frozen=True)
class Folders:
    """Where a run keeps its files; `root` is created for it."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def redis_socket(self) -> Path:
        return self.root / "redis" / "redis.sock"

    @property
    def records(self) -> Path:
        return self.root / "records"

    @property
    def archive(self) -> Path:
        """A copy of each agent's journal after each of its lives, `NAME-NUMBER`."""
        return self.root / "archive"

    def journal(self, agent: str) -> Path:
        return self.root / "journal" / agent

    @property
    def tenants_files(self) -> Path:
        """Also of the saved states of fine-tuning jobs, which have the names of these."""
        return self.root / "uploads" / "files"

    def log(self, name: str) -> Path:
        return self.root / "log" / f"{name}.log"

    def settings(self) -> dict[str, str]:
        """The environment of every process, including this one."""
        ours = {name: secrets.token_urlsafe(32) for name in SECRETS}
        return ours | {
            "LORIKEET_VAR": str(self.root),
            "LORIKEET_DATABASE_URL": f"postgresql://postgres@/postgres?host={self.postgres}",
            "LORIKEET_REDIS_URL": f"unix://{self.redis_socket}",
            "LORIKEET_REQUEST_TIMEOUT_S": str(REQUEST_TIMEOUT_S),
            "DJANGO_SETTINGS_MODULE": "gateway.settings",
        }


@dataclass
class Stage:
    """The running installation."""

    folders: Folders
    actors: dict[str, Actor] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    """Of each gateway, for clients."""
    console_url: str = ""
    links: dict[str, str] = field(default_factory=dict)
    """Of each gateway, for agents: its relay's."""
    relays: dict[str, Relay] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    """Of each agent."""
    kills: list[Kill] = field(default_factory=list)
    drains_s: dict[str, float] = field(default_factory=dict)
    gateways_drain_s: int = DRAIN_S
    trains: bool = True
    """Whether there is a trainer."""

    def takes_requests(self, gateway: str) -> bool:
        """As a load balancer sees it."""
        actor = self.actors[gateway]
        return actor.is_ready and actor.lives[-1].killed != DRAINED

    @property
    def lives(self) -> list[Life]:
        return [life for actor in self.actors.values() for life in actor.lives]

    def strike(self, strike: Strike, luck: random.Random) -> None:
        """Carry out the strike, if its victim runs."""
        actor, seconds = self.actors[strike.name], 0.0
        match strike.kind:
            case "backend":
                hit = self._kill_backend(actor, luck)
            case "hang":
                seconds = luck.uniform(*luck.choice(HANGS_S))
                hit = actor.hang(seconds)
            case "stall":
                seconds = luck.uniform(*STALLS_S)
                hit = actor.hang(seconds)
            case "drain" | "roll":
                hit = actor.drain()
            case "cut":
                hit = self.relays[strike.name].cut()
            case "training":
                hit = self._has_saved(actor) and actor.kill()
            case _:
                hit = actor.kill()
        if hit:
            self.kills.append(Kill(time.time(), strike.kind, strike.name, seconds))

    def _kill_backend(self, postgres: Actor, luck: random.Random) -> bool:
        """Kill the process of one connection; PostgreSQL then ends all connections and recovers."""
        if postgres.pid is None:
            return False
        try:
            children = psutil.Process(postgres.pid).children()
            backends = [one for one in children if "[local]" in "".join(command_of(one))]
            if not backends:
                return False
            luck.choice(backends).send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return False
        return True

    def _has_saved(self, trainer: Actor) -> bool:
        """Whether it trains, and a state of a job is saved from which another can go on."""
        if trainer.pid is None or not any(self.folders.tenants_files.glob(f"{TUNING_PREFIX}*")):
            return False
        try:
            return bool(psutil.Process(trainer.pid).children())
        except psutil.NoSuchProcess:
            return False

    async def until_ready(self) -> None:
        """Wait until every process serves.

        Raises:
            Failed: one does not.
        """
        for actor in self.actors.values():
            await actor.until_ready(READY_S)

    async def stop(self, names: tuple[str, ...]) -> None:
        """Stop these gracefully, all at once, and note how long each took."""
        took = await asyncio.gather(*(self.actors[name].stop() for name in names))
        self.drains_s |= dict(zip(names, took, strict=True))

    async def busy_engines(self, url: str) -> dict[str, int]:
        """Requests that run or wait on each engine, as reported by the gateway at this URL."""
        token = {"Authorization": f"Bearer {os.environ['LORIKEET_INTERNAL_TOKEN']}"}
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=READY_S) as http:
            answer = await http.get("/internal/fleet", headers=token)
            found = answer.raise_for_status().json()["engines"]
        at = url.removeprefix("http://")
        return {
            f"{engine['id']} (seen at {at})": engine["running"]
            + engine["waiting"]
            + engine["queued"]
            for engine in found
        }

    def archive(self, life: Life) -> None:
        """Copy an agent's journal after the agent ended, because its next start shortens it."""
        file = self.folders.journal(life.name) / "journal"
        if life.kind == "agent" and file.exists():
            number = len(self.actors[life.name].lives)
            shutil.copy(file, self.folders.archive / f"{life.name}-{number:04d}")


@asynccontextmanager
async def database(stage: Stage) -> AsyncIterator[None]:
    """Runs PostgreSQL in the block."""
    async with running(_actor(stage, _postgres(stage.folders))) as actor:
        await actor.until_ready(READY_S)
        yield


@asynccontextmanager
async def batches(stage: Stage) -> AsyncIterator[None]:
    """Runs the console, the workers and the trainer in the block, once they are ready."""
    programs = [_console(stage), *(_worker(stage, name) for name in WORKERS)]
    if stage.trains:
        programs.append(_trainer(stage))
    async with AsyncExitStack() as stack:
        for program in programs:
            await stack.enter_async_context(running(_actor(stage, program)))
        await stage.until_ready()
        yield


@asynccontextmanager
async def installation(stage: Stage, engine: str) -> AsyncIterator[None]:
    """Runs Redis, gateways and agents in the block, once they are ready."""
    *ports, console = _free_ports(2 * len(GATEWAYS) + 1)
    stage.console_url = _url(console)
    own, relayed = ports[: len(GATEWAYS)], ports[len(GATEWAYS) :]
    stage.urls = dict(zip(GATEWAYS, map(_url, own), strict=True))
    stage.links = dict(zip(GATEWAYS, map(_url, relayed), strict=True))
    stage.relays = {name: Relay((HOST, port)) for name, port in zip(GATEWAYS, own, strict=True)}
    programs = [
        _redis(stage.folders),
        *(_gateway(stage, name) for name in GATEWAYS),
        *(_agent(stage, name, engine) for name in ENGINES),
    ]
    async with AsyncExitStack() as stack:
        for name, port in zip(GATEWAYS, relayed, strict=True):
            await stack.enter_async_context(stage.relays[name].listening(HOST, port))
        for program in programs:
            await stack.enter_async_context(running(_actor(stage, program)))
        await stage.until_ready()
        yield


def _actor(stage: Stage, program: Program) -> Actor:
    program.log.parent.mkdir(exist_ok=True)
    actor = stage.actors[program.name] = Actor(program, stage.archive)
    return actor


# --- programs ------------------------------------------------------------------------------------


def _postgres(folders: Folders) -> Program:
    """The embedded PostgreSQL, run directly here so that it can be killed."""
    Postgres(folders.postgres).initialise()

    async def answers() -> bool:
        try:
            async with await psycopg.AsyncConnection.connect(
                host=str(folders.postgres), user="postgres", dbname="postgres", connect_timeout=2
            ) as connection:
                await connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    command = [str(programs() / "postgres"), "-D", DATA, "-h", "", "-k", "."]
    # Only processes die here, not the machine, so data handed to the kernel stays. With fsync each
    # recovery would first write every file to disk, for seconds.
    command += ["-c", "fsync=off"]
    return Program(
        "postgres",
        "postgres",
        command,
        folders.log("postgres"),
        answers,
        user=account_to_run(),
        folder=folders.postgres,
        stop_signal=signal.SIGINT,  # fast shutdown: does not wait for clients
    )


def _redis(folders: Folders) -> Program:
    async def answers() -> bool:
        client = redis.asyncio.Redis(unix_socket_path=str(folders.redis_socket))
        try:
            return bool(await client.ping())
        except (redis.asyncio.RedisError, OSError):
            return False
        finally:
            await client.aclose()

    command = redis_command(folders.redis_socket)
    return Program("redis", "redis", command, folders.log("redis"), answers)


def _gateway(stage: Stage, name: str) -> Program:
    url = stage.urls[name]
    command = [sys.executable, str(ROOT / "manage.py"), "gateway"]
    command += ["--port", url.rpartition(":")[2], "--notice", str(NOTICE_S)]
    command += ["--drain", str(stage.gateways_drain_s)]
    command += ["--url", stage.links[name]]
    settings = {
        "LORIKEET_LIMITS_WITHOUT_REDIS": WITHOUT_REDIS[name],
        "LORIKEET_CONSOLE_INTERNAL_URL": stage.console_url,
    }
    return Program(name, "gateway", command, stage.folders.log(name), _answers(url), settings)


def _answers(url: str) -> Ready:
    async def answers() -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
                return (await client.get(f"{url}/healthz")).status_code == 200
        except httpx.HTTPError:
            return False

    return answers


def _console(stage: Stage) -> Program:
    port = stage.console_url.rpartition(":")[2]
    command = [sys.executable, str(ROOT / "manage.py"), "console", "--port", port]
    ready = _answers(stage.console_url)
    return Program(CONSOLE, "console", command, stage.folders.log(CONSOLE), ready)


def _worker(stage: Stage, name: str) -> Program:
    command = [sys.executable, "-m", "tests.labs.chaos.worker"]
    return _of_jobs(stage, name, "worker", command)


def _trainer(stage: Stage) -> Program:
    command = [sys.executable, str(ROOT / "manage.py"), "trainer"]
    settings = {
        "LORIKEET_BASE_MODELS": f"{MODEL}={demo.BASE}",
        "LORIKEET_TUNING_SAVE_S": "1",
        "LORIKEET_TUNING_THREADS": "1",
    }
    return _of_jobs(stage, TRAINER, "trainer", command, **settings)


def _of_jobs(stage: Stage, name: str, kind: str, command: list[str], **settings: str) -> Program:
    """A program that runs background jobs and says in a file when it is ready."""
    file = stage.folders.root / f"{name}.ready"

    async def works() -> bool:
        began = stage.actors[name].lives[-1].began
        return file.exists() and file.stat().st_mtime > began

    settings |= {"LORIKEET_READY_FILE": str(file), "PYTHONPATH": str(ROOT / "platform")}
    return Program(name, kind, command, stage.folders.log(name), works, settings)


SYNTHETIC = [
    "--engine", "synthetic", "--tokens-per-second", str(TOKENS_PER_SECOND), "--max-num-seqs", "64",
]  # fmt: skip
GENERATE = {
    "synthetic": SYNTHETIC,
    "vllm": ["--engine", "vllm", "--max-num-seqs", "16", "--kv-bytes", "64M"],
}  # fmt: skip
POOL = [*SYNTHETIC, "--runner", "pooling"]
"""Synthetic beside any generating engine: four of vLLM are too many for a small machine."""


def _agent(stage: Stage, name: str, engine: str) -> Program:
    folders, pools = stage.folders, name in POOLERS
    options = {
        "--id": name,
        "--gateway": ",".join(stage.links.values()),
        "--journal-dir": folders.journal(name),
        "--cache-dir": folders.root / "cache" / name,
        "--model": demo.EMBEDDING if pools else demo.BASE,
        "--served-name": EMBEDDING if pools else MODEL,
        "--drain": AGENTS_DRAIN_S["synthetic" if pools else engine],
    }
    command = [sys.executable, "-m", "tests.labs.chaos.agent", str(folders.records)]
    command += [str(part) for option in options.items() for part in option]

    async def generates() -> bool:
        """Whether its engine has started: then the recorder has created a file."""
        return (folders.records / f"{name}-{stage.actors[name].pid}.jsonl").exists()

    credential = {"LORIKEET_ENGINE_CREDENTIAL": stage.credentials[name]}
    command = [*command, *(POOL if pools else GENERATE[engine])]
    return Program(name, "agent", command, folders.log(name), generates, credential)


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
