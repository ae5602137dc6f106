"""The agent: requests of all gateways, one queue, one engine.

A request's life here: its adapter's files are fetched (ahead of admission, so that a slow fetch
holds no slot), it waits its turn in the queue, its adapter is loaded on the engine if it isn't
there, and then the engine generates. Each step's deltas go to the gateway's link. Whatever ends
it, one `done` with the final figures follows, unless the gateway itself is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
)
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import structlog

from inference import wire
from inference.agent.engine import Engine, Kind, LoadReport, LocalAdapter, Meter, Output, Work
from inference.agent.link import Link
from inference.agent.queue import Queue
from inference.agent.slots import Slots
from inference.errors import (
    GenerationTimeout,
    InferenceError,
    InvalidRequest,
    Overloaded,
)
from inference.wire import AdapterRef, Delta, Done, EngineStats, Fault, Frame, Load, Loaded, Usage

log = structlog.get_logger(__name__)

STATS_INTERVAL_S = 1.0


Task = asyncio.Task[Done | Loaded]
"""What runs a job; its result is the job's last word."""


class Store(Protocol):
    """The files of adapters on this machine."""

    def pinned(self, ref: AdapterRef, source: str) -> AbstractAsyncContextManager[Path]:
        """The folder with the checked files of this version, kept while in use.

        Fetched from the gateway `source` (a base URL) if need be.

        Raises:
            AdapterLoadFailed: they cannot be had.
        """
        ...


@dataclass(slots=True)
class Job:
    """One request or probe of one gateway. Times are of the monotonic clock, in seconds."""

    id: str
    adapter: AdapterRef | None
    link: Link | None
    """None once the gateway is gone: there is nobody left to tell."""
    is_probe: bool = False
    received_at: float = field(default_factory=time.monotonic)
    meter: Meter = field(default_factory=Meter)
    admitted_at: float | None = None
    submitted_at: float | None = None
    first_token_at: float | None = None
    announced: bool = False
    turn: asyncio.Future[None] | None = None

    def usage(self) -> Usage:
        """The figures so far."""
        now = time.monotonic()
        admitted = self.admitted_at or now
        submitted = self.submitted_at or admitted
        first = self.first_token_at
        return Usage(
            prompt_tokens=self.meter.prompt_tokens,
            cached_tokens=self.meter.cached_tokens,
            completion_tokens=self.meter.completion_tokens,
            reasoning_tokens=self.meter.reasoning_tokens,
            queue_s=admitted - self.received_at,
            load_s=submitted - admitted,
            ttft_s=None if first is None else first - self.received_at,
            total_s=now - self.received_at,
        )

    def last_word(
        self, *, finish_reason: str | None = None, fault: Fault | None = None
    ) -> Done | Loaded:
        """What the gateway hears of a job that did not end by itself."""
        if self.is_probe:
            return Loaded(self.id, {}, fault or Fault.of(Overloaded("The probe was cancelled.")))
        return Done(self.id, self.usage(), finish_reason, None, fault)


@dataclass(slots=True)
class Resident:
    """An adapter on the engine; `pin` keeps its files on disk for as long."""

    adapter: LocalAdapter
    report: LoadReport
    pin: AsyncExitStack


class Agent:
    """One engine, served to every gateway."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        id: str,
        token: str,
        max_running: int,
        max_resident: int,
        max_queued: int = 1024,
        patience_s: float = 1.0,
    ) -> None:
        """`max_running` requests on the engine at once, `max_resident` adapters loaded."""
        self.id = id
        self._engine, self._store, self._token = engine, store, token
        self._slots = Slots(active=engine.info.max_loras, resident=max_resident)
        self._queue = Queue(
            self._slots, max_running=max_running, max_queued=max_queued, patience_s=patience_s
        )
        self._links: dict[str, tuple[Link, asyncio.Task[None]]] = {}
        self._bootstrap: frozenset[str] = frozenset()
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, Task] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._resident: dict[str, Resident] = {}
        self._residency = asyncio.Lock()
        self._int_ids = itertools.count(1)
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    # --- life ------------------------------------------------------------------------------------

    async def run(self, gateways: Iterable[str]) -> None:
        """Serve the gateways (base URLs, and every other that they name) until the engine dies."""
        self._bootstrap = frozenset(gateways)
        self._follow([])
        try:
            while self._engine.alive:
                await asyncio.sleep(STATS_INTERVAL_S)
                self._publish()
                self._admit()  # patience runs out without any other event
        finally:
            for _, task in self._links.values():
                task.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Take no new work, finish what runs, and tell every gateway so."""
        self._draining = True
        for link, _ in self._links.values():
            link.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
                for link, _ in self._links.values():
                    await link.flushed()
        except TimeoutError:
            log.warning("drain_cut_short", requests=len(self._jobs))

    # --- what links ask (link.Owner) -------------------------------------------------------------

    def hello(self) -> wire.Hello:
        """What to greet a gateway with."""
        return wire.Hello(
            wire.OLDEST_VERSION,
            wire.PROTOCOL_VERSION,
            self.id,
            self._engine.info,
            self.stats(),
        )

    def heard(self, link: Link, frame: Frame) -> None:
        """Act on a gateway's frame."""
        match frame:
            case wire.Submit() | Load():
                self._begin(Job(frame.id, frame.adapter, link, isinstance(frame, Load)), frame)
            case wire.Cancel(id=id):
                if task := self._tasks.get(id):
                    task.cancel()
            case wire.Unload(digest=digest):
                self._slots.retire(digest)
                self._spawn(self._unload_retired())
            case wire.Welcome(gateways=gateways) | wire.Gateways(gateways=gateways):
                self._follow(gateways)
            case _:
                pass

    def dropped(self, link: Link) -> None:
        """The gateway is gone, and with it everybody who waited for what it asked for."""
        for job in list(self._jobs.values()):
            if job.link is link:
                job.link = None
                self._tasks[job.id].cancel()

    def stats(self) -> EngineStats:
        """The engine's statistics with what only the agent knows."""
        return msgspec.structs.replace(
            self._engine.stats(),
            queued=len(self._queue),
            resident=[
                self._resident[d].adapter.ref.name
                for d in self._slots.resident
                if d in self._resident
            ],
        )

    # --- requests --------------------------------------------------------------------------------

    def _begin(self, job: Job, frame: wire.Submit | Load) -> None:
        self._jobs[job.id] = job
        self._idle.clear()
        task = asyncio.create_task(self._run(job, frame), name=job.id)
        self._tasks[job.id] = task
        task.add_done_callback(lambda ended: self._end(job, ended))

    async def _run(self, job: Job, frame: wire.Submit | Load) -> Done | Loaded:
        structlog.contextvars.bind_contextvars(request_id=job.id)
        if isinstance(frame, wire.Submit):
            return await self._generate(job, frame)
        return await self._probe(job, frame)

    def _end(self, job: Job, task: Task) -> None:
        """However a job ended, and be it before it began: free its place, say the last word."""
        del self._jobs[job.id], self._tasks[job.id]
        self._queue.finish(job.id)
        self._admit()
        if self._slots.to_retire():
            self._spawn(self._unload_retired())
        if job.link is not None:
            job.link.put(self._last_word(job, task))
        if not self._jobs:
            self._idle.set()

    def _last_word(self, job: Job, task: Task) -> Done | Loaded:
        if task.cancelled():
            return job.last_word(finish_reason="cancelled")
        if (error := task.exception()) is None:
            return task.result()
        if not isinstance(error, InferenceError | TimeoutError):
            log.error("job_crashed", request_id=job.id, exc_info=error)
        return job.last_word(fault=_fault_of(error))

    async def _generate(self, job: Job, frame: wire.Submit) -> Done:
        last = Output()
        async with asyncio.timeout(frame.timeout_s), self._turn(job) as adapter:
            job.submitted_at = time.monotonic()
            work = Work(
                id=job.id,
                kind=cast(Kind, frame.kind),
                body=_decode(frame.body),
                model=frame.model,
                salt=frame.salt,
                adapter=adapter,
                created=int(time.time()),
                meter=job.meter,
            )
            async with aclosing(self._engine.generate(work)) as outputs:
                async for last in outputs:
                    self._pass_on(job, last)
        return Done(job.id, job.usage(), last.finish_reason, last.response)

    def _pass_on(self, job: Job, output: Output) -> None:
        if job.first_token_at is None:
            job.first_token_at = time.monotonic()
        if job.link is None or not (output.text or output.tokens or output.chunks):
            return
        prompt = (0, 0)
        if not job.announced:
            job.announced = True
            prompt = (job.meter.prompt_tokens, job.meter.cached_tokens)
        job.link.add(Delta(job.id, output.text, output.tokens, list(output.chunks), *prompt))

    async def _probe(self, job: Job, frame: Load) -> Loaded:
        async with self._turn(job) as adapter:
            assert adapter is not None
            loaded = asdict(self._resident[adapter.ref.digest].report)
            probed = asdict(await self._engine.probe(adapter)) if frame.probe else {}
            return Loaded(job.id, probed | loaded)

    # --- turns and adapters ----------------------------------------------------------------------

    @asynccontextmanager
    async def _turn(self, job: Job) -> AsyncIterator[LocalAdapter | None]:
        """Hold a place on the engine, with the job's adapter loaded there."""
        if self._draining:
            raise Overloaded("The engine is shutting down.", retry_after_s=1)
        if job.adapter is None:
            await self._admitted(job, None)
            yield None
            return
        source = job.link.url if job.link else ""
        async with self._store.pinned(job.adapter, source):
            await self._admitted(job, job.adapter.digest)
            yield await self._loaded(job.adapter, source)

    async def _admitted(self, job: Job, digest: str | None) -> None:
        self._queue.push(job.id, digest, job.received_at)
        job.turn = asyncio.get_running_loop().create_future()
        self._admit()
        await job.turn
        job.admitted_at = time.monotonic()

    def _admit(self) -> None:
        for id in self._queue.admit(time.monotonic()):
            turn = self._jobs[id].turn
            if turn is not None and not turn.done():
                turn.set_result(None)

    async def _loaded(self, ref: AdapterRef, source: str) -> LocalAdapter:
        """The adapter, on the engine. One load or unload at a time: the engine's loop runs them
        one by one anyway, and so what is evicted is decided on the true state."""
        if (resident := self._resident.get(ref.digest)) is None:
            async with self._residency:
                resident = self._resident.get(ref.digest) or await self._load(ref, source)
        self._slots.loaded(ref.digest)
        return resident.adapter

    async def _load(self, ref: AdapterRef, source: str) -> Resident:
        for digest in self._slots.to_evict(ref.digest):
            await self._unload(digest)
        async with AsyncExitStack() as stack:
            path = await stack.enter_async_context(self._store.pinned(ref, source))
            adapter = LocalAdapter(ref, next(self._int_ids), path)
            report = await self._engine.load(adapter)
            resident = Resident(adapter, report, stack.pop_all())
        self._resident[ref.digest] = resident
        self._slots.loaded(ref.digest)
        log.info("adapter_loaded", adapter=ref.name, load_s=round(report.load_s, 3))
        self._publish()
        return resident

    async def _unload_retired(self) -> None:
        async with self._residency:
            for digest in self._slots.to_retire():
                await self._unload(digest)
        self._publish()

    async def _unload(self, digest: str) -> None:
        self._slots.unloaded(digest)
        if resident := self._resident.pop(digest, None):
            await self._engine.unload(resident.adapter)
            await resident.pin.aclose()
            log.info("adapter_unloaded", adapter=resident.adapter.ref.name)

    # --- links -----------------------------------------------------------------------------------

    def _follow(self, gateways: Iterable[str]) -> None:
        """Dial gateways that are new; leave those that are neither listed nor connected."""
        wanted = self._bootstrap | set(gateways)
        for url in wanted - self._links.keys():
            link = Link(self, url, self._token)
            link.draining = self._draining
            self._links[url] = (link, asyncio.create_task(link.run(), name=f"link {url}"))
        for url in self._links.keys() - wanted:
            link, task = self._links[url]
            if not link.open:
                task.cancel()
                del self._links[url]

    def _publish(self) -> None:
        stats = wire.Stats(self.stats())
        for link, _ in self._links.values():
            link.put(stats)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background and keep hold of it until it ends."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def default_id() -> str:
    """An engine id that is new at each start and says where the engine runs."""
    return f"{os.uname().nodename}-{os.getpid()}"


def _fault_of(error: BaseException) -> Fault:
    """An exception on the wire; one that isn't of our tree shows no detail."""
    if isinstance(error, TimeoutError):
        error = GenerationTimeout()
    if not isinstance(error, InferenceError):
        error = InferenceError("The engine had an unexpected error on this request.")
    return Fault.of(error)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
