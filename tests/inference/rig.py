"""The token path of a gateway and an agent in one process, over real sockets, on a synthetic
engine."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path, re_path

from inference.agent.agent import Agent
from inference.agent.engines.engine import Engine, LocalAdapter
from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.agent.journal.journal import Journal
from inference.content import FILES
from inference.errors import InferenceError, InvalidApiKey, UnknownModel
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.exchanges.callers import Callers
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.health import Health
from inference.gateway.http import ROUTE, OpenAIServer
from inference.gateway.hub import Hub
from inference.gateway.requests.requests import KEPT_BYTES
from inference.gateway.responses_socket import ResponsesSocket
from inference.gateway.sockets import EngineProbe, EngineSocket, EngineStartFailed, NoSocket
from inference.interfaces.credentials import EngineIdentity
from inference.interfaces.directory import (
    Grant,
    Limits,
    ModelCard,
    ResolvedTarget,
    TrafficRoute,
    TrafficSplit,
)
from inference.interfaces.ledger import Recorder, Source, Written
from inference.link.accounts import LedgerEntry
from inference.link.engine_info import AdapterRef, EngineStats
from tests.inference.answers import MemoryAnswers, MemoryConversations, MemoryResponses
from tests.inference.limits import Counted
from tests.inference.samples import DISPATCH_KEY, MODEL
from tests.servers import PromptServer

SECRET = "c" * 40
ENGINE = EngineIdentity(7, "engine")
WORKER_TOKEN = "w" * 40
INTERNAL_TOKEN = "s" * 40
HANGS_S = 60.0
"""Seconds. A step of a test that takes this long would never end."""
SLOW = Behaviour(tokens_per_second=200.0)
STALLED = Behaviour(stall_after_tokens=0)
"""A request runs until the test sets another behaviour."""


class Keys:
    """A Directory in memory. A key is `<tenant>` or `<tenant>:<scope>`. Tests add the adapters."""

    def __init__(self) -> None:
        self.base_model = MODEL.name
        self.max_model_len = 0
        """Context length of the base model; 0 if unknown."""
        self.adapters: dict[tuple[str, str], AdapterRef] = {}
        self.splits: dict[tuple[str, str], TrafficSplit] = {}
        """By tenant and adapter."""
        self.routes: dict[tuple[str, str], TrafficRoute] = {}
        """By tenant and name."""
        self.weights: dict[str, float] = {}
        """By tenant; the default is 1."""
        self.limits: tuple[Limits, ...] = ()
        """Of every adapter."""
        self.revoke: Callable[[int, InferenceError], None] = lambda key, error: None
        self.revoked: set[str] = set()
        self.tenants = {4: "acme", 6: "globex"}
        """By the id of their key."""
        self.keeping: set[str] = set()
        """Tenants whose prompts and answers are stored."""
        self.repairing: set[str] = set()
        """Tenants whose malformed answers are asked for again."""
        self.overflowing: set[str] = set()
        """Tenants whose prompts may leave the installation."""
        self.lookups: Counter[str] = Counter()
        """How often `key` and `model` were looked up."""

    async def authenticate(self, secret: str) -> Grant:
        self.lookups["key"] += 1
        tenant, _, scope = secret.partition(":")
        if tenant not in ("acme", "globex") or secret in self.revoked:
            raise InvalidApiKey
        id, weight = len(tenant), self.weights.get(tenant, 1.0)
        scopes = frozenset({scope or "inference"})
        return Grant(
            id, id, tenant, scopes, None, weight, f"salt-{tenant}", key=f"of-{tenant}",
            keeps_content=tenant in self.keeping, repairs=tenant in self.repairing,
            overflows=tenant in self.overflowing,
        )  # fmt: skip

    async def grant_of(self, key_id: int) -> Grant:
        return await self.authenticate(self.tenants.get(key_id, "nobody"))

    async def resolve(self, grant: Grant, name: str) -> ResolvedTarget:
        self.lookups["model"] += 1
        if name == self.base_model:
            return ResolvedTarget(name, name, max_model_len=self.max_model_len)
        if ref := self.adapters.get((grant.tenant, name)):
            split = self.splits.get((grant.tenant, name))
            return ResolvedTarget(name, self.base_model, ref, 1, limits=self.limits, split=split)
        if route := self.routes.get((grant.tenant, name)):
            return ResolvedTarget(name, self.base_model, route=route)
        raise UnknownModel(f"The model `{name}` does not exist.", param="model")

    async def cascade(self, grant: Grant, name: str) -> TrafficRoute | None:
        route = self.routes.get((grant.tenant, name))
        return route if route is not None and route.sure_from is not None else None

    async def models(self, grant: Grant) -> list[ModelCard]:
        own = [name for tenant, name in self.adapters if tenant == grant.tenant]
        names = [self.base_model, *own]
        return [ModelCard(name, 1, grant.tenant, self.base_model) for name in names]

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        self.revoke = callback


class KnownEngines:
    """Engine credentials in memory, by secret."""

    def __init__(self) -> None:
        self.known = {SECRET: ENGINE}

    def identify(self, secret: str) -> EngineIdentity:
        if secret not in self.known:
            raise InvalidApiKey
        return self.known[secret]

    def holds(self, credential: EngineIdentity) -> bool:
        return credential in self.known.values()


class Ledger:
    """A Recorder in memory that keeps the entry of each request's highest attempt. `settled` waits
    for entries. While `away` is set, nothing is recorded or acknowledged."""

    def __init__(self) -> None:
        self.entries: dict[str, LedgerEntry] = {}
        self.quarantined: list[tuple[Source, LedgerEntry, str]] = []
        self.reported: dict[str, EngineStats] = {}
        self.away = False
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        if self.away:
            return
        for entry in entries:
            known = self.entries.get(entry.id, entry)
            assert entry == known or entry.attempt != known.attempt
            if entry.attempt >= known.attempt:
                self.entries[entry.id] = entry
        written([(entry.id, entry.attempt) for entry in entries])
        task = asyncio.ensure_future(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def quarantine(
        self, source: Source, suspects: Sequence[tuple[LedgerEntry, str]], written: Written
    ) -> None:
        self.quarantined += [(source, entry, reason) for entry, reason in suspects]
        written([(entry.id, entry.attempt) for entry, _ in suspects])

    def totals(self, engine_id: str, stats: EngineStats) -> None:
        self.reported[engine_id] = stats

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def settled(self, count: int = 1) -> list[LedgerEntry]:
        async with asyncio.timeout(HANGS_S), self._news:
            await self._news.wait_for(lambda: len(self.entries) >= count)
        return sorted(self.entries.values(), key=lambda entry: entry.id)


class Folders:
    """A Store that has every adapter: the folder in `given`, else empty files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pins: dict[str, int] = {}
        self.given: dict[str, Path] = {}
        """By digest: folders of adapters that lie elsewhere."""
        self.arrived = asyncio.Event()
        """While cleared, files are still being fetched."""
        self.arrived.set()

    @asynccontextmanager
    async def ahead(self, ref: AdapterRef, source: str) -> AsyncIterator[None]:
        await self.arrived.wait()
        yield

    @asynccontextmanager
    async def pinned(self, ref: AdapterRef, source: str) -> AsyncIterator[Path]:
        await self.arrived.wait()
        if (folder := self.given.get(ref.digest)) is None:
            folder = self.root / ref.digest
            folder.mkdir(exist_ok=True)
            for name in FILES:
                (folder / name).touch()
        self.pins[ref.digest] = self.pins.get(ref.digest, 0) + 1
        try:
            yield folder
        finally:
            self.pins[ref.digest] -= 1


@dataclass
class Gateway:
    """One gateway process's token path, listening on loopback."""

    hub: Hub
    engines: KnownEngines
    keys: Keys
    ledger: Ledger
    limits: Counted
    answers: MemoryAnswers
    stored: MemoryResponses
    conversations: MemoryConversations
    server: PromptServer
    url: str
    dispatcher: Dispatcher

    def client(self, key: str = "acme") -> httpx.AsyncClient:
        from tests.document import conforming  # only where it is used: it loads two SDKs

        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # verify=False because loading all certificate authorities takes longer than a whole
        # request.
        return httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=120,
            verify=False,
            event_hooks={"response": [conforming.seen_later]},
        )


@asynccontextmanager
async def gateway(**options: Any) -> AsyncIterator[Gateway]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    keys, ledger, limits = Keys(), Ledger(), Counted()
    recorder: Recorder = options.pop("recorder", ledger)
    answers = options.pop("answers", None) or MemoryAnswers()
    stored = options.pop("stored", None) or MemoryResponses()
    conversations = MemoryConversations()
    engines = KnownEngines()
    hub = Hub(
        url,
        recorder,
        limits,
        engines=engines,
        dispatches=Dispatches(DISPATCH_KEY),
        holding=options.pop("holding", None),
        kept_bytes=options.pop("kept_bytes", KEPT_BYTES),
        overflow=options.pop("overflow", None),
        prefill=options.pop("prefill", None),
    )
    keys.on_revoked(hub.end_streams)

    async def connected() -> bool:
        return bool(hub.snapshot())

    given = {"timeout_s": 300.0, "grace_s": 0.0, "tracer": None}
    dispatched = {name: options.pop(name, default) for name, default in given.items()}
    dispatcher = Dispatcher(hub, keys, limits, **dispatched)
    bounds: dict[str, Any] = {"max_body_bytes": 100_000, "secret": INTERNAL_TOKEN}
    server = OpenAIServer(
        dispatcher,
        keys,
        limits,
        answers=answers,
        stored=stored,
        conversations=conversations,
        **(bounds | options),
    )
    responses = ResponsesSocket(
        server,
        Callers(keys, limits),
        hub.closed,
        kept_bytes=1 << 20,
    )
    http = URLRouter(
        [
            re_path(ROUTE, server),  # type: ignore[arg-type]
            re_path(r"^(healthz|health|readyz|fleetz)$", Health({}, {"engine": connected})),  # type: ignore[arg-type]
            path("engine/failed", EngineStartFailed(hub, engines)),  # type: ignore[arg-type]
            path("engine/probe", EngineProbe(hub, WORKER_TOKEN)),  # type: ignore[arg-type]
        ]
    )
    websocket = URLRouter(
        [
            path("ws/engine", EngineSocket(hub, engines)),  # type: ignore[arg-type]
            path("v1/responses", responses),  # type: ignore[arg-type]
            re_path(r"", NoSocket()),  # type: ignore[arg-type]
        ]
    )
    config = uvicorn.Config(
        ProtocolTypeRouter({"http": http, "websocket": websocket}),
        lifespan="off",
        log_config=None,
        ws="websockets-sansio",
        ws_ping_interval=None,
        timeout_keep_alive=600,
        timeout_graceful_shutdown=1,
    )
    running = PromptServer(config)
    task = asyncio.create_task(running.serve(sockets=[listener]))
    try:
        yield Gateway(
            hub, engines, keys, ledger, limits, answers, stored, conversations, running, url,
            dispatcher,
        )  # fmt: skip
    finally:
        running.should_exit = running.force_exit = True
        with suppress(asyncio.CancelledError):
            await task
        listener.close()


@dataclass
class Rig:
    """Gateways and one agent on one engine."""

    gateways: list[Gateway]
    engine: Engine
    agent: Agent
    store: Folders
    running: asyncio.Task[None] = field(repr=False)

    @property
    def gateway(self) -> Gateway:
        return self.gateways[0]

    def adapter(self, tenant: str, name: str, version: int = 1) -> AdapterRef:
        """Give the tenant an adapter (or its next version) with empty files, and return its
        reference."""
        digest = f"{version:064x}"
        return self._give(tenant, name, AdapterRef(f"{tenant}/{name}@{digest}", digest))

    def real_adapter(self, tenant: str, name: str, local: LocalAdapter) -> AdapterRef:
        """Give the tenant this adapter."""
        self.store.given[local.ref.digest] = local.path
        return self._give(tenant, name, local.ref)

    def _give(self, tenant: str, name: str, ref: AdapterRef) -> AdapterRef:
        for one in self.gateways:
            one.keys.adapters[tenant, name] = ref
        return ref


@asynccontextmanager
async def agent_on(
    engine: Engine, root: Path, gateways: list[Gateway], **options: Any
) -> AsyncIterator[Rig]:
    """An agent that serves the gateways, once every link is open at both ends."""
    store = Folders(root)
    given: dict[str, Any] = {
        "id": "engine-1",
        "credential": SECRET,
        "max_running": 8,
        "max_resident": 4,
    }
    journal = Journal.open(root / "journal", **options.pop("journal", {}))
    agent = Agent(engine, store, journal, **(given | options))
    running = asyncio.create_task(agent.run([gateways[0].url]))
    try:
        for one in gateways:
            await connected(one)
        await until(lambda: all(link.open for link in agent._links))
        yield Rig(gateways, engine, agent, store, running)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        journal.close()


async def until(condition: Callable[[], object]) -> None:
    """Yield to the event loop until the condition holds; fails after a minute. After 100 turns it
    sleeps for a millisecond each time: a condition that takes as long waits for a timer or another
    process, and polling without sleep would use a whole core."""
    turns = itertools.count()
    async with asyncio.timeout(HANGS_S):
        while not condition():  # noqa: ASYNC110 - a running system has no event for it
            await asyncio.sleep(0 if next(turns) < 100 else 0.001)


async def connected(one: Gateway, engines: int = 1) -> None:
    """Wait until at least `engines` engines are connected to the gateway."""
    async with one.client() as client, asyncio.timeout(HANGS_S):
        while len(one.hub.snapshot()) < engines:
            await client.get("/healthz")  # a round trip through the event loop and the sockets


@asynccontextmanager
async def rig(root: Path, *, engine: Engine | None = None, **options: Any) -> AsyncIterator[Rig]:
    """One gateway and one agent, on a synthetic engine unless another engine is given."""
    async with gateway() as one:
        given = engine or SyntheticEngine(MODEL)
        one.keys.base_model = given.info.name
        async with agent_on(given, root, [one], **options) as made:
            yield made
        if engine is None:
            await given.close()


def chat(model: str = MODEL.name, content: str = "Hello there", **fields: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": model, "messages": [{"role": "user", "content": content}]} | fields
