"""Adapters on vLLM answer as PEFT and transformers do with the same weights, in float32.

The greedy text must be equal and each log-probability within TOLERANCE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine, LocalAdapter
from tests.engine.driving import Answer, ask
from tests.engine.factory import AdapterFactory
from tests.engine.reference import TOKENS, Expected, reference

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

TOLERANCE = 1e-3
"""Largest difference of a log-probability: both sum float32 products, in different orders."""

PATTERNS: dict[str, Any] = {
    "rank_pattern": {"0.self_attn.q_proj": 2, "q_proj": 8, "v_proj": 16},
    "alpha_pattern": {"v_proj": 5, "down_proj": 0.5},
    "exclude_modules": ["o_proj"],
    "use_rslora": True,
}


@dataclass(frozen=True)
class Subject:
    """An engine with adapters loaded, and the files that they were loaded from."""

    engine: Engine
    base: Path
    adapters: list[LocalAdapter | None]
    """None is the base model."""
    prompts: list[list[int]]

    async def serve(self, adapter: LocalAdapter | None, prompt: list[int]) -> Answer:
        """The engine's greedy answer, with its tokens' log-probabilities."""
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": TOKENS, "logprobs": 0}
        return await ask(self.engine, "completion", adapter=adapter, **body)

    def expected(self, adapter: LocalAdapter | None, prompt: list[int]) -> Expected:
        """The answer of transformers and PEFT."""
        return reference(self.base, adapter and adapter.path, tuple(prompt))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def subject(vllm: Engine, base: Path, factory: AdapterFactory) -> AsyncIterator[Subject]:
    """The random Llama with random adapters, one of them with a rank and a scaling for each of
    some modules."""
    adapters = [
        factory.make("acme", seed=70, rank=4, strength=0.1),
        factory.make("bolt", seed=71, rank=8, strength=0.15),
        factory.make("cask", seed=72, rank=16, strength=0.05),
        factory.make("dune", seed=73, rank=4, strength=0.15, **PATTERNS),
    ]
    for adapter in adapters:
        await vllm.load(adapter)
    prompts = [[9, 30, 77, 120, 41], [200, 13, 55, 54, 53, 52, 300, 21], [5, 6, 7, 8] * 20]
    yield Subject(vllm, base, [None, *adapters], prompts)
    for adapter in adapters:
        await vllm.unload(adapter)


async def test_each_alone(subject: Subject) -> None:
    for adapter in subject.adapters:
        for prompt in subject.prompts:
            compare(await subject.serve(adapter, prompt), subject.expected(adapter, prompt))


async def test_all_in_one_batch(subject: Subject) -> None:
    asked = [(adapter, prompt) for prompt in subject.prompts for adapter in subject.adapters]
    answers = await asyncio.gather(*(subject.serve(*each) for each in asked))
    for each, answer in zip(asked, answers, strict=True):
        compare(answer, subject.expected(*each))


async def test_the_adapters_differ(subject: Subject) -> None:
    """Otherwise equality with PEFT would prove little."""
    texts = {subject.expected(adapter, subject.prompts[0])[0] for adapter in subject.adapters}
    assert len(texts) > 1


def compare(answer: Answer, expected: Expected) -> None:
    text, logprobs = expected
    (choice,) = answer.response["choices"]
    # An answer may end within a character: vLLM omits its bytes, transformers marks them.
    assert choice["text"].rstrip("\ufffd") == text.rstrip("\ufffd")
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(logprobs, abs=TOLERANCE)
