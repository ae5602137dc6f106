"""Requests of every kind that move from one agent to another on vLLM, as seen by their clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.engine import Engine
from inference.errors import EngineLost
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import MoveReason, MoveResult
from inference.link.accounts import LedgerEntry
from tests.engine.driving import nameless, said
from tests.engine.vllm.test_resume import JSON, WEATHER
from tests.inference.answers import MemoryAnswers
from tests.inference.rig import Gateway, agent_on, chat, gateway, until

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 160, "ignore_eos": True}
HELD: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 250}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
PROMPTS: dict[str, Any] = {"model": "tiny", "prompt": ["Who are you?", "The quick brown"]}

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "stream": (CHAT, chat("tiny", **SEEDED, **STREAM)),
    "whole": (CHAT, chat("tiny", **SEEDED)),
    "two": (CHAT, chat("tiny", n=2, **SEEDED, **STREAM)),
    "two whole": (CHAT, chat("tiny", n=2, **SEEDED)),
    "log-probabilities": (CHAT, chat("tiny", logprobs=True, **SEEDED, **STREAM)),
    "log-probabilities whole": (CHAT, chat("tiny", logprobs=True, **SEEDED)),
    "schema": (CHAT, chat("tiny", response_format=JSON, **HELD, **STREAM)),
    "tools": (CHAT, chat("tiny", tools=[WEATHER], tool_choice="required", **HELD, **STREAM)),
    "prompts": (COMPLETION, PROMPTS | SEEDED | STREAM),
    "prompts whole": (COMPLETION, PROMPTS | SEEDED),
}


async def ask(one: Gateway, name: str, key: str = "") -> tuple[Any, Any]:
    """The answer's content, and its usage."""
    path, body = ASKED[name]
    headers = {"Idempotency-Key": key} if key else {}
    async with one.client() as client:
        answer = await client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        whole = nameless(answer.json())
        return whole["choices"], whole["usage"]
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert not [chunk for chunk in chunks if "error" in chunk]
    return said(chunks), nameless(last)["usage"]


async def test_a_moved_answer_equals_an_undisturbed_one(vllm: Engine, tmp_path: Path) -> None:
    """Both agents share one engine, which no longer knows the first agent's requests."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    options: dict[str, Any] = {"max_running": 32}
    async with gateway(holding=Holding(60.0)) as one:
        one.keys.base_model = vllm.info.name
        async with agent_on(vllm, folders[0], [one], id="a", **options) as first:
            # Once each beforehand: a first grammar is compiled while other requests would end.
            await asyncio.gather(*(ask(one, name) for name in ASKED))
            asking = {name: asyncio.create_task(ask(one, name)) for name in ASKED}
            await until(lambda: len(first.agent._jobs) == len(ASKED))
            await until(lambda: all(job.counted_at for job in first.agent._jobs))
            await first.agent.drain(0.0)  # while no request has ended; the gateway holds them
            async with agent_on(vllm, folders[1], [one], id="b", **options):
                answers = {name: await task for name, task in asking.items()}
                moves = dict(one.hub.moves)
                for name, answer in answers.items():
                    assert answer == await ask(one, name), name
    assert moves[MoveReason.DRAINED, MoveResult.RESUMED] >= len(ASKED) - 3
    assert set(moves) <= {
        (MoveReason.DRAINED, MoveResult.RESUMED),
        (MoveReason.DRAINED, MoveResult.BEGUN_ANEW),
    }


async def test_an_adopted_answer_equals_an_undisturbed_one(vllm: Engine, tmp_path: Path) -> None:
    """Requests of each kind with an idempotency key continue through the other gateway, and each
    is billed once."""
    given: dict[str, Any] = {"answers": MemoryAnswers(), "grace_s": 120.0}
    given["holding"] = Holding(60.0)
    async with gateway(**given) as one, gateway(**given) as other:
        one.hub.gateways = [one.url, other.url]
        for at in (one, other):
            at.keys.base_model = vllm.info.name
        async with agent_on(vllm, tmp_path, [one, other], max_running=32) as rig:
            before = vllm.stats().completion_tokens
            asking = [asyncio.create_task(ask(one, name, name)) for name in ASKED]
            await until(lambda: len(rig.agent._jobs) == len(ASKED))
            await until(lambda: vllm.stats().completion_tokens > before + 20 * len(ASKED))
            one.engines.known = {}
            for link in list(one.hub._open):
                link.break_off(EngineLost("cut off"))
            await until(lambda: len(other.hub.orphans.turns(len("acme"))) == len(ASKED))
            answers = await asyncio.gather(*(ask(other, name, name) for name in ASKED))
            generated = vllm.stats().completion_tokens - before
            usages = [usage for _, usage in answers]
            assert generated == sum(usage["completion_tokens"] for usage in usages)
            await until(lambda: len(_highest(other)) == len(ASKED))
            billed = [entry.usage.completion_tokens for entry in _highest(other)]
            assert sorted(billed) == sorted(usage["completion_tokens"] for usage in usages)
            for name, answer in zip(ASKED, answers, strict=True):
                assert answer == await ask(other, name), name
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def _highest(at: Gateway) -> list[LedgerEntry]:
    """The ledger entries of requests that this gateway adopted."""
    return [entry for entry in at.ledger.entries.values() if entry.attempt > 1000]
