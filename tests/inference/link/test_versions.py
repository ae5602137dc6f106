"""Today's link with peers of version 1, played with messages that their code wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from inference.errors import EngineLost
from inference.interfaces.directory import Target
from inference.link import accounts, engine_info, versions, wire
from inference.link.accounts import (
    ATTEMPTS_OF_A_TURN,
    Account,
    LedgerEntry,
    Usage,
    first_attempt,
    turn_of,
)
from inference.link.engine_info import AdapterRef, EngineStats, Suspect
from inference.link.prefixes import Prefix
from inference.link.wire import Frame
from tests.inference.link import version_1
from tests.inference.link.version_1 import recorded
from tests.inference.played import Bench, Played, PlayedGateway, benched, played_gateway
from tests.inference.rig import until
from tests.inference.samples import MODEL, REF

pytestmark = pytest.mark.pure

NEW_REF = AdapterRef(REF.name, REF.digest, 8, ("q_proj",))
NEW_MODEL = msgspec.structs.replace(
    MODEL, revision="r" * 64, engine_version="1", operations=["chat"], parsers={"tool": "hermes"}
)
ACCOUNT = Account(1, 2, 3.5, "base", 4, 5, (6, 7, 8))
ENTRY = LedgerEntry("r1", ACCOUNT, "base", Usage(7, 2, 3), "stop", 2)

SUSPECT = Suspect("digest", {"run": 1.5}, 2.5, "acme", "r1")

ORPHAN = wire.Orphan("r1", 1, ACCOUNT, "m", "label")

PREFIX = Prefix.of([1, 2], [512, 600])

NEW_FRAMES: list[Frame] = [
    wire.Hello(1, 2, "engine-1", NEW_MODEL, EngineStats(resident=["a"], spare=1), "run", b"w" * 8),
    wire.Welcome(1, "gateway", ["http://gateway"]),
    wire.Gateways(["http://gateway"]),
    wire.Heartbeat(),
    wire.Submit(
        "r1", "chat", b"{}", "m", "acme", "salt", NEW_REF, account=ACCOUNT, ids=True, prefix=PREFIX
    ),
    wire.Step([wire.Delta("r1", "a", 2, [b"{}"], 3, 1, ids={0: [1, 2]}), wire.Delta("r2")]),
    wire.Waits([wire.Wait("r1", "queued", 2, 1)]),
    wire.Done("r1", Usage(7), "stop", b"{}", wire.Fault("a", "b", "c", 1.0)),
    wire.Cancel("r1", "cancelled"),
    wire.Stats(
        EngineStats(resident=["a"]),
        "run",
        {"acme": 1.5},
        ["a"],
        ["b"],
        b"w" * 8,
        b"c" * 8,
        True,
        {"acme": 1.5},
        True,
        False,
    ),
    wire.Others(2, {"acme": 1.5}),
    wire.Served("engine-2", "run", {"acme": 1.5}),
    wire.Suspects([SUSPECT]),
    wire.UsageReport("journal", [ENTRY]),
    wire.UsageAck([], [("r1", 1), ("r2", 1)]),
    wire.Pins([NEW_REF]),
    wire.Load("l1", NEW_REF, True),
    wire.Loaded("l1", {"finite": True, "nested": [1, {"a": None}]}),
    wire.Unload("d" * 64),
    wire.Drain(),
    wire.Error(wire.Fault("a", "b")),
    wire.Orphans([ORPHAN], [("r1", 1)]),
    wire.Adopt("r1", 1001, 1, ACCOUNT, True),
]


def kinds(*modules: Any) -> dict[str, type[msgspec.Struct]]:
    found = [item for module in modules for item in vars(module).items()]
    return {name: kind for name, kind in found if isinstance(kind, type)
            and issubclass(kind, msgspec.Struct) and kind.__struct_fields__}  # fmt: skip


@pytest.mark.parametrize("name", kinds(version_1))
def test_what_is_not_declared_as_newer_is_as_version_1_had_it(name: str) -> None:
    kind = kinds(accounts, engine_info, wire)[name]
    since = versions.FIELDS.get(kind, {})
    old = kinds(version_1)[name].__struct_fields__
    assert kind.__struct_fields__[: len(old)] == old
    assert kind.__struct_fields__[len(old) :] == tuple(since)
    assert all(1 < version <= wire.PROTOCOL_VERSION for version in since.values())


def test_own_name_is_the_name_without_tenant_and_version() -> None:
    assert AdapterRef("acme/support@0123", "0123").own_name == "support"


def test_every_frame_is_of_version_1_or_declared_as_newer() -> None:
    old = {kind.__name__ for kind in get_args(version_1.AnyFrame)}
    newer = {kind.__name__ for kind in versions.FRAMES}
    assert {kind.__name__ for kind in get_args(wire.AnyFrame)} == old | newer
    assert {type(frame).__name__ for frame in NEW_FRAMES} == old | newer, "all are tried below"


@pytest.mark.parametrize("frame", NEW_FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_peer_of_version_1_gets_every_field_that_it_knows_and_no_other(frame: Frame) -> None:
    message = versions.encode(frame, 1)
    if type(frame) in versions.FRAMES:
        assert message is None
        return
    assert message is not None
    read = version_1.decode(message)
    assert type(read).__name__ == type(frame).__name__
    if isinstance(frame, wire.UsageAck):
        assert read.ids == ["r1", "r2"]
    else:
        same(read, frame)


def same(old: Any, new: Any) -> None:
    """Check that both have the same value in every field that the old one has."""
    if isinstance(old, msgspec.Struct):
        for name in old.__struct_fields__:
            same(getattr(old, name), getattr(new, name))
    elif isinstance(old, list):
        assert len(old) == len(new)
        for one, other in zip(old, new, strict=True):
            same(one, other)
    else:
        assert old == new


@pytest.mark.parametrize("version", [None, wire.PROTOCOL_VERSION, wire.PROTOCOL_VERSION + 1])
def test_a_peer_of_the_newest_version_gets_everything(version: int | None) -> None:
    for frame in NEW_FRAMES:
        assert versions.encode(frame, version) == wire.encode(frame)


def test_a_peer_of_version_2_is_not_sent_what_came_later() -> None:
    submit = wire.Submit("r1", "chat", b"{}", "m", "acme", "salt", ids=True, choices=3, logprobs=2)
    encoded = versions.encode(submit, 2)
    assert encoded is not None
    assert wire.decode(encoded) == msgspec.structs.replace(submit, choices=0, logprobs=0)
    assert versions.encode(wire.Suspects([SUSPECT]), 2) is None
    stats = wire.Stats(EngineStats(queued=1, failures=2), "run", {"acme": 1.5}, ["a"])
    told = versions.encode(stats, 2)
    assert told is not None
    assert wire.decode(told) == wire.Stats(EngineStats(queued=1), "run", {"acme": 1.5}, ["a"])


def test_a_peer_of_version_3_is_not_told_what_is_warm() -> None:
    submit = wire.Submit("r1", "chat", b"{}", "m", "acme", "salt", choices=3, prefix=PREFIX)
    encoded = versions.encode(submit, 3)
    assert encoded is not None
    assert wire.decode(encoded) == msgspec.structs.replace(submit, prefix=None)
    known = EngineStats(queued=1, failures=2)
    stats = msgspec.structs.replace(known, queued_tokens=9, active=["a"], awaited=["b"], spare=1)
    told = versions.encode(wire.Stats(stats, "run", warm=b"w" * 8, cold=b"c" * 8, anew=True), 3)
    assert told is not None
    assert wire.decode(told) == wire.Stats(known, "run")


def test_a_peer_of_version_6_is_not_told_when_an_attempt_began() -> None:
    account = msgspec.structs.replace(ACCOUNT, given_s=1.5, trace_id="ab" * 16)
    entry = msgspec.structs.replace(ENTRY, account=account)
    for frame in (wire.UsageReport("journal", [entry]), wire.Adopt("r1", 1001, 1, account)):
        told = versions.encode(frame, 6)
        assert told is not None and b"ab" * 16 not in told
        assert b"ab" * 16 in wire.encode(frame)


def test_a_peer_of_version_4_is_not_asked_to_keep_anything() -> None:
    resume = wire.Resume({0: [1]}, usage=Usage(1), text="a", chunks=[b"{}"])
    submit = wire.Submit("r1", "chat", b"{}", "m", "acme", "salt", prefix=PREFIX, resume=resume)
    told = versions.encode(msgspec.structs.replace(submit, grace_s=30.0, label="l"), 4)
    assert told is not None
    bare = msgspec.structs.replace(resume, text="", chunks=[])
    assert wire.decode(told) == msgspec.structs.replace(submit, resume=bare)
    assert versions.encode(wire.Orphans([ORPHAN]), 4) is None
    assert versions.encode(wire.Adopt("r1", 1001, 1, ACCOUNT), 4) is None


@pytest.mark.parametrize("turn", [1, 2, 31])
def test_each_turn_of_a_request_has_attempts_of_its_own(turn: int) -> None:
    first = first_attempt(turn)
    assert [turn_of(first), turn_of(first + ATTEMPTS_OF_A_TURN - 1)] == [turn, turn]
    assert turn_of(first - 1) == turn - 1
    assert first_attempt(1) == 1


def test_a_frame_that_a_peer_does_not_know_is_not_sent() -> None:
    older = versions.Encoder(1, frames={wire.Waits: 2}, fields={})
    assert older.encode(wire.Waits([])) is None
    assert older.encode(wire.Heartbeat()) == wire.encode(wire.Heartbeat())


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched() as bench:
        bench.unsigned = True
        yield bench


async def old_agent(bench: Bench) -> Played:
    agent = await bench.dial()
    agent.say_bytes(recorded("agent", "hello"))
    welcome = version_1.decode(await agent.hear_bytes())
    assert welcome == version_1.Welcome(1, "http://gateway", ["http://gateway"])
    return agent


async def test_an_old_agents_requests_run_and_are_billed(bench: Bench) -> None:
    agent, waits = await old_agent(bench), list[wire.Wait]()
    stream = bench.submit("r1", watch=waits.append, target=Target("s", "base", NEW_REF, 4, 3))
    submitted = version_1.decode(await agent.hear_bytes())
    assert isinstance(submitted, version_1.Submit)
    assert (submitted.id, submitted.watched) == ("r1", True)
    assert submitted.adapter == version_1.AdapterRef(REF.name, REF.digest)
    assert (submitted.account.adapter_id, submitted.account.version_id) == (3, 4)
    for name in ("waits", "step", "second_step", "done", "usage"):
        agent.say_bytes(recorded("agent", name))
    delta = await stream.read()
    while not isinstance(last := await stream.read(), wire.Done):
        delta = delta.merged(last)  # type: ignore[union-attr]
    assert delta == wire.Delta("r1", "Hello", 3, [b'{"x":1}'], 7, 2)
    assert (last.finish_reason, last.usage.completion_tokens) == ("stop", 3)
    assert waits == [wire.Wait("r1", "queued", 2)]
    await until(lambda: bench.ledger.told)
    ((_, journal, (entry,), written),) = bench.ledger.told
    assert (journal, entry.id, entry.attempt, entry.account.price) == ("j" * 32, "r1", 1, None)
    written([("r1", 1)])
    assert version_1.decode(await agent.hear_bytes()) == version_1.UsageAck(["r1"])


async def test_an_old_agent_is_told_of_cancels_pins_loads_and_gateways(bench: Bench) -> None:
    agent = await old_agent(bench)
    stream = bench.submit("r2")
    await agent.hear_bytes()
    stream.cancel("client_disconnected")
    agent.say_bytes(recorded("agent", "done_cancelled"))
    bench.hub.set_pins({"base": [NEW_REF]})
    bench.hub.set_gateways(["http://gateway", "http://other"])
    bench.hub.unload(REF.digest)
    (engine,) = bench.hub.snapshot()
    bench.hub.drain(engine["id"])
    old = version_1.AdapterRef(REF.name, REF.digest)
    assert [version_1.decode(await agent.hear_bytes()) for _ in range(5)] == [
        version_1.Cancel("r2", "client_disconnected"),
        version_1.Pins([old]),
        version_1.Gateways(["http://gateway", "http://other"]),
        version_1.Unload(REF.digest),
        version_1.Drain(),
    ]
    assert (await stream.read()).finish_reason == "cancelled"  # type: ignore[union-attr]


async def test_an_old_agent_probes_adapters(bench: Bench) -> None:
    agent = await old_agent(bench)
    probe = asyncio.create_task(bench.hub.probe("base", NEW_REF))
    load = version_1.decode(await agent.hear_bytes())
    assert load == version_1.Load(load.id, version_1.AdapterRef(REF.name, REF.digest), True)
    answer = recorded("agent", "loaded")
    assert answer.count(b"l" * 32) == 1
    agent.say_bytes(answer.replace(b"l" * 32, load.id.encode()))
    assert await probe == {"finite": True}


async def test_an_old_agents_statistics_hold_all_of_its_adapters(bench: Bench) -> None:
    agent, other = await old_agent(bench), await bench.join("engine-2")
    resident = [engine["resident_adapters"] for engine in bench.hub.snapshot()]
    assert resident == [[REF.name], []]
    agent.say_bytes(recorded("agent", "stats"))
    assert await other.hear() == wire.Served("engine-1", "run", {"acme": 12.5})
    assert bench.hub.snapshot()[0]["resident_adapters"] == [REF.name]
    agent.say_bytes(recorded("agent", "stats_evicted"))
    await until(lambda: len(bench.ledger.reported) == 2)
    assert bench.hub.snapshot()[0]["resident_adapters"] == []
    other.say(wire.Stats(EngineStats(), "run", {"acme": 1.0}))
    served = version_1.decode(await agent.hear_bytes())
    assert served == version_1.Served("engine-2", "run", {"acme": 1.0})


async def test_an_old_agents_heartbeats_drains_and_errors_mean_what_they_did(bench: Bench) -> None:
    agent = await old_agent(bench)
    agent.say_bytes(recorded("agent", "heartbeat"))
    agent.say_bytes(recorded("agent", "drain"))
    await until(lambda: bench.hub.snapshot()[0]["draining"])
    agent.say_bytes(recorded("agent", "error"))
    await bench.end()
    assert bench.hub.snapshot() == []


async def test_an_old_agent_gets_no_second_attempt(bench: Bench) -> None:
    """It would record it in its journal as the first."""
    first = await bench.join("another")
    stream = bench.submit("r1")
    await first.asked()
    old = await old_agent(bench)
    first.hang_up()
    with pytest.raises(EngineLost):
        await stream.read()
    assert old.all_heard


@asynccontextmanager
async def old_gateway(root: Path) -> AsyncIterator[PlayedGateway]:
    """A played gateway of version 1 with today's agent, which may send only what version 1
    knows."""
    welcome = recorded("gateway", "welcome")
    async with played_gateway(root, welcome, version_1.decode, NEW_MODEL) as gateway:
        yield gateway


async def test_an_old_gateway_reads_the_hello(tmp_path: Path) -> None:
    """The hello is sent before the version is negotiated; version 1 ignores fields that it does not
    know."""
    async with old_gateway(tmp_path) as gateway:
        await gateway.hear(version_1.Stats)
        tag, oldest, newest, id, model, stats, run, _warm = gateway.hello
        assert (tag, oldest, newest, id) == ("hello", 1, wire.PROTOCOL_VERSION, "engine-1")
        assert run
        msgspec.convert(model[:7], version_1.ModelInfo)
        known = len(version_1.EngineStats.__struct_fields__)
        msgspec.convert(stats[:known], version_1.EngineStats)


async def test_an_old_gateways_requests_run_and_are_acknowledged(tmp_path: Path) -> None:
    async with old_gateway(tmp_path) as gateway:
        await gateway.say_bytes(recorded("gateway", "submit"))
        done = await gateway.hear(version_1.Done, id="r1")
        assert (done.finish_reason, done.usage.completion_tokens) == ("length", 4)
        deltas = gateway.deltas("r1")
        assert "".join(delta.text for delta in deltas) == "base: Hello ther"
        assert sum(delta.tokens for delta in deltas) == 4
        assert any(isinstance(frame, version_1.Waits) for frame in gateway.heard)

        await gateway.say_bytes(recorded("gateway", "submit_adapter"))
        await until(lambda: gateway.deltas("r2"))
        await gateway.say_bytes(recorded("gateway", "cancel"))
        done = await gateway.hear(version_1.Done, id="r2")
        assert done.finish_reason == "cancelled"

        entries: dict[str, Any] = {}
        await until(lambda: entries.update(
            (entry.id, entry) for frame in gateway.heard
            if isinstance(frame, version_1.UsageReport) for entry in frame.entries
        ) or len(entries) == 2)  # fmt: skip
        assert entries["r2"].finish_reason == "client_disconnected"
        assert entries["r1"].account == version_1.Account(1, 2, 1_700_000_000.5, "base", 3, 4)
        await gateway.say_bytes(recorded("gateway", "ack"))
        await until(lambda: any(
            isinstance(frame, version_1.Stats) and frame.stats.journaled.requests == 2
            and frame.stats.unbilled.requests == 0 for frame in gateway.heard
        ))  # fmt: skip


async def test_an_old_gateway_is_told_all_resident_adapters_each_time(tmp_path: Path) -> None:
    async with old_gateway(tmp_path) as gateway:
        await gateway.say_bytes(recorded("gateway", "pins"))
        await gateway.say_bytes(recorded("gateway", "load"))
        loaded = await gateway.hear(version_1.Loaded, id="l1")
        assert loaded.fault is None and loaded.report["finite"]

        def last() -> list[str]:
            stats = [frame for frame in gateway.heard if isinstance(frame, version_1.Stats)]
            return stats[-1].stats.resident if stats else []

        await until(lambda: last() == [REF.name])
        heard = len(gateway.heard)
        await until(lambda: any(
            isinstance(frame, version_1.Stats) for frame in gateway.heard[heard:]
        ))  # fmt: skip
        assert last() == [REF.name]
        await gateway.say_bytes(recorded("gateway", "unload"))
        await until(lambda: last() == [])


async def test_other_frames_of_an_old_gateway_keep_their_meaning(tmp_path: Path) -> None:
    async with old_gateway(tmp_path) as gateway:
        for name in ("heartbeat", "served", "gateways", "drain"):
            await gateway.say_bytes(recorded("gateway", name))
        assert await gateway.hear(version_1.Drain)
