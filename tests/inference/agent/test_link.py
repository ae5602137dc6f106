"""The agent's end of a link, against a gateway that the test plays frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import structlog

from inference.agent.__main__ import default_id
from inference.agent.agent import Agent
from inference.agent.engines.engine import LocalAdapter
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.agent.journal.journal import Journal
from inference.agent.scheduler.charges import LEAST_CHARGE
from inference.errors import EngineIdInUse
from inference.link import wire
from inference.link.wire import Fault
from tests.inference import rig
from tests.inference.played import PlayedGateway, played_gateway
from tests.inference.rig import until
from tests.inference.samples import MODEL, REF

WELCOME = wire.encode(wire.Welcome(2, "http://gateway"))
BODY = b'{"model":"base","messages":[{"role":"user","content":"Hello"}],"stream":true,"n":%d}'


@asynccontextmanager
async def gateway(root: Path, welcome: bytes = WELCOME) -> AsyncIterator[PlayedGateway]:
    async with played_gateway(root, welcome, wire.decode) as played:
        yield played


def submit(id: str, *, n: int = 1, **fields: object) -> wire.Submit:
    return wire.Submit(id, "chat", BODY % n, "base", "acme", "salt", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2])
async def test_the_ids_of_tokens_travel_if_they_are_asked_for(tmp_path: Path, n: int) -> None:
    async with gateway(tmp_path) as played:
        await played.say(submit("plain", n=n))
        await played.say(submit("asked", n=n, ids=True))
        for id in ("plain", "asked"):
            await played.hear(wire.Done, id=id)
        assert all(delta.ids == {} for delta in played.deltas("plain"))
        counts = dict.fromkeys(range(n), 0)
        for delta in played.deltas("asked"):
            for choice, ids in delta.ids.items():
                counts[choice] += len(ids)
        tokens = sum(delta.tokens for delta in played.deltas("asked"))
        assert counts == dict.fromkeys(range(n), tokens // n)


async def test_everything_about_an_attempt_names_it(tmp_path: Path) -> None:
    async with gateway(tmp_path) as played:
        await played.say(submit("r1", attempt=2, watched=True))
        done = await played.hear(wire.Done, id="r1")
        assert done.attempt == 2
        assert {delta.attempt for delta in played.deltas("r1")} == {2}
        waits = [wait for frame in played.heard if isinstance(frame, wire.Waits)
                 for wait in frame.waits]  # fmt: skip
        assert waits and {wait.attempt for wait in waits} == {2}


async def test_only_the_named_attempt_is_cancelled(tmp_path: Path) -> None:
    async with gateway(tmp_path) as played:
        body = BODY[:-1].replace(b"%d", b"1") + b',"max_tokens":2000,"ignore_eos":true}'
        await played.say(wire.Submit("r1", "chat", body, "base", "acme", "salt", attempt=3))
        await until(lambda: played.deltas("r1"))
        await played.say(wire.Cancel("r1", "another's"))
        await played.say(wire.Cancel("r1", "its own", 3))
        done = await played.hear(wire.Done, id="r1")
        assert (done.finish_reason, done.attempt) == ("cancelled", 3)
        report = await played.hear(wire.UsageReport)
        assert [entry.finish_reason for entry in report.entries] == ["its own"]


async def test_residency_travels_as_changes(tmp_path: Path) -> None:
    async with gateway(tmp_path) as played:
        await played.say(wire.Load("l1", REF))
        await played.hear(wire.Loaded, id="l1")
        told = await played.hear(wire.Stats, loaded=[REF.name])
        assert (told.evicted, told.stats.resident) == ([], [])
        await played.say(wire.Unload(REF.digest))
        await played.hear(wire.Stats, evicted=[REF.name])
        after = [frame for frame in played.heard if isinstance(frame, wire.Stats)]
        assert sum(len(frame.loaded) for frame in after) == 1, "told once"


class KeepsAll(SyntheticEngine):
    async def unload(self, adapter: LocalAdapter) -> None:
        raise RuntimeError("of no use")


async def test_an_unload_that_fails_is_logged(tmp_path: Path) -> None:
    async with played_gateway(tmp_path, WELCOME, wire.decode, kind=KeepsAll) as played:
        await played.say(wire.Load("l1", REF))
        await played.hear(wire.Loaded, id="l1")
        with structlog.testing.capture_logs() as logs:
            await played.say(wire.Unload(REF.digest))
            await until(lambda: [one for one in logs if one["event"] == "task_failed"])


async def test_an_unknown_frame_is_ignored(tmp_path: Path) -> None:
    async with gateway(tmp_path) as played:
        await played.say_bytes(b"\x92\xa5hullo\x01")
        await played.say(submit("r1"))
        await played.hear(wire.Done, id="r1")
        assert played.dialled == 1


async def test_a_gateway_that_breaks_the_rules_is_told_why(tmp_path: Path) -> None:
    async with gateway(tmp_path) as played:
        await played.say(wire.Heartbeat())
        await played.say(wire.Hello(1, 2, "x", MODEL))
        error = await played.hear(wire.Error)
        assert error.fault.code == "protocol_violation" and "hello" in error.fault.message
        await until(lambda: played.dialled > 1)


async def test_an_agent_whose_id_is_in_use_says_so_and_tries_again(tmp_path: Path) -> None:
    refusal = wire.encode(wire.Error(Fault.of(EngineIdInUse("Another engine has the id `e`."))))
    with structlog.testing.capture_logs() as logs:
        async with gateway(tmp_path, refusal) as played:
            await until(lambda: played.dialled >= 2)
    reasons = {line["reason"] for line in logs if line["event"] == "link_down"}
    assert reasons == {"Another engine has the id `e`."}


async def test_an_engine_joins_once_the_other_of_its_id_is_gone(tmp_path: Path) -> None:
    """As when an engine is restarted before the gateway has noticed that the old one ended."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    async with rig.gateway() as one:
        second = Journal.open(folders[1] / "journal")
        agent = Agent(
            SyntheticEngine(MODEL), rig.Folders(folders[1]), second,
            id="engine-1", credential=rig.SECRET, max_running=8, max_resident=4,
        )  # fmt: skip
        with structlog.testing.capture_logs() as logs:
            async with rig.agent_on(SyntheticEngine(MODEL), folders[0], [one]):
                running = asyncio.create_task(agent.run([one.url]))
                await until(lambda: any(line["event"] == "engine_refused" for line in logs))
                assert len(one.hub.snapshot()) == 1
            await rig.connected(one)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        second.close()
    reasons = [line["reason"] for line in logs if line["event"] == "engine_refused"]
    assert "another engine with the id `engine-1`" in reasons[0].lower()


def test_two_agents_of_one_process_id_and_host_name_get_two_ids() -> None:
    assert default_id() != default_id()


async def test_one_gateway_hears_what_was_gained_and_tells_what_others_served(
    tmp_path: Path,
) -> None:
    welcome = wire.encode(wire.Welcome(wire.PROTOCOL_VERSION, "http://gateway"))
    async with gateway(tmp_path, welcome) as played:
        await played.say(submit("r1"))
        done = await played.hear(wire.Done, id="r1")

        def told() -> list[wire.Stats]:
            return [frame for frame in played.heard if isinstance(frame, wire.Stats)]

        await until(lambda: any(frame.gained for frame in told()))
        usage = done.usage
        used = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
        assert sum(frame.gained.get("acme", 0.0) for frame in told()) == max(LEAST_CHARGE, used)
        assert all(frame.asks for frame in told())
        await played.say(wire.Others(3, {"globex": 1000.0}))
        counters = played.agent._queue._interactive.counters
        await until(lambda: counters.counter("globex") >= 1000)
