"""One end of the engine link, against a peer that a test plays frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve

from inference.agent.agent import Agent
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.agent.journal.journal import Journal
from inference.errors import InferenceError
from inference.gateway.fleet import engine_link
from inference.gateway.fleet.dispatches import Bounds, Dispatches
from inference.gateway.hub import Hub
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.stream import Stream
from inference.interfaces.ledger import Source, Written
from inference.interfaces.limiter import Reservation, ReservationRequest
from inference.link import wire
from inference.link.accounts import NOBODY, Account, LedgerEntry, Usage
from inference.link.engine_info import AdapterRef, EngineStats, ModelInfo
from inference.link.wire import Frame
from tests.inference.limits import Counted
from tests.inference.rig import ENGINE, HANGS_S, SECRET, Folders, KnownEngines, until
from tests.inference.samples import BASE, DISPATCH_KEY, GRANT, MODEL


class Ledger:
    """A recorder that keeps what it is given, and acknowledges entries only when the test calls
    `written`."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, Sequence[LedgerEntry], Written]] = []
        self.reported: list[str] = []
        self.quarantined: list[tuple[Source, LedgerEntry, str]] = []

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        self.told.append((engine_id, journal, entries, written))

    def quarantine(
        self, source: Source, suspects: Sequence[tuple[LedgerEntry, str]], written: Written
    ) -> None:
        self.quarantined += [(source, entry, str(reason)) for entry, reason in suspects]
        written([(entry.id, entry.attempt) for entry, _ in suspects])

    def totals(self, engine_id: str, stats: EngineStats) -> None:
        self.reported.append(engine_id)


DISPATCHES = Dispatches(DISPATCH_KEY)


def given(ref: AdapterRef) -> AdapterRef:
    """The reference as it is sent to the engine, with its ticket."""
    return DISPATCHES.ticketed(ref, ENGINE.id)


MOST = Bounds(1000, 1000)


def entry(
    id: str = "r1",
    completion_tokens: int = 2,
    *,
    attempt: int = 1,
    account: Account = NOBODY,
    credential: int = ENGINE.id,
) -> LedgerEntry:
    """A ledger entry as the agent reports it, with the account that the gateway signed at
    dispatch."""
    signed = DISPATCHES.signed(account, (id, attempt), "base", credential=credential, most=MOST)
    return LedgerEntry(id, signed, "base", Usage(5, 0, completion_tokens), "stop", attempt)


class Played:
    """An engine's end of a link in memory: a Transport whose peer is the test."""

    def __init__(self) -> None:
        self._to_hub: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._from_hub: asyncio.Queue[bytes] = asyncio.Queue()
        self.writable = asyncio.Event()
        self.writable.set()
        self.closed_for: str | None = None

    async def receive(self) -> bytes | None:
        return await self._to_hub.get()

    async def send(self, message: bytes) -> None:
        await self.writable.wait()
        if not isinstance(wire.decode(message), wire.Heartbeat):  # only slow tests see one
            self._from_hub.put_nowait(message)

    async def close(self, reason: str) -> None:
        self.closed_for = reason

    def say(self, frame: Frame) -> None:
        self._to_hub.put_nowait(wire.encode(frame))

    def say_bytes(self, message: bytes) -> None:
        self._to_hub.put_nowait(message)

    @property
    def all_read(self) -> bool:
        """Whether the hub has read everything that the test sent."""
        return self._to_hub.empty()

    def hang_up(self) -> None:
        self._to_hub.put_nowait(None)

    async def hear(self) -> Frame:
        return wire.decode(await self.hear_bytes())

    async def asked(self) -> wire.Submit:
        """The next request; skips other frames."""
        while not isinstance(frame := await self.hear(), wire.Submit):
            pass
        return frame

    @property
    def all_heard(self) -> bool:
        """Whether the test has read everything that the hub sent."""
        return self._from_hub.empty()

    async def hear_bytes(self) -> bytes:
        return await self._from_hub.get()


class Bench:
    """A hub, its ledger, and engines that the test plays."""

    def __init__(self, **options: Any) -> None:
        """`options` are passed to the hub."""
        self.ledger, self.limits = Ledger(), Counted()
        self.engines = KnownEngines()
        self.hub = Hub(
            "http://gateway",
            self.ledger,
            self.limits,
            engines=self.engines,
            dispatches=Dispatches(DISPATCH_KEY),
            **options,
        )
        self.links: list[asyncio.Task[None]] = []

    async def join(
        self,
        id: str = "engine-1",
        *,
        secret: str = SECRET,
        **hello: Any,
    ) -> Played:
        played = await self.dial(secret)
        given: dict[str, Any] = {"model": MODEL, "run": ""}
        played.say(wire.Hello(1, wire.PROTOCOL_VERSION, id, **(given | hello)))
        assert isinstance(await played.hear(), wire.Welcome)
        return played

    async def join_unread(self, monkeypatch: pytest.MonkeyPatch) -> Played:
        """Join an engine that reads nothing, and fill its outbox with the requests `r0` to
        `r32`."""
        # Smaller than the real bound, so that filling it takes less time than a peer may be silent.
        monkeypatch.setattr(engine_link, "MAX_OUTBOX_FRAMES", 32)
        played = await self.join()
        played.writable.clear()
        for i in range(33):
            self.submit(f"r{i}")
            await asyncio.sleep(0)
        return played

    async def dial(self, secret: str = SECRET) -> Played:
        played = Played()
        credential = self.engines.identify(secret)
        self.links.append(asyncio.create_task(self.hub.serve(played, credential)))
        return played

    async def end(self) -> None:
        """Wait until the link that was dialled last has ended."""
        await self.links[-1]

    def submit(
        self, id: str = "r1", /, *, output_tokens: int | None = None, **options: Any
    ) -> Stream:
        reservation = Reservation(id, output_tokens)
        self.limits.open[id] = ReservationRequest(1, output_tokens or 0, 0)
        given: dict[str, Any] = {"kind": "chat", "body": b"{}", "lane": "batch", "timeout_s": 9}
        given |= {"grant": GRANT, "target": BASE, "reservation": reservation}
        return self.hub.submit(AdmittedRequest(**(given | options)))


@asynccontextmanager
async def benched(**options: Any) -> AsyncIterator[Bench]:
    """A bench whose links are closed with it."""
    bench = Bench(**options)
    yield bench
    for link in bench.links:
        link.cancel()
    await asyncio.gather(*bench.links, return_exceptions=True)


class PlayedGateway:
    """A gateway on loopback that the test plays. `decode` decodes frames as the played version
    would."""

    def __init__(self, welcome: bytes, decode: Callable[[bytes], Any]) -> None:
        self.hello: list[Any] = []
        self.heard: list[Any] = []
        self.not_understood: list[str] = []
        self.dialled = 0
        self.agent: Agent
        """The agent that dials this gateway."""
        self.engine: SyntheticEngine
        self._welcome, self._decode = welcome, decode
        self._socket: ServerConnection | None = None

    async def handle(self, socket: ServerConnection) -> None:
        self.dialled += 1
        self.hello = msgspec.msgpack.decode(await socket.recv(decode=False))
        await socket.send(self._welcome)
        self._socket = socket
        async for message in socket:
            assert isinstance(message, bytes)
            try:
                self.heard.append(self._decode(message))
            except (msgspec.MsgspecError, InferenceError) as error:
                self.not_understood.append(f"{error}: {message!r}")

    async def say_bytes(self, message: bytes) -> None:
        await until(lambda: self._socket)
        assert self._socket is not None
        await self._socket.send(message)

    async def say(self, frame: Frame) -> None:
        await self.say_bytes(wire.encode(frame))

    async def hear(self, kind: type[Any], **fields: Any) -> Any:
        """Wait for the first frame of this kind with these fields, and return it."""
        await until(lambda: any(self._matching(kind, fields)))
        return next(self._matching(kind, fields))

    def deltas(self, id: str) -> list[Any]:
        """All deltas that were heard of this request."""
        steps = [frame for frame in self.heard if type(frame).__name__ == "Step"]
        return [delta for step in steps for delta in step.deltas if delta.id == id]

    def _matching(self, kind: type[Any], fields: dict[str, Any]) -> Iterator[Any]:
        for frame in self.heard:
            if isinstance(frame, kind) and fields.items() <= msgspec.structs.asdict(frame).items():
                yield frame


@asynccontextmanager
async def played_gateway(
    root: Path,
    welcome: bytes,
    decode: Callable[[bytes], Any],
    info: ModelInfo = MODEL,
    kind: type[SyntheticEngine] = SyntheticEngine,
) -> AsyncIterator[PlayedGateway]:
    """A played gateway with an agent that dials it, on a synthetic engine. Fails if the
    agent sent a frame that could not be decoded."""
    played, journal = PlayedGateway(welcome, decode), Journal.open(root / "journal")
    async with serve(played.handle, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        limits: dict[str, Any] = {"max_running": 8, "max_resident": 4}
        engine = played.engine = kind(info)
        agent = played.agent = Agent(
            engine,
            Folders(root),
            journal,
            id="engine-1",
            credential=SECRET,
            **limits,
        )
        running = asyncio.create_task(agent.run([f"http://127.0.0.1:{port}"]))
        try:
            async with asyncio.timeout(HANGS_S):
                yield played
            assert played.not_understood == []
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            journal.close()
