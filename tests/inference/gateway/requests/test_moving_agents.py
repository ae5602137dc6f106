"""Streams that move between agents on synthetic engines, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.synthetic import Behaviour, SyntheticEngine
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import Outcome, Why
from tests.inference.operations.bodies import messages, responses
from tests.inference.operations.items import as_chat, check_order, is_item_event
from tests.inference.rig import Gateway, Rig, agent_on, chat, gateway, until
from tests.inference.samples import MOVABLE

STEADY = Behaviour(tokens_per_second=200.0)
STALLS = Behaviour(tokens_per_second=200.0, stall_after_tokens=7)
"""In the middle of an answer, so that what happens then meets it."""

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
LONG: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "seed": 7}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


SAID = "a word and another " * 40
"""What the engine repeats for as long as it may."""


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MOVABLE.name, "prompt": "Once upon a time"} | fields


ASKED = {
    "stream": (CHAT, chat(stream=True, **USAGE, **LONG)),
    "whole": (CHAT, chat(**LONG)),
    "stream of two": (CHAT, chat(stream=True, n=2, **USAGE, **LONG)),
    "two whole": (CHAT, chat(n=2, **LONG)),
    "completion": (COMPLETION, completion(stream=True, **USAGE, **LONG)),
    "messages": (MESSAGES, messages(content=SAID, stream=True, max_tokens=40)),
    "whole messages": (MESSAGES, messages(content=SAID, max_tokens=40)),
    "responses": (RESPONSES, responses(stream=True, max_output_tokens=40, **LONG)),
    "whole responses": (RESPONSES, responses(max_output_tokens=40, **LONG)),
}


@dataclass
class Answer:
    """What a client has of an answer, but for who asked and when."""

    texts: dict[int, str]
    reasons: dict[int, str]
    usage: dict[str, Any]
    errors: list[Any]


@dataclass
class Pair:
    """Two agents at one gateway."""

    gateway: Gateway
    rigs: list[Rig]

    def busy(self) -> Rig:
        (rig,) = (one for one in self.rigs if one.engine.stats().running)
        return rig

    async def ask(self, path: str, body: dict[str, Any]) -> Answer:
        answer = Answer({}, {}, {}, [])
        async with self.gateway.client() as client:
            async with client.stream("POST", path, json=body) as response:
                assert response.status_code == 200, await response.aread()
                if body.get("stream"):
                    events = []
                    async for line in response.aiter_lines():
                        if line.startswith("data: ") and line != "data: [DONE]":
                            events.append(json.loads(line.removeprefix("data: ")))
                            note(answer, events[-1])
                    if is_item_event(events[0]):
                        check_order(events)
                else:
                    note(answer, json.loads(await response.aread()))
        return answer


def note(answer: Answer, body: dict[str, Any]) -> None:
    if is_item_event(body):
        body = as_chat(body)
    if "error" in body:
        answer.errors.append(body["error"])
    for choice in body.get("choices", ()):
        said = choice.get("delta") or choice.get("message") or choice
        index = choice["index"]
        text = said.get("content") or said.get("text") or ""
        answer.texts[index] = answer.texts.get(index, "") + text
        if choice["finish_reason"]:
            answer.reasons[index] = choice["finish_reason"]
    if "choices" in body:
        answer.usage |= body.get("usage") or {}
    else:
        note_event(answer, body)


def note_event(answer: Answer, body: dict[str, Any]) -> None:
    """Of Anthropic's API, or its whole answer."""
    texts = [block["text"] for block in body.get("content", ())]
    if said := "".join([*texts, body.get("delta", {}).get("text", "")]):
        answer.texts[0] = answer.texts.get(0, "") + said
    if reason := body.get("stop_reason") or body.get("delta", {}).get("stop_reason"):
        answer.reasons[0] = {"max_tokens": "length", "end_turn": "stop"}[reason]
    if counted := body.get("usage"):
        answer.usage = {
            "prompt_tokens": counted["input_tokens"] + counted["cache_read_input_tokens"],
            "completion_tokens": counted["output_tokens"],
        }


@asynccontextmanager
async def pair(root: Path, behaviour: Behaviour = STALLS) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(gateway(holding=Holding(60.0)))
        made = Pair(one, [])
        for name in ("a", "b"):
            (root / name).mkdir()
            engine = SyntheticEngine(MOVABLE, behaviour)
            stack.push_async_callback(engine.close)
            rig = await stack.enter_async_context(agent_on(engine, root / name, [one], id=name))
            made.rigs.append(rig)
        await until(lambda: len(one.hub.snapshot()) == 2)
        yield made


async def killed(rig: Rig) -> None:
    rig.running.cancel()


async def drained(rig: Rig) -> None:
    await rig.agent.drain(0.0)


GOES: dict[Why, Callable[[Rig], Awaitable[None]]] = {Why.LOST: killed, Why.DRAINED: drained}


@pytest.mark.parametrize("why", GOES)
@pytest.mark.parametrize("what", ASKED)
async def test_an_answer_that_moves_is_that_of_its_undisturbed_twin(
    tmp_path: Path, what: str, why: Why
) -> None:
    path, body = ASKED[what]
    async with pair(tmp_path) as made:
        asking = asyncio.create_task(made.ask(path, body))
        await until(lambda: any(one.engine.stats().completion_tokens for one in made.rigs))
        going = made.busy()
        await until(lambda: going.engine.stats().completion_tokens >= 7)
        for rig in made.rigs:
            if rig is not going:
                rig.engine.behaviour = STEADY  # type: ignore[attr-defined]
        await GOES[why](going)
        answer = await asking
        assert made.gateway.hub.moves == {(why, Outcome.RESUMED): 1}
        made.rigs = [rig for rig in made.rigs if rig is not going]
        twin = await made.ask(path, body)
    assert answer.errors == [] and answer == twin
    assert all(answer.texts.values()) and answer.usage["completion_tokens"]
