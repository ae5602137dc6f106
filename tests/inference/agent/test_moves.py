"""Requests that an agent gives up so that another engine continues them, and requests that it
continues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.agent.engines.synthetic.engine import Behaviour
from inference.agent.job import UNDERWAY_S
from inference.errors import Overloaded
from inference.link import wire
from inference.link.accounts import Account, Usage
from inference.link.wire import Delta, Done, Resume
from inference.link.workload import Workload
from tests.inference.played import PlayedGateway, played_gateway
from tests.inference.rig import SLOW, STALLED, until

DRAIN_S = 0.05
"""Longer than a few answers take, shorter than the answers that should move."""


@asynccontextmanager
async def gateway(
    root: Path, *, behaviour: Behaviour | None = None
) -> AsyncIterator[PlayedGateway]:
    """A gateway that acknowledges every ledger entry at once."""
    written = set[asyncio.Task[None]]()

    def decode(message: bytes) -> Any:
        frame = wire.decode(message)
        if isinstance(frame, wire.UsageReport):
            ack = wire.UsageAck([(entry.id, entry.attempt) for entry in frame.entries])
            written.add(asyncio.create_task(played.say(ack)))
        return frame

    welcome = wire.encode(wire.Welcome(wire.PROTOCOL_VERSION, "http://gateway"))
    async with played_gateway(root, welcome, decode) as played:
        played.engine.behaviour = behaviour or Behaviour()
        yield played
        await asyncio.gather(*written)


def submit(
    id: str, *, stream: bool = True, max_tokens: int = 60, n: int = 1, **fields: Any
) -> wire.Submit:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello there"}]}
    body |= {"stream": stream, "max_tokens": max_tokens, "ignore_eos": True, "n": n}
    given: dict[str, Any] = {"ids": True, "workload": Workload(choices=n, max_tokens=max_tokens)}
    given |= {"account": Account(1, 2, 1_700_000_000.5, "base")} | fields
    return wire.Submit(id, "chat", json.dumps(body).encode(), "base", "acme", "salt", **given)


def folder(root: Path, name: str) -> Path:
    made = root / name
    made.mkdir()
    return made


def together(deltas: list[Delta]) -> Delta:
    first, *others = deltas
    for delta in others:
        first = first.merged(delta)
    return first


def resume_of(delta: Delta) -> Resume:
    """The state that a gateway has of a stream to which this delta was delivered."""
    usage = Usage(delta.prompt_tokens, delta.cached_tokens, delta.tokens, ttft_s=0.5, total_s=2.0)
    return Resume(delta.ids, {}, usage)


async def undisturbed(root: Path, **asked: Any) -> tuple[Delta, Done]:
    async with gateway(root) as played:
        await played.say(submit("r", **asked))
        done = await played.hear(Done)
        return together(played.deltas("r")), done


async def moved(root: Path, **asked: Any) -> tuple[Delta, Done]:
    """What a gateway heard of a request while its agent was drained."""
    async with gateway(root, behaviour=SLOW) as played:
        await played.say(submit("r", **asked))
        await until(lambda: played.deltas("r"))
        await played.agent.drain(DRAIN_S)
        done = await played.hear(Done)
        assert not any(
            isinstance(frame, wire.Step) for frame in played.heard[played.heard.index(done) :]
        )
        return together(played.deltas("r")), done


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 2])
async def test_requests_left_at_the_end_of_a_drain_move(
    tmp_path: Path, n: int, stream: bool
) -> None:
    asked: dict[str, Any] = {"max_tokens": 200, "stream": stream, "n": n}
    whole, ended = await undisturbed(folder(tmp_path, "whole"), **asked)
    before, left = await moved(folder(tmp_path, "first"), **asked)
    assert (left.finish_reason, left.fault, left.response) == ("moved", None, None)
    assert left.usage.prompt_tokens == ended.usage.prompt_tokens
    assert left.usage.completion_tokens >= sum(map(len, before.ids.values())) > 0

    async with gateway(folder(tmp_path, "second")) as second:
        await second.say(submit("r", **asked, attempt=2, resume=resume_of(before)))
        done = await second.hear(Done)
        after = second.deltas("r")
        report = await second.hear(wire.UsageReport)
        stats = second.agent.reports.stats()
    assert together([before, *after]).ids == whole.ids
    assert together([before, *after]).text == whole.text
    assert _said(before, *after) == _said(whole)
    assert done.finish_reason == ended.finish_reason == "length"
    if not stream and n > 1:  # all engines give the request's arrival as `created`
        assert json.loads(done.response or b"") == json.loads(ended.response or b"")
    inherited = sum(map(len, before.ids.values()))
    assert done.usage.completion_tokens == ended.usage.completion_tokens == 200 * n
    assert sum(delta.tokens for delta in after) == 200 * n - inherited
    assert sum(delta.prompt_tokens for delta in after) == 0
    assert done.usage.prompt_tokens == ended.usage.prompt_tokens
    (entry,) = report.entries
    assert (entry.attempt, entry.inherited_tokens) == (2, inherited)
    assert entry.usage == done.usage
    assert done.usage.ttft_s == 0.5, "the reader's"
    assert done.usage.total_s > 2.0
    assert stats.unjournaled_tokens == 0
    assert stats.completion_tokens == 200 * n - inherited


def _said(*deltas: Delta) -> str:
    """The text of the first choice in all chunks, wherever the engine cut it."""
    chunks = [json.loads(chunk) for delta in deltas for chunk in delta.chunks]
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)


async def test_what_reports_no_token_ids_is_not_moved(tmp_path: Path) -> None:
    async with gateway(tmp_path, behaviour=SLOW) as played:
        await played.say(submit("r", max_tokens=2000, ids=False))
        await until(lambda: played.deltas("r"))
        await played.agent.drain(DRAIN_S)
        await played.say(wire.Cancel("r", "cancelled"))
        assert (await played.hear(Done)).finish_reason == "cancelled"


async def test_requests_that_end_within_the_drain_do_not_move(tmp_path: Path) -> None:
    async with gateway(tmp_path, behaviour=SLOW) as played:
        await played.say(submit("r", max_tokens=20))
        await until(lambda: played.deltas("r"))
        await played.agent.drain(30.0)
        assert (await played.hear(Done)).finish_reason == "length"
        assert await played.hear(wire.UsageReport), "and it is billed"


async def test_waiting_requests_move_unchanged(tmp_path: Path) -> None:
    """Without output: in the queue, on the engine, or submitted while the agent already drains."""
    before = Resume({0: [1, 2]}, {}, Usage(5, 1, 2))
    async with gateway(tmp_path, behaviour=STALLED) as played:
        for number in range(12):  # more than run at once
            await played.say(submit(f"r{number}"))
        await until(lambda: played.agent.reports.stats().queued)
        await played.agent.drain(DRAIN_S)
        await played.say(submit("late", attempt=2, resume=before))
        for id in [*(f"r{number}" for number in range(12)), "late"]:
            done = await played.hear(Done, id=id)
            usage = done.usage
            assert done.finish_reason == "moved"
            counted = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
            assert counted == ((5, 1, 2) if id == "late" else (0, 0, 0))


async def test_immovable_requests_are_refused_during_a_drain(tmp_path: Path) -> None:
    async with gateway(tmp_path) as played:
        await played.agent.drain(DRAIN_S)
        await played.say(submit("r", ids=False))
        done = await played.hear(Done)
        assert done.fault is not None and done.fault.code == Overloaded.code


async def test_an_operators_drain_finishes_what_runs(tmp_path: Path) -> None:
    async with gateway(tmp_path, behaviour=SLOW) as played:
        await played.say(submit("r", max_tokens=50))
        await until(lambda: played.deltas("r"))
        await played.say(wire.Drain())
        assert (await played.hear(Done, id="r")).finish_reason == "length"


async def test_only_the_end_is_sent_of_an_answer_that_was_delivered(
    tmp_path: Path,
) -> None:
    whole, _ = await undisturbed(folder(tmp_path, "whole"))
    async with gateway(folder(tmp_path, "second")) as played:
        await played.say(submit("r", attempt=2, resume=resume_of(whole)))
        done = await played.hear(Done)
        assert played.deltas("r") == []
        assert (done.finish_reason, done.usage.completion_tokens) == ("length", 60)


async def test_a_resume_without_a_token_begins_anew(tmp_path: Path) -> None:
    whole, ended = await undisturbed(folder(tmp_path, "whole"))
    async with gateway(folder(tmp_path, "second")) as played:
        resume = Resume({0: []}, {}, Usage(3, 2, 1))
        await played.say(submit("r", attempt=2, resume=resume))
        done = await played.hear(Done)
        again = together(played.deltas("r"))
        report = await played.hear(wire.UsageReport)
    assert again == msgspec.structs.replace(whole, attempt=2)
    assert done.usage.prompt_tokens == ended.usage.prompt_tokens
    assert report.entries[0].inherited_tokens == 0


async def test_an_attempt_that_dies_at_once_keeps_its_inherited_usage(tmp_path: Path) -> None:
    whole, _ = await undisturbed(folder(tmp_path, "whole"), max_tokens=40)
    async with gateway(folder(tmp_path, "second"), behaviour=STALLED) as played:
        await played.say(submit("r", attempt=2, resume=resume_of(whole)))
        await until(lambda: played.agent.reports.stats().running)
        await played.say(wire.Cancel("r", "cancelled", 2))
        (entry,) = (await played.hear(wire.UsageReport)).entries
        assert played.agent.reports.stats().unjournaled_tokens == 0
    assert (entry.usage.completion_tokens, entry.inherited_tokens) == (40, 40)
    assert entry.usage.prompt_tokens == whole.prompt_tokens


async def test_a_gateway_takes_back_what_waits_in_the_queue(tmp_path: Path) -> None:
    async with gateway(tmp_path, behaviour=STALLED) as played:
        for i in range(8):
            await played.say(submit(f"r{i}"))
        await until(lambda: played.engine.stats().running == 8)
        await played.say(submit("waits"))
        await played.say(submit("stays", ids=False))
        await until(lambda: played.agent.reports.stats().queued == 2)
        for id in ("stays", "r0", "gone", "waits"):
            await played.say(wire.Cancel(id, wire.RECALLED))
        done = await played.hear(Done, id="waits")
        assert done.finish_reason == wire.MOVED and done.usage.completion_tokens == 0
        assert played.agent.reports.stats().queued == 1, "its gateway could not move it"
        assert played.engine.stats().running == 8
        assert not [one for one in played.heard if isinstance(one, Done) and one.id != "waits"]
        assert played.agent.reports.stats().wait_s > 0


async def handed_over(root: Path, id: str = "r") -> wire.Handover:
    """What an agent hands over that only computes the prompt, as a gateway passes it on."""
    async with gateway(root) as played:
        await played.say(submit(id, prefill=True))
        done = await played.hear(Done)
        assert not played.deltas(id) and done.finish_reason == wire.PREFILLED
        (entry,) = (await played.hear(wire.UsageReport)).entries
        assert entry.finish_reason == wire.PREFILLED and entry.usage == done.usage
        assert done.usage.prompt_tokens > 0 == done.usage.completion_tokens
        assert played.agent.reports.stats().unjournaled_tokens == 0
        handover: wire.Handover = done.handover
        return msgspec.structs.replace(handover, usage=done.usage)


async def test_a_prompt_that_another_agent_computed_is_counted_there_alone(tmp_path: Path) -> None:
    whole, ended = await undisturbed(folder(tmp_path, "whole"))
    handover = await handed_over(folder(tmp_path, "first"))
    async with gateway(folder(tmp_path, "second")) as played:
        await played.say(submit("r", attempt=2, handover=handover))
        done = await played.hear(Done)
        given = together(played.deltas("r"))
        assert (given.text, given.prompt_tokens) == (whole.text, whole.prompt_tokens)
        assert done.usage.prompt_tokens == ended.usage.prompt_tokens
        assert done.usage.completion_tokens == ended.usage.completion_tokens
        assert done.usage.total_s > handover.usage.total_s
        assert played.engine.stats().prompt_tokens == 0


async def test_another_tenants_handover_ends_the_attempt(tmp_path: Path) -> None:
    handover = await handed_over(folder(tmp_path, "first"))
    async with gateway(folder(tmp_path, "second")) as played:
        theirs = submit("r", attempt=2, handover=handover)
        await played.say(msgspec.structs.replace(theirs, salt="another"))
        done = await played.hear(Done)
        assert done.fault is not None and done.fault.code == "engine_failed"


async def test_a_handover_is_not_used_after_its_time(tmp_path: Path) -> None:
    late = wire.Handover(b"of nobody", UNDERWAY_S, Usage(7))
    async with gateway(tmp_path) as played:
        await played.say(submit("r", attempt=2, handover=late))
        done = await played.hear(Done)
        assert done.fault is None and done.usage.prompt_tokens == 7


async def test_a_gateway_takes_back_a_prompt_that_is_being_computed(tmp_path: Path) -> None:
    async with gateway(tmp_path, behaviour=STALLED) as played:
        await played.say(submit("r", prefill=True))
        await until(lambda: played.engine.stats().running)
        await played.say(wire.Cancel("r", wire.RECALLED))
        assert (await played.hear(Done)).finish_reason == wire.MOVED
        assert not played.engine.stats().running
