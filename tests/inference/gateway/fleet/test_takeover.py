"""A gateway is lost, and requests that it served with an idempotency key continue through another
one. Over real sockets, on a synthetic engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.agent.jobs import kept_answers
from inference.errors import EngineLost, Unavailable
from inference.gateway.requests.held import Holding
from inference.interfaces.answers import Claim
from inference.interfaces.directory import ResolvedTarget
from inference.link.accounts import LedgerEntry
from tests.inference.answers import CLAIM_S, MemoryAnswers
from tests.inference.gateway.long_answers import (
    ANSWERS,
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    LONG,
    STALLS,
    STEADY,
    USAGE,
    Answer,
    completion,
)
from tests.inference.rig import Gateway, Rig, agent_on, chat, gateway, until
from tests.inference.samples import MODEL

KEY = {"Idempotency-Key": "order 17"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}

ASKED = ANSWERS | {
    "whole completion": (COMPLETION, completion(**LONG)),
    "schema": (CHAT, chat(stream=True, response_format=SCHEMA, **USAGE, **LONG)),
}


@dataclass
class Fleet:
    """Two gateways with one database, and an agent. Requests are repeated at `two`."""

    rig: Rig
    answers: MemoryAnswers

    @property
    def one(self) -> Gateway:
        return self.rig.gateways[0]

    @property
    def two(self) -> Gateway:
        return self.rig.gateways[1]

    @property
    def generated(self) -> int:
        return self.rig.engine.stats().completion_tokens

    def behave(self, behaviour: Behaviour) -> None:
        assert isinstance(self.rig.engine, SyntheticEngine)
        self.rig.engine.behaviour = behaviour

    async def ask(
        self, at: Gateway, path: str, body: dict[str, Any], key: str = "acme", **headers: str
    ) -> Answer:
        answer = Answer()
        async with at.client(key) as client:
            async with client.stream("POST", path, json=body, headers=KEY | headers) as response:
                answer.id = response.headers["x-request-id"].removeprefix("req_")
                answer.replayed = "idempotent-replayed" in response.headers
                await answer.read(response)
        return answer

    async def cut_off(self, at: Gateway) -> None:
        """Cut all connections between this gateway and the engines, in both directions."""
        at.engines.known = {}
        for link in list(at.hub._open):
            link.break_off(EngineLost("cut off"))
        await until(lambda: not at.hub.snapshot())

    async def orphaned(self) -> None:
        """Wait until the second gateway knows of an orphan."""
        await until(lambda: self.two.hub.orphans.turns(len("acme")))

    async def entries(self, *attempts: int) -> list[LedgerEntry]:
        """The entries of the only request in both ledgers, by attempt, once they include
        `attempts`."""
        found: dict[int, LedgerEntry] = {}

        def read() -> bool:
            for at in self.rig.gateways:
                found.update({e.attempt: e for e in at.ledger.entries.values()})
            return found.keys() >= set(attempts)

        await until(read)
        return [found[attempt] for attempt in sorted(found)]


@asynccontextmanager
async def fleet(
    root: Path, behaviour: Behaviour = STALLS, *, grace_s: float = 60.0, **options: Any
) -> AsyncIterator[Fleet]:
    answers = MemoryAnswers()
    given = {"answers": answers, "grace_s": grace_s, "holding": Holding(60.0)} | options
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(gateway(**given)) for _ in range(2)]
        gateways[0].hub.gateways = [one.url for one in gateways]
        engine = SyntheticEngine(MODEL, behaviour)
        stack.push_async_callback(engine.close)
        rig = await stack.enter_async_context(agent_on(engine, root, gateways))
        yield Fleet(rig, answers)


async def began(made: Fleet, path: str, body: dict[str, Any]) -> asyncio.Task[Answer]:
    """Send the request to the first gateway and cut that off in the middle of the answer."""
    asking = asyncio.create_task(made.ask(made.one, path, body))
    tokens = 7 * (body.get("n") or 1)
    await until(lambda: made.generated >= tokens)
    await made.cut_off(made.one)
    await made.orphaned()
    return asking


async def gave_up(asking: asyncio.Task[Answer]) -> None:
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("what", ASKED)
async def test_the_running_answer_goes_on_through_another_gateway(
    tmp_path: Path, what: str
) -> None:
    path, body = ASKED[what]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        again = asyncio.create_task(made.ask(made.two, path, body))
        await until(lambda: made.two.hub.in_flight)
        assert made.generated == 7 * body.get("n", 1), "nothing was generated anew"
        made.behave(STEADY)
        answer = await again
        entries = await made.entries(1001)
        twin = await made.ask(made.two, path, body, **{"Idempotency-Key": "its twin"})
        await gave_up(asking)
    assert answer.said == twin.said and answer.error == ""
    assert all(answer.texts.values()) and answer.usage["completion_tokens"]
    assert answer.replayed and not twin.replayed
    assert [entry.attempt for entry in entries][-1] == 1001
    assert {entry.id for entry in entries} == {answer.id}
    assert entries[-1].usage.completion_tokens == answer.usage["completion_tokens"]
    assert [entry.finish_reason for entry in entries[:-1]] in ([], ["moved"])
    assert made.two.limits.taken == [answer.id]
    assert next(iter(made.two.limits.settled)) == answer.id
    assert not made.two.limits.open


async def test_a_pooling_request_is_adopted_and_billed_once(
    tmp_path: Path,
) -> None:
    """Nothing of it leaves the engine before its end, and nothing is computed twice."""
    body = {"model": MODEL.name, "input": ["four", "more", "text"]}
    async with fleet(tmp_path, Behaviour(stall_after_tokens=2)) as made, made.two.client() as two:
        computed = made.rig.engine.stats
        asking = asyncio.create_task(made.ask(made.one, EMBEDDINGS, body))
        await until(lambda: computed().prompt_tokens == 2)
        await made.cut_off(made.one)
        await made.orphaned()
        again = asyncio.create_task(two.post(EMBEDDINGS, json=body, headers=KEY))
        await until(lambda: made.two.hub.in_flight)
        made.behave(STEADY)
        answer = await again
        entries = await made.entries(1001)
        await gave_up(asking)
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.json()["usage"]["prompt_tokens"] == computed().prompt_tokens == 3
    assert (entries[-1].attempt, entries[-1].usage.prompt_tokens) == (1001, 3)


async def test_the_output_so_far_is_sent_at_once(tmp_path: Path) -> None:
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        async with made.two.client() as client:
            async with client.stream("POST", path, json=body, headers=KEY) as response:
                read, tokens = "", 0
                async for line in response.aiter_lines():
                    read += line
                    if tokens := read.count("content"):
                        break
                assert tokens and made.generated == 7, "it stalls still"
        made.behave(STEADY)
        kept = await made.ask(made.two, path, body)
        await gave_up(asking)
    assert kept.replayed and kept.usage["completion_tokens"] == 30


async def test_only_the_same_key_and_body_adopt_it(tmp_path: Path) -> None:
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        made.behave(STEADY)
        stranger = await made.ask(made.two, path, body, key="globex")
        assert not stranger.replayed and stranger.usage["completion_tokens"] == 30
        other = await made.ask(made.two, path, body | {"seed": 8})
        assert other.error == "idempotency_key_reused"
        made.behave(STALLS)
        plain = asyncio.create_task(
            made.ask(made.two, path, body, **{"Idempotency-Key": "another"})
        )
        await until(lambda: made.two.hub.in_flight)
        made.behave(STEADY)
        assert not (await plain).replayed
        mine = await made.ask(made.two, path, body)
        await gave_up(asking)
    assert mine.replayed and mine.id != stranger.id
    assert made.two.limits.taken == [mine.id]


async def test_an_answer_that_ended_meanwhile_is_adopted_and_billed_once(tmp_path: Path) -> None:
    path, body = ASKED["whole"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        made.behave(STEADY)
        await until(lambda: not made.rig.agent._jobs)
        answer = await made.ask(made.two, path, body)
        entry = (await made.entries(1001))[-1]
        await gave_up(asking)
    assert answer.replayed and answer.usage["completion_tokens"] == made.generated == 30
    assert (entry.usage.completion_tokens, entry.inherited_tokens) == (30, 30)


async def test_a_gateway_adopts_while_the_answer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's task has ended but the agent has not processed that yet: the end must be
    reported for the adopted attempt."""
    path, body = ASKED["whole"]
    async with fleet(tmp_path) as made:
        agent, adoptions = made.rig.agent, list[tuple[Any, ...]]()
        adopt, end = agent._adoption.adopt, agent._jobs._end

        def adopt_and_end(*ended: Any) -> None:
            adopt(*adoptions.pop())
            end(*ended)

        monkeypatch.setattr(agent._adoption, "adopt", lambda *asked: adoptions.append(asked))
        monkeypatch.setattr(agent._jobs, "_end", adopt_and_end)
        asking = await began(made, path, body)
        again = asyncio.create_task(made.ask(made.two, path, body))
        await until(lambda: adoptions)
        made.behave(STEADY)
        answer = await again
        entry = (await made.entries(1001))[-1]
        await gave_up(asking)
    assert answer.replayed and answer.usage["completion_tokens"] == made.generated == 30
    assert entry.usage.completion_tokens == 30
    assert made.two.hub.moves == {}, "the link stood"


async def test_an_answer_that_ended_as_its_gateway_was_lost_is_not_regenerated(
    tmp_path: Path,
) -> None:
    """The engine has finished, and it is unknown whether the client got the answer."""
    path, body = ASKED["whole"]
    async with fleet(tmp_path, STEADY) as made:
        made.answers.away = False
        first = asyncio.create_task(made.ask(made.one, path, body))
        await until(lambda: made.one.hub.in_flight)
        made.answers.away = True  # so that its answer is not kept
        await until(lambda: made.generated >= 30 and not made.rig.agent._jobs)
        await made.cut_off(made.one)
        made.answers.away = False
        await made.orphaned()
        (row,) = made.answers.rows.values()
        row.answer = None
        answer = await made.ask(made.two, path, body)
        await first
    assert answer.replayed and made.generated == 30


async def test_an_answer_that_nobody_adopts_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "ANNOUNCED_AFTER_S", 0.0)
    path, body = ASKED["stream"]
    async with fleet(tmp_path, grace_s=0.3) as made:
        asking = asyncio.create_task(made.ask(made.one, path, body))
        await until(lambda: made.generated >= 7)
        await made.cut_off(made.one)
        (entry,) = await made.entries(1)
        await until(lambda: not made.rig.agent._jobs and not made.rig.engine.stats().running)
        assert made.rig.agent._kept.bytes == 0
        assert not made.two.hub.orphans.turns(len("acme"))
        await gave_up(asking)
    assert (entry.finish_reason, entry.usage.completion_tokens) == ("gateway_lost", 7)
    assert entry.id in made.two.limits.offered, "its limits are settled where it is reported"


async def test_without_a_key_it_ends_with_its_gateway(tmp_path: Path) -> None:
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        async with made.one.client() as client:
            asking = asyncio.create_task(client.post(path, json=body))
            await until(lambda: made.generated >= 7)
            await made.cut_off(made.one)
            (entry,) = await made.entries(1)
            assert not made.rig.agent._kept.bytes
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
    assert entry.finish_reason == "gateway_lost"


async def test_an_engine_that_dies_within_the_grace(tmp_path: Path) -> None:
    """Nothing has the answer any more, so it is generated again once the claim has expired: two
    requests, each billed."""
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        made.rig.running.cancel()
        await until(lambda: not made.two.hub.snapshot())
        assert not made.two.hub.orphans.turns(len("acme"))
        (tmp_path / "b").mkdir()
        engine = SyntheticEngine(MODEL, STEADY)
        async with agent_on(engine, tmp_path / "b", [made.two], id="engine-2"):
            again = asyncio.create_task(made.ask(made.two, path, body))
            asked = made.answers.asked
            await until(lambda: made.answers.asked > asked + 1)
            made.answers.now += CLAIM_S
            answer = await again
        await engine.close()
        await gave_up(asking)
    assert not answer.replayed and answer.usage["completion_tokens"] == 30


async def cut_off_and_back(made: Fleet, path: str, body: dict[str, Any]) -> tuple[Answer, Answer]:
    """Reconnect the first gateway once the second has the answer; returns what the client of each
    got."""
    first = await began(made, path, body)
    again = asyncio.create_task(made.ask(made.two, path, body))
    await until(lambda: made.two.hub.in_flight)
    made.one.engines.known = dict(made.two.engines.known)
    await until(lambda: made.one.hub.snapshot())
    made.behave(STEADY)
    return await asyncio.gather(first, again)


async def test_a_gateway_that_was_only_cut_off_delivers_nothing_more(tmp_path: Path) -> None:
    """It comes back and moves the request, with its client still connected, but another gateway
    holds the claim."""
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        cut, answer = await cut_off_and_back(made, path, body)
        entries = await made.entries(1001)
    assert (cut.error, cut.reasons) == ("service_unavailable", {})
    assert answer.error == "" and answer.usage["completion_tokens"] == 30
    assert entries[-1].usage.completion_tokens == 30, "the highest attempt bills"
    (row,) = made.answers.rows.values()
    assert row.answer is not None and row.claim.turn == 2


async def test_a_whole_answer_of_a_gateway_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    path, body = ASKED["whole"]
    async with fleet(tmp_path) as made:
        cut, answer = await cut_off_and_back(made, path, body)
    assert cut.error == "service_unavailable" and not cut.texts
    assert answer.usage["completion_tokens"] == 30


async def test_a_client_of_the_same_gateway_continues_as_before(tmp_path: Path) -> None:
    """Its link was cut and the request was not repeated elsewhere: its own client gets the
    answer."""
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = asyncio.create_task(made.ask(made.one, path, body))
        await until(lambda: made.generated >= 7)
        for link in list(made.one.hub._open):
            link.break_off(EngineLost("cut"))
        await until(lambda: len(made.rig.agent._jobs) == 1 and made.one.hub.snapshot())
        made.behave(STEADY)
        answer = await asking
        entries = await made.entries(2)
        await until(lambda: not made.rig.agent._jobs)
    assert answer.error == "" and answer.usage["completion_tokens"] == 30
    assert entries[-1].usage.completion_tokens == 30
    assert made.two.limits.taken == []


async def test_a_gateway_that_shuts_down_leaves_its_requests(tmp_path: Path) -> None:
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = asyncio.create_task(made.ask(made.one, path, body))
        await until(lambda: made.generated >= 7)
        made.one.hub.close()
        made.one.hub.leave()
        left = await asking
        await made.one.hub.drained()
        assert left.error == "service_unavailable" and not left.reasons
        assert made.one.limits.handed_over == [left.id]
        again = asyncio.create_task(made.ask(made.two, path, body))
        await until(lambda: made.two.hub.in_flight)
        made.behave(STEADY)
        answer = await again
        entries = await made.entries(1001)
    assert answer.error == "" and answer.id == left.id
    assert answer.usage["completion_tokens"] == made.generated == 30
    assert entries[-1].usage.completion_tokens == 30
    assert left.texts[0] and answer.texts[0].startswith(left.texts[0])


async def test_two_simultaneous_retries_get_one_answer(tmp_path: Path) -> None:
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        both = [asyncio.create_task(made.ask(made.two, path, body)) for _ in range(3)]
        await until(lambda: made.two.hub.in_flight)
        made.behave(STEADY)
        answers = await asyncio.gather(*both)
        await gave_up(asking)
    assert len({one.id for one in answers}) == 1 and made.generated == 30
    assert answers[0].said == answers[1].said == answers[2].said


async def test_its_time_counts_over_all_gateways(tmp_path: Path) -> None:
    path, body = ASKED["stream"]
    async with fleet(tmp_path, timeout_s=2.0) as made:
        asking = await began(made, path, body)
        answer = await made.ask(made.two, path, body)
        await gave_up(asking)
    assert answer.error == "generation_timeout"


async def test_a_revoked_key_gets_nothing_of_it(tmp_path: Path) -> None:
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        made.two.keys.revoked.add("acme")
        async with made.two.client() as client:
            refused = await client.post(path, json=body, headers=KEY)
        assert refused.status_code == 401
        await gave_up(asking)


async def test_a_drained_engine_waits_for_adoption(tmp_path: Path) -> None:
    path, body = ASKED["whole"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        made.behave(STEADY)
        draining = asyncio.create_task(made.rig.agent.drain(60.0))
        await until(lambda: not made.rig.agent._jobs)
        assert not draining.done()
        answer = await made.ask(made.two, path, body)
        assert answer.replayed and answer.usage["completion_tokens"] == 30
        await gave_up(asking)
        draining.cancel()


async def test_a_takeover_that_fails_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away when the answer is taken over, and when that is first undone."""
    path, body = ASKED["stream"]
    async with fleet(tmp_path) as made:
        asking = await began(made, path, body)
        away, undo, undone = Unavailable("The database is away."), made.answers.give_back, 0

        async def resolve(*_: Any) -> ResolvedTarget:
            raise away

        async def give_back(claim: Claim) -> None:
            nonlocal undone
            undone += 1
            if undone == 1:
                raise away
            await undo(claim)

        with monkeypatch.context() as patch:
            patch.setattr(made.two.keys, "resolve", resolve)
            patch.setattr(made.answers, "give_back", give_back)
            async with made.two.client() as client:
                refused = await client.post(path, json=body, headers=KEY)
        assert (refused.status_code, undone) == (503, 2)
        made.behave(Behaviour())
        answer = await made.ask(made.two, path, body)
        entry = (await made.entries(1001))[-1]
        await gave_up(asking)
    assert answer.replayed and answer.usage["completion_tokens"] == made.generated == 30
    assert entry.id == answer.id
