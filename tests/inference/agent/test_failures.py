"""What happens after an engine failed: which requests were running then, and how they are treated
afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.agent.failures import FILE, EngineFailures
from inference.agent.job import Job
from inference.agent.watchdog import until_hung
from inference.link.suspects import FORGET_S
from inference.link.wire import Submit
from tests.inference.rig import SLOW, Gateway, Rig, agent_on, chat, connected, gateway, until
from tests.inference.samples import MODEL

CHAT = "/v1/chat/completions"
POISON = "the word that kills"
DEADLY = Behaviour(deadly=POISON)


@asynccontextmanager
async def engine_of(
    root: Path, one: Gateway, behaviour: Behaviour = DEADLY, *, id: str = "engine-1", **options: Any
) -> AsyncIterator[Rig]:
    """An agent that persists its engine's failures in `root`, as the real process does."""
    failures = EngineFailures.open(root)
    engine = SyntheticEngine(MODEL, behaviour)
    async with agent_on(engine, root, [one], id=id, failures=failures, **options) as made:
        yield made


async def kill_with(one: Gateway, made: Rig, content: str = POISON) -> httpx.Response:
    """Send the request, then wait until the agent has ended with its engine and its gateways have
    noticed."""
    async with one.client() as client:
        answer = await client.post(CHAT, json=chat(content=content))
    await gone(made)
    return answer


async def gone(made: Rig) -> None:
    await asyncio.wait((made.running,))
    for each in made.gateways:
        await until(lambda each=each: made.agent.id not in {  # type: ignore[misc]
            engine["id"] for engine in each.hub.snapshot()
        })  # fmt: skip


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


async def test_a_request_that_killed_two_engines_is_refused(
    tmp_path: Path, logs: list[Any]
) -> None:
    async with gateway() as one:
        for _ in range(2):
            async with engine_of(tmp_path, one) as made:
                failed = await kill_with(one, made)
                assert failed.status_code >= 500
        async with engine_of(tmp_path, one) as made, one.client() as client:
            refused = await client.post(CHAT, json=chat(content=POISON))
            assert refused.status_code == 422
            assert refused.json()["error"]["code"] == "request_quarantined"
            assert refused.headers["x-should-retry"] == "false"
            assert made.engine.alive
            for other in (chat(content="Hello"), chat(content=f"{POISON[:-1]}x")):
                assert (await client.post(CHAT, json=other)).is_success
            (shown,) = one.hub.snapshot()
            assert (shown["failures"], shown["last_failure"]) == (2, "died")
            await until(lambda: one.hub.snapshot()[0]["refused_suspects"] == 1)
            (suspect,) = one.hub.refused_suspects
            assert suspect.tenant == "acme"
    events = [line["event"] for line in logs if line["log_level"] == "error"]
    assert events.count("engine_failed") == 2
    assert events.count("request_refused_from_now") == 1
    assert "request_quarantined" in events


async def test_another_tenants_same_words_are_not_refused(tmp_path: Path) -> None:
    async with gateway() as one:
        for _ in range(2):
            async with engine_of(tmp_path, one) as made:
                await kill_with(one, made)
        async with engine_of(tmp_path, one, Behaviour()), one.client("globex") as client:
            assert (await client.post(CHAT, json=chat(content=POISON))).is_success


async def test_a_third_engine_refuses_a_request_that_killed_two(tmp_path: Path) -> None:
    """The third one dials another gateway, to which the failed engines had reported as well."""
    async with gateway() as one, gateway() as two:
        one.hub.gateways = [one.url, two.url]
        for name in ("first", "second", "third", "fourth"):
            (tmp_path / name).mkdir()
        async with engine_of(tmp_path / "third", two, Behaviour(), id="third") as third:
            for id in ("first", "second"):
                async with engine_of(tmp_path / id, one, id=id) as made:
                    await connected(two, 2)
                    await kill_with(one, made)
                    await until(lambda: len(two.hub.snapshot()) == 1)
            async with two.client() as client:
                refused = await client.post(CHAT, json=chat(content=POISON))
            assert refused.json()["error"]["code"] == "request_quarantined"
            assert third.engine.alive
        async with (
            engine_of(tmp_path / "fourth", two, id="fourth") as fourth,
            two.client() as client,
        ):
            await until(fourth.agent._failures.known)
            refused = await client.post(CHAT, json=chat(content=POISON))
            assert refused.status_code == 422, "who comes later is told as well"


async def test_requests_that_ran_beside_a_deadly_one_are_not_refused(tmp_path: Path) -> None:
    """Their clients all retry at the same time, as clients do."""
    victims = [f"a question of customer {i}" for i in range(4)]
    slow = Behaviour(deadly=POISON, tokens_per_second=200.0)

    async def ask(one: Gateway, content: str) -> httpx.Response:
        async with one.client() as client:
            body = chat(content=content, max_tokens=40, ignore_eos=True)
            return await client.post(CHAT, json=body)

    async with gateway() as one:
        for _ in range(2):
            async with engine_of(tmp_path, one, slow) as made:
                before = [asyncio.create_task(ask(one, words)) for words in victims]
                await until(lambda: made.engine.stats().running == len(victims))
                await kill_with(one, made, POISON)
                answers = await asyncio.gather(*before)
                assert all(answer.status_code >= 500 for answer in answers)
        async with engine_of(tmp_path, one, slow):
            answers = await asyncio.gather(*(ask(one, words) for words in victims))
            async with one.client() as client:
                refused = await client.post(CHAT, json=chat(content=POISON))
    assert [answer.status_code for answer in answers] == [200] * len(victims)
    assert refused.status_code == 422


async def test_suspects_start_one_after_another(tmp_path: Path) -> None:
    """So that the next failure identifies the one that caused it."""
    contents = [f"a question of customer {i}" for i in range(3)]
    stalled = Behaviour(stall_after_tokens=0)
    async with gateway() as one:
        async with engine_of(tmp_path, one, stalled) as made, one.client() as client:
            asked = [
                asyncio.create_task(client.post(CHAT, json=chat(content=words)))
                for words in contents
            ]
            await until(lambda: made.engine.stats().running == 3)
            made.engine.die()  # type: ignore[attr-defined]
            await asyncio.wait(asked)
            await gone(made)
        async with engine_of(tmp_path, one, stalled) as made, one.client() as client:
            again = [
                asyncio.create_task(client.post(CHAT, json=chat(content=words)))
                for words in [*contents, "a new one"]
            ]
            await until(lambda: made.engine.stats().running == 2)
            assert len(made.agent._queue._bounds._expected) == 2, "they count as waiting"
            made.engine.behaviour = Behaviour()  # type: ignore[attr-defined]
            answers = await asyncio.gather(*again)
            assert all(answer.is_success for answer in answers)
            assert one.hub.refused_suspects == []
            assert not any(
                made.agent._failures._suspects.failures(suspect.digest, suspect.ended_well_at)
                for suspect in made.agent._failures.known()
            ), "they ended well"


async def test_a_client_that_leaves_ends_its_trial(tmp_path: Path) -> None:
    stalled = Behaviour(stall_after_tokens=0)
    async with gateway() as one:
        async with engine_of(tmp_path, one) as made:
            await kill_with(one, made)
        async with engine_of(tmp_path, one, stalled) as made, one.client() as client:
            for _ in range(2):
                asked = asyncio.create_task(client.post(CHAT, json=chat(content=POISON)))
                await until(lambda: made.engine.stats().running == 1)
                asked.cancel()
                await until(lambda: not made.engine.stats().running)


async def test_a_hung_engine_is_found_and_its_agent_ends(tmp_path: Path, logs: list[Any]) -> None:
    async with gateway() as one:
        async with engine_of(tmp_path, one, SLOW, hung_after_s=0.2) as made:
            engine = made.engine
            async with one.client() as client:
                body = chat(max_tokens=1000, ignore_eos=True)
                asked = asyncio.create_task(client.post(CHAT, json=body))
                await until(lambda: engine.stats().completion_tokens > 1)
                engine.behaviour = Behaviour(hangs=True)  # type: ignore[attr-defined]
                await gone(made)
                made.running.result()
                assert (await asked).json()["error"]["code"] == "engine_lost"
        async with engine_of(tmp_path, one):
            (shown,) = one.hub.snapshot()
            assert (shown["failures"], shown["last_failure"]) == (1, "hung")
    (failed,) = [line for line in logs if line["event"] == "engine_failed"]
    assert (failed["how"], len(failed["requests"])) == ("hung", 1)
    reasons = [line["reason"] for line in logs if line["event"] == "engine_left"]
    assert reasons[0] == "The engine hung and is being restarted."


async def test_an_engine_that_only_takes_long_does_not_hang() -> None:
    """A slow engine still answers pings between its steps. An engine without work is not pinged."""
    engine = SyntheticEngine(MODEL, Behaviour(stall_after_tokens=0))
    looked, pings = Counter[bool](), Counter[bool]()

    async def watched(busy: bool) -> None:
        async def ping() -> None:
            pings[busy] += 1

        def is_busy() -> bool:
            looked[busy] += 1
            return busy

        engine.ping = ping  # type: ignore[method-assign]
        watch = asyncio.create_task(until_hung(engine, 0.001, is_busy))
        await until(lambda: looked[busy] > 3)
        assert not watch.done()
        watch.cancel()
        await asyncio.wait((watch,))

    await watched(busy=True)
    await watched(busy=False)
    assert pings[True] >= 3
    assert pings[False] == 0


async def test_a_patience_of_0_never_ends() -> None:
    engine = SyntheticEngine(MODEL, Behaviour(hangs=True))
    asked = Counter[str]()
    never = asyncio.create_task(until_hung(engine, 0, lambda: bool(asked.update(["busy"]))))
    short = asyncio.create_task(until_hung(engine, 0.001, lambda: True))
    await short
    assert not never.done() and not asked
    never.cancel()


async def test_an_engine_that_is_closed_has_not_failed(tmp_path: Path) -> None:
    async with gateway() as one:
        async with engine_of(tmp_path, one, SLOW) as made, one.client() as client:
            asked = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=1000)))
            await until(lambda: made.engine.stats().running)
            made.running.cancel()
            await asyncio.wait((made.running,))
            await made.engine.close()
            await asyncio.wait((asked,))
    assert not (tmp_path / FILE).exists()


def test_a_damaged_file_is_passed_over(tmp_path: Path, logs: list[Any]) -> None:
    (tmp_path / FILE).write_bytes(b"\xc1 nothing of ours")
    assert EngineFailures.open(tmp_path).known() == []
    assert [line["event"] for line in logs] == ["failures_not_read"]


def test_a_failed_write_of_failures_is_logged(tmp_path: Path, logs: list[Any]) -> None:
    failures = EngineFailures(tmp_path / "no" / "folder")
    assert failures.note("died", []) == []
    assert failures.count == 1
    assert [line["event"] for line in logs] == ["failures_not_kept"]


def test_old_suspects_are_forgotten_when_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = EngineFailures(tmp_path / FILE)
    failures.note("died", [Job(Submit("r1", "chat", b"", "m", "acme", "salt"), None, digest="d")])
    assert len(EngineFailures.open(tmp_path).known()) == 1
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + FORGET_S)
    assert EngineFailures.open(tmp_path).known() == []
    assert EngineFailures.open(tmp_path).count == 1
