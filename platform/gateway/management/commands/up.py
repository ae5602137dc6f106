"""`manage.py up`: a complete Lorikeet on one machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console

import demo
from demo import smollm2
from gateway import storage
from gateway.database import redis_command, redis_socket
from gateway.local import seed
from gateway.local.supervisor import Child, Supervisor
from gateway.process_secrets import environment_of
from gateway.start import MANAGE
from inference.process import environ
from tenants.fleet.gateways import gateways

RETRY_S = 1.0
READY_S = 900.0
"""Longest wait for the engine: a big model takes minutes to load."""
MENDED_PYTHON = (3, 11, 10)
"""Earlier releases hang on some cookies and archives. Lorikeet never passes such input to them, but
other programs on this machine may."""
EMBEDDER = "engine-embedding"
NICE = {"console": 5, "worker": 10, EMBEDDER: 10}
"""Niceness: people and uploads yield to token generation, the embedding engine to everything."""
QUESTION = "What is the capital of Peru?"


class Command(BaseCommand):
    help = (
        "Run everything on this machine: embedded PostgreSQL (unless LORIKEET_DATABASE_URL is "
        "set), gateways, console, worker and engines, with three demo tenants. The "
        "default of each option is read from the environment variable in parentheses. "
        "Ctrl-C stops everything in order."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--model",
            default=environ.text("LORIKEET_MODEL", ""),
            help="Hugging Face name or local folder to serve instead of the demo (LORIKEET_MODEL)",
        )
        add(
            "--demo",
            choices=(smollm2.MODEL_NAME, demo.MODEL_NAME),
            default=environ.text("LORIKEET_DEMO", smollm2.MODEL_NAME),
            help=(
                f"the demo's model: {smollm2.MODEL_NAME}, fetched once (93 MB), or "
                f"{demo.MODEL_NAME}, which is tiny and part of this repository (LORIKEET_DEMO)"
            ),
        )
        add(
            "--engines",
            type=int,
            default=environ.integer("LORIKEET_ENGINES", 1, high=64),
            help="engine agents to start; 0 if they run elsewhere (LORIKEET_ENGINES)",
        )
        add(
            "--embedding-engines",
            type=int,
            default=environ.integer("LORIKEET_EMBEDDING_ENGINES", 1, high=1),
            help=(
                "1 to start an engine for the demo's embedding model once everything else "
                "is up, 0 for none (LORIKEET_EMBEDDING_ENGINES)"
            ),
        )
        add(
            "--gateways",
            type=int,
            default=environ.integer("LORIKEET_GATEWAYS", 1, low=1, high=64),
            help="gateway processes on consecutive ports (LORIKEET_GATEWAYS)",
        )
        add(
            "--workers",
            type=int,
            default=environ.integer("LORIKEET_WORKERS", 1, high=64),
            help="worker processes (LORIKEET_WORKERS)",
        )
        add(
            "--trainers",
            type=int,
            default=environ.integer("LORIKEET_TRAINERS", 0, high=16),
            help="trainer processes, for fine-tuning jobs (LORIKEET_TRAINERS)",
        )
        add(
            "--host",
            default=environ.text("LORIKEET_HOST", "127.0.0.1"),
            help="address to listen on (LORIKEET_HOST)",
        )
        add(
            "--port",
            type=int,
            default=environ.integer("LORIKEET_PORT", 8000, low=1, high=65535),
            help=(
                "port of the first gateway; the console uses the port after the last "
                "gateway's (LORIKEET_PORT)"
            ),
        )
        add(
            "--engine-options",
            default=environ.text("LORIKEET_ENGINE_OPTIONS", ""),
            help="further options of `manage.py engine` (LORIKEET_ENGINE_OPTIONS)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            asyncio.run(_Up(options, Console(highlight=False)).run())
        except seed.SeedFailed as error:
            raise CommandError(str(error)) from None


class _Up:
    """One run of the command."""

    def __init__(self, options: dict[str, Any], console: Console) -> None:
        self.options, self.console = options, console
        self.demo = None if options["model"] else _demo(options["demo"])
        self.urls = [
            f"http://{options['host']}:{options['port'] + i}" for i in range(options["gateways"])
        ]
        self.console_address = f"http://{options['host']}:{self._console_port}"
        self.addresses = self._addresses()
        self.embeds = self.demo is not None and bool(
            options["engines"] and options["embedding_engines"]
        )
        self.logs = settings.VAR / "log"
        self.facts_file = settings.VAR / "up.json"
        self.supervisor = Supervisor(self._report)
        self.began = time.monotonic()

    @property
    def model(self) -> str:
        """What the engines load."""
        return str(self.demo.base) if self.demo else str(self.options["model"])

    @property
    def model_name(self) -> str:
        return self.demo.model_name if self.demo else Path(self.model).name

    def _report(self, text: str) -> None:
        self.console.print(text, style="red", markup=False, soft_wrap=True)

    @property
    def _console_port(self) -> int:
        port: int = self.options["port"] + self.options["gateways"]
        return port

    def _addresses(self) -> dict[str, str]:
        """The public addresses of the two planes: these processes', unless the environment names an
        ingress."""
        here = {"LORIKEET_API_URL": self.urls[0], "LORIKEET_CONSOLE_URL": self.console_address}
        return {name: os.environ.get(name, "").strip() or url for name, url in here.items()}

    async def run(self) -> None:
        """Start everything, print the facts, wait for Ctrl-C, stop."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        stopping = asyncio.create_task(stop.wait())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                await stopping
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait((working,))
            with self._step("stopping"):
                await self.supervisor.stop()

    async def _work(self) -> None:
        self._warn_of_python()
        self._require_vllm()
        self.logs.mkdir(parents=True, exist_ok=True)
        self._require_free_ports()
        fetching = asyncio.create_task(self._fetch_demo())
        tasks = [fetching]
        try:
            with self._step("database"):
                await sync_to_async(call_command)("migrate", verbosity=0)
            known = seed.Facts.read(self.facts_file)
            names = [f"engine-{i + 1}" for i in range(self.options["engines"])]
            all_names = [*names, EMBEDDER] if self.embeds else names
            credentials = await sync_to_async(seed.engines)(known, all_names)
            starting = asyncio.create_task(self._start_engines(fetching, names, credentials))
            tasks.append(starting)
            with self._step("static files"):
                await sync_to_async(storage.collect)()
            with self._step("operator and tenants"):
                operator = await sync_to_async(seed.operator)(known)
                keys = await sync_to_async(seed.tenants)(known)
            async with self._client() as client:
                with self._step(f"{len(self.urls)} gateway(s), console"):
                    await self._start_gateways_and_console(client)
                await starting
                await self._start_workers()
                if self.options["engines"]:
                    await self._await_engines(client, keys)
        finally:
            for task in tasks:
                task.cancel()
        facts = self._facts(operator, keys, credentials)
        facts.write(self.facts_file)
        self._tell(facts)
        if self.embeds:
            async with self._client() as client:
                await self._start_embedding(client, keys, credentials[EMBEDDER])

    async def _fetch_demo(self) -> None:
        """Fetch and convert the demo's model unless it is there. Without it the tiny one is
        served."""
        if self.demo is None or self.demo.base.exists():
            return
        began = time.monotonic()
        self.console.print(f"            {self.model_name}: fetching and converting it, once ...")
        fetch = [*MANAGE, "fetch_demo", "--out", str(self.demo.base)]
        process = await asyncio.create_subprocess_exec(
            *fetch, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode == 0:
            self._tell_step(began, f"{self.model_name} fetched and converted")
            return
        lines = errors.decode(errors="replace").strip().splitlines() or ["it ended early"]
        self.demo = demo.TINY
        self.console.print(
            f"{lines[-1].removeprefix('CommandError: ')}\nServing the tiny {self.model_name} "
            "instead; the next start tries again.",
            style="yellow", markup=False, soft_wrap=True,
        )  # fmt: skip

    def _warn_of_python(self) -> None:
        if sys.version_info < MENDED_PYTHON:
            self.console.print(
                f"Python {sys.version.split()[0]} has vulnerabilities that are fixed in "
                "3.11.10 (CVE-2024-7592, CVE-2024-6232). Upgrade it.",
                style="yellow",
                markup=False,
            )

    def _require_vllm(self) -> None:
        kind = _engine_of(self.options["engine_options"]) or "vllm"
        if self.options["engines"] and kind == "vllm" and find_spec("vllm") is None:
            raise seed.SeedFailed(
                "vLLM is not installed: install lorikeet[cpu,demo] or lorikeet[gpu,demo]"
            )

    def _require_free_ports(self) -> None:
        for url in (*self.urls, self.console_address):
            host, port = str(urlsplit(url).hostname), int(urlsplit(url).port or 0)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError as error:
                    reason = f"cannot listen on {host}:{port} ({error.strerror})"
                    raise seed.SeedFailed(f"{reason}: set PORT to another port") from None

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(base_url=self.urls[0], timeout=120) as client:
            yield client

    async def _start_redis(self) -> dict[str, str]:
        """Start an embedded Redis if there are several gateways and no REDIS_URL."""
        if len(self.urls) == 1 or settings.REDIS_URL:
            return {}
        socket_file = redis_socket(settings.VAR)
        await self._start("redis", redis_command(socket_file))
        return {"LORIKEET_REDIS_URL": f"unix://{socket_file}"}

    async def _start_engines(
        self, fetching: asyncio.Task[None], names: list[str], credentials: Mapping[str, str]
    ) -> None:
        """Start them once the model is there: at once except on a first start, because they take
        longest."""
        await fetching
        for name in names:
            credential = {"LORIKEET_ENGINE_CREDENTIAL": credentials[name]}
            command = self._engine_command(name) + shlex.split(self.options["engine_options"])
            await self._start("engine", command, credential, name=name)

    async def _start_workers(self) -> None:
        models = {"LORIKEET_BASE_MODELS": f"{self.model_name}={self.model}"}
        for i in range(self.options["workers"]):
            await self._start("worker", [*MANAGE, "worker"], models, name=f"worker-{i + 1}")
        for i in range(self.options["trainers"]):
            await self._start("trainer", [*MANAGE, "trainer"], models, name=f"trainer-{i + 1}")

    async def _start_gateways_and_console(self, client: httpx.AsyncClient) -> None:
        redis = await self._start_redis()
        host, port = self.options["host"], self.options["port"]
        for i, url in enumerate(self.urls):
            command = [*MANAGE, "gateway", "--host", host, "--port", str(port + i), "--url", url]
            command += ["--notice", "0"]  # no load balancer in front
            await self._start("gateway", command, redis, name=f"gateway-{i + 1}")
        command = [*MANAGE, "console", "--host", host, "--port", str(self._console_port)]
        await self._start("console", command, redis)
        for url in (*self.urls, self.console_address):
            await self._until(client, f"{url}/healthz")

    async def _await_engines(self, client: httpx.AsyncClient, keys: dict[str, str]) -> None:
        with self._step(f"{self.options['engines']} engine(s) with {self.model_name}"):
            for url in self.urls:
                await self._until(client, f"{url}/fleetz")
        for sentence in await sync_to_async(self._lacks)():
            self.console.print(f"    {sentence}", style="yellow", markup=False, soft_wrap=True)
        if self.demo:
            for name in await sync_to_async(seed.forget_others)(self.demo):
                self.console.print(f"    {name} is replaced: it was for another base model")
            with self._step("demo adapters: upload, validation, probe"):
                await seed.adapters(self.console_address, self.demo, keys)
                await sync_to_async(seed.prices)(self.model_name)
        if tenant := next((one for one in demo.TENANTS if one.slug in keys), None):
            with self._step("first completion"):
                await self._complete(client, tenant, keys[tenant.slug])

    def _lacks(self) -> list[str]:
        """What engines can't do here, such as the model's whole context."""
        engines = gateways().fleet().engines
        return list(dict.fromkeys(one for engine in engines for one in engine["degraded"]))

    def _engine_command(self, name: str) -> list[str]:
        command = [*MANAGE, "engine", "--id", name]
        if name == EMBEDDER:
            command += ["--model", str(demo.EMBEDDING), "--served-name", demo.EMBEDDING_NAME]
            command += ["--runner", "pooling", "--kv-bytes", "16M"]
            command += ["--profile", "plain"]  # LORIKEET_PROFILE is the other model's
        else:
            command += ["--model", self.model, "--served-name", self.model_name]
            command += ["--tool-parser", demo.TOOL_PARSER] if self.demo else []
        command += ["--gateway", ",".join(self.urls)]
        command += ["--proofs", str(settings.VAR / "profiles")]
        command += ["--cache-dir", str(settings.VAR / "cache" / name)]
        return [*command, "--journal-dir", str(settings.VAR / "journal" / name)]

    async def _start_embedding(
        self, client: httpx.AsyncClient, keys: dict[str, str], credential: str
    ) -> None:
        """Start the embedding engine after everything else is up, and wait for it. Everything else
        works without it."""
        command = self._engine_command(EMBEDDER)
        if kind := _engine_of(self.options["engine_options"]):
            command += ["--engine", kind]
        await self._start(
            "engine", command, {"LORIKEET_ENGINE_CREDENTIAL": credential}, name=EMBEDDER
        )
        if not keys:
            return
        headers = {"Authorization": f"Bearer {next(iter(keys.values()))}"}
        with self._step(f"embeddings with {demo.EMBEDDING_NAME}"):
            while True:
                with suppress(httpx.HTTPError):
                    answer = await client.get("/v1/models", headers=headers)
                    cards = answer.raise_for_status().json()["data"]
                    if any(one["id"] == demo.EMBEDDING_NAME for one in cards):
                        break
                await asyncio.sleep(RETRY_S)
            await sync_to_async(seed.prices)(demo.EMBEDDING_NAME, seed.EMBEDDING_PRICE)

    async def _start(
        self,
        process: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        *,
        name: str = "",
    ) -> None:
        """Start a process; `name` is needed if there may be several. `environment` is added to this
        process's own."""
        name = name or process
        inside = {"LORIKEET_CONSOLE_INTERNAL_URL": self.console_address}
        whole = os.environ | inside | self.addresses | (environment or {})
        own, log = environment_of(process, whole), self.logs / f"{name}.log"
        nice = NICE.get(name, NICE.get(process, 0))
        # An engine reports its last usage to the gateways.
        child = Child(name, command, log, own, nice, drains=process == "engine")
        await self.supervisor.start(child)

    async def _until(self, client: httpx.AsyncClient, url: str) -> None:
        """Wait until the address answers 200."""
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    if (await client.get(url)).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                if child := self.supervisor.hopeless:
                    raise seed.SeedFailed(
                        f"{child.name} does not start: {child.why_it_ended()}\n"
                        f"Its log is {child.log}"
                    )
                await asyncio.sleep(0.2)

    async def _complete(self, client: httpx.AsyncClient, tenant: demo.DemoTenant, key: str) -> None:
        """A real completion of a model that the tenant may use."""
        body = {
            "model": tenant.adapter if self.demo else self.model_name,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 32,
            "temperature": 0,
        }
        headers = {"Authorization": f"Bearer {key}"}
        async with asyncio.timeout(READY_S):
            # If engines have another revision than before, a worker first tries the adapters on it.
            while True:
                answer = await client.post("/v1/chat/completions", headers=headers, json=body)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    break
                await asyncio.sleep(RETRY_S)
        if answer.is_error:
            raise seed.SeedFailed(f"the first completion failed: {answer.text}")
        text = answer.json()["choices"][0]["message"]["content"]
        self.console.print(f"    {QUESTION} -> {text}", style="dim", markup=False, soft_wrap=True)

    def _facts(
        self, operator: dict[str, str], keys: dict[str, str], credentials: dict[str, str]
    ) -> seed.Facts:
        def models(tenant: demo.DemoTenant) -> list[str]:
            return [*(self.demo.adapters[tenant.slug] if self.demo else ()), self.model_name]

        return seed.Facts(
            base_url=f"{self.addresses['LORIKEET_API_URL']}/v1",
            console_url=f"{self.addresses['LORIKEET_CONSOLE_URL']}/",
            operator=operator,
            tenants=[
                {"slug": one.slug, "api_key": keys[one.slug], "models": models(one)}
                for one in demo.TENANTS
                if one.slug in keys
            ],
            engines=credentials,
            metrics_token=settings.METRICS_TOKEN,
            embedding_model=demo.EMBEDDING_NAME if self.embeds else "",
        )

    def _tell(self, facts: seed.Facts) -> None:
        self.console.print(f"\nLorikeet is up after {time.monotonic() - self.began:.0f} s.\n")
        first = facts.tenants[:1]
        of_tenant = [
            row
            for one in first
            for row in (
                (f"key of {one['slug']}", one["api_key"]),
                ("its models", ", ".join(one["models"])),
            )
        ]
        for name, value in (
            ("console", facts.console_url),
            ("operator", f"{facts.operator['username']} / {facts.operator['password']}"),
            ("API", facts.base_url),
            ("other gateways", ", ".join(self.urls[1:])),
            *of_tenant,
            ("to embed", f"{facts.embedding_model}, soon" if facts.embedding_model else ""),
            ("all of this", str(self.facts_file)),
            ("logs", str(self.logs)),
        ):
            if value:
                self.console.print(f"  {name:<16} {value}", markup=False, soft_wrap=True)
        for one in first:
            self._tell_code(facts.base_url, one["api_key"], one["models"][0])
        self.console.print("\nCtrl-C stops everything.", style="dim")

    def _tell_code(self, url: str, key: str, model: str) -> None:
        for title, code in (("curl", CURL), ("Python", SDK)):
            text = code.format(url=url, key=key, model=model, question=QUESTION)
            self.console.print(f"\n{title}:\n\n{text}", markup=False, soft_wrap=True)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        with self.console.status(f"{name} ..."):
            yield
        self._tell_step(began, name)

    def _tell_step(self, began: float, name: str) -> None:
        self.console.print(f"[green]done[/green] {time.monotonic() - began:6.1f} s  {name}")


def _demo(name: str) -> demo.Demo:
    """The demo on the model of this name."""
    if name == demo.MODEL_NAME:
        return demo.TINY
    return smollm2.demo_on(smollm2.folder_in(settings.VAR))


def _engine_of(options: str) -> str:
    """The implementation (`--engine`) in the engines' options; empty if not given."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--engine", default="")
    kind: str = parser.parse_known_args(shlex.split(options))[0].engine
    return kind


CURL = """\
curl -N {url}/chat/completions \\
  -H "Authorization: Bearer {key}" -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "stream": true,
       "messages": [{{"role": "user", "content": "{question}"}}]}}'\
"""
SDK = """\
from openai import OpenAI
client = OpenAI(base_url="{url}", api_key="{key}")
question = [{{"role": "user", "content": "{question}"}}]
for chunk in client.chat.completions.create(model="{model}", messages=question, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)\
"""
