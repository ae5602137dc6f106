"""Faults of unpatched vLLM, each tested on the real engine; see the patches and `load`."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from inference.agent.engines.engine import Engine, LocalAdapter
from inference.content import CONFIG, WEIGHTS
from inference.errors import AdapterLoadFailed
from tests.engine.conftest import MAX_LOADED, SLOTS
from tests.engine.driving import Answer, ask, work_of
from tests.engine.factory import AdapterFactory

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]


@asynccontextmanager
async def loaded(engine: Engine, adapters: list[LocalAdapter]) -> AsyncIterator[None]:
    for adapter in adapters:
        await engine.load(adapter)
    try:
        yield
    finally:
        for adapter in adapters:
            await engine.unload(adapter)


def logprobs(answer: Answer) -> list[tuple[str, float]]:
    content = answer.response["choices"][0]["logprobs"]["content"]
    return [(token["token"], token["logprob"]) for token in content]


async def beside(engine: Engine, others: list[LocalAdapter | None]) -> list[tuple[str, float]]:
    """The base model's tokens and log-probabilities while `others` run beside it throughout."""
    streams = [
        engine.generate(work_of(adapter=adapter, max_tokens=300, stream=True, salt=f"salt-{i}"))
        for i, adapter in enumerate(others)
    ]
    for stream in streams:
        await anext(stream)
    answer = await ask(engine, logprobs=True, max_tokens=24, salt="alone")
    assert engine.stats().running == len(others), "the others outlast it"
    for stream in streams:
        await stream.aclose()
    return logprobs(answer)


async def test_the_base_model_is_itself_while_all_slots_serve_adapters(
    vllm: Engine, factory: AdapterFactory
) -> None:
    adapters = [factory.make(seed=seed, strength=0.3) for seed in range(SLOTS)]
    async with loaded(vllm, adapters):
        expected = await beside(vllm, [None] * SLOTS)
        assert await beside(vllm, [*adapters]) == expected, "bit for bit"


async def test_blocks_that_held_nan_are_clean_for_the_next_request(
    vllm: Engine, factory: AdapterFactory
) -> None:
    long = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 12}]
    expected = await ask(vllm, messages=long, max_tokens=24, salt="before", logprobs=True)
    whole = factory.make(seed=3)
    broken = factory.changed(whole, lambda _, tensor: tensor * math.nan)
    async with loaded(vllm, [broken]):
        # Enough requests to use every block of the cache.
        tokens = vllm.info.kv_tokens // 200 + 1
        await asyncio.gather(
            *(ask(vllm, adapter=broken, messages=long, salt=f"nan-{i}") for i in range(tokens))
        )
    answers = await asyncio.gather(
        *(
            ask(vllm, messages=long, max_tokens=24, salt=f"after-{i}", logprobs=True)
            for i in range(16)
        )
    )
    for answer in answers:
        for (token, logprob), (wanted, its_logprob) in zip(
            logprobs(answer), logprobs(expected), strict=True
        ):
            assert token == wanted
            assert math.isclose(logprob, its_logprob, abs_tol=1e-4)


def _missing(adapter: LocalAdapter) -> None:
    shutil.rmtree(adapter.path)


def _truncated(adapter: LocalAdapter) -> None:
    weights = adapter.path / WEIGHTS
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def _garbage(adapter: LocalAdapter) -> None:
    (adapter.path / WEIGHTS).write_bytes(b"not safetensors at all")


def _no_config(adapter: LocalAdapter) -> None:
    (adapter.path / CONFIG).unlink()


def _rank_too_high(adapter: LocalAdapter) -> None:
    config = adapter.path / CONFIG
    config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 512}))


async def test_adapters_that_cannot_be_loaded_end_nobodys_stream(
    vllm: Engine, factory: AdapterFactory
) -> None:
    good = factory.make(seed=4)
    long: dict[str, Any] = {"adapter": good, "max_tokens": 400}

    async def cannot_be_loaded(spoil: Callable[[LocalAdapter], None]) -> None:
        bad = factory.make(seed=5)
        spoil(bad)
        with pytest.raises(AdapterLoadFailed):
            await vllm.load(bad)
        with pytest.raises(AdapterLoadFailed):
            await ask(vllm, adapter=bad)

    async with loaded(vllm, [good]):
        expected = await ask(vllm, **long)
        async with aclosing(vllm.generate(work_of(stream=True, **long))) as running:
            first = await anext(running)
            spoils = (_missing, _truncated, _garbage, _no_config, _rank_too_high)
            await asyncio.gather(*map(cannot_be_loaded, spoils))
            rest = [output.text async for output in running]
        assert "".join([first.text, *rest]) == expected.text
    assert vllm.alive


async def test_an_adapter_without_matching_modules_is_refused(
    vllm: Engine, factory: AdapterFactory
) -> None:
    from safetensors.torch import load_file, save_file

    stray = factory.make(seed=6)
    tensors = load_file(stray.path / WEIGHTS)
    moved = {name.replace("layers.", "layers.9"): tensor for name, tensor in tensors.items()}
    save_file(moved, stray.path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(AdapterLoadFailed):
        await vllm.load(stray)


async def test_files_may_be_deleted_after_loading(vllm: Engine, factory: AdapterFactory) -> None:
    """More adapters are loaded than there are slots, so that some leave their slot."""
    adapters = [factory.make(seed=30 + i) for i in range(MAX_LOADED)]
    async with loaded(vllm, adapters):
        texts = [(await ask(vllm, adapter=adapter)).text for adapter in adapters]
        for adapter in adapters:
            shutil.rmtree(adapter.path)
        extra = factory.make(seed=50)
        with pytest.raises(AdapterLoadFailed, match="can load no more"):
            await vllm.load(extra)
        assert [(await ask(vllm, adapter=adapter)).text for adapter in adapters] == texts
    with pytest.raises(AdapterLoadFailed):
        await vllm.load(adapters[0])
    assert vllm.alive
    assert len(set(texts)) == MAX_LOADED


async def test_a_failed_load_does_not_count_as_loaded(
    vllm: Engine, factory: AdapterFactory
) -> None:
    bad = factory.make(seed=7)
    _truncated(bad)
    for attempt in range(MAX_LOADED + 2):
        with pytest.raises(AdapterLoadFailed):
            await vllm.load(replace(bad, int_id=20_000 + attempt))
    good = factory.make(seed=8)
    async with loaded(vllm, [good]):
        assert (await ask(vllm, adapter=good)).tokens == 8


async def test_a_new_version_meets_no_old_weights_and_no_old_cache(
    vllm: Engine, factory: AdapterFactory
) -> None:
    """40 swaps of an adapter under load: each version answers as it does on a fresh engine.

    Versions alternate between two contents, so that a stale answer is a wrong one. All share one
    salt and one long prompt; each has its own name, path and integer id, as the agent gives them.
    """
    long = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 8}]
    drafts = [factory.make(seed=60), factory.make(seed=61)]
    expected = []
    for draft in drafts:
        async with loaded(vllm, [draft]):
            expected.append((await ask(vllm, adapter=draft, messages=long, salt="cold")).text)
    assert expected[0] != expected[1]

    neighbour = factory.make(seed=62)
    async with loaded(vllm, [neighbour]), aclosing(_endless(vllm, neighbour)) as noise:
        for swap in range(40):
            version = swapped(factory, drafts[swap % 2], swap)
            async with loaded(vllm, [version]):
                await anext(noise)
                answers = await asyncio.gather(
                    *(ask(vllm, adapter=version, messages=long, salt="acme") for _ in range(2))
                )
            assert {answer.text for answer in answers} == {expected[swap % 2]}, swap


async def _endless(engine: Engine, adapter: LocalAdapter) -> AsyncGenerator[None, None]:
    while True:
        async with aclosing(
            engine.generate(work_of(adapter=adapter, max_tokens=400, stream=True))
        ) as outputs:
            async for _ in outputs:
                yield


def swapped(factory: AdapterFactory, draft: LocalAdapter, swap: int) -> LocalAdapter:
    """The content of `draft` as another version; a field in its config changes the digest."""
    folder = factory.folder / f"swap-{swap}"
    shutil.copytree(draft.path, folder)
    config = json.loads((folder / CONFIG).read_text()) | {"revision": str(swap)}
    (folder / CONFIG).write_text(json.dumps(config))
    return factory.adopt(folder)


SEEDED = {"temperature": 1.0, "seed": 7, "max_tokens": 16}
STEP = 256
"""Tokens of one step of this engine; longer prompts are computed in chunks."""


def prompt(tokens: int, first: int = 0) -> list[int]:
    """A prompt of `tokens` ordinary token ids, different for each `first`."""
    return [8 + (7 * i + first) % 380 for i in range(tokens)]


async def texts(engine: Engine, **body: Any) -> list[str]:
    """The text of each choice."""
    answer = await ask(engine, "completion", **body)
    bodies = [json.loads(output.response) for output in answer.outputs if output.response]
    return [choice["text"] for body in bodies for choice in body["choices"]] or [answer.text]


async def test_a_long_prompt_with_a_seed_does_not_end_the_engine(vllm: Engine) -> None:
    answer = await ask(vllm, "completion", prompt=prompt(STEP + 1), **SEEDED, salt="long")
    assert answer.tokens == SEEDED["max_tokens"]
    assert vllm.alive


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"top_p": 0.9, "top_k": 50, "min_p": 0.01},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.2},
        {"logprobs": 3},
        {"n": 3},
        {"n": 2, "logprobs": 1, "frequency_penalty": 0.5},
    ],
    ids=["plain", "filters", "penalties", "logprobs", "choices", "all"],
)
async def test_a_seed_gives_one_answer_however_its_prompt_is_computed(
    vllm: Engine, further: dict[str, Any]
) -> None:
    salt = f"seeded-{further}"
    asked = SEEDED | further | {"prompt": prompt(400)}
    # In one chunk, because the rest is cached; then in two; then all of it from the cache.
    await ask(vllm, "completion", prompt=prompt(STEP), max_tokens=1, salt=salt)
    expected = await texts(vllm, **asked, salt=salt)
    assert await texts(vllm, **asked, salt=f"{salt}-cold") == expected
    assert await texts(vllm, **asked, salt=f"{salt}-cold") == expected
    assert await texts(vllm, **asked | {"seed": 8}, salt=salt) != expected
    assert len(set(expected)) == further.get("n", 1), "each choice has a seed of its own"

    # In chunks of whatever size the neighbours leave; some of these have a seed.
    crowd = await asyncio.gather(
        *(
            ask(
                vllm,
                "completion",
                prompt=prompt(300 + i, first=i),
                temperature=1.0,
                seed=i if i % 2 else None,
                max_tokens=8 + i,
                salt=f"{salt}-crowd-{i}",
            )
            for i in range(8)
        ),
        *(texts(vllm, **asked, salt=f"{salt}-among-{i}") for i in range(4)),
    )
    assert crowd[8:] == [expected] * 4


async def test_a_seed_gives_one_answer_also_after_a_preemption(vllm: Engine) -> None:
    """vLLM recomputes a preempted request's prompt and answer, in chunks."""
    count, length, wanted = 32, 300, 200
    assert count * length <= vllm.info.kv_tokens < count * (length + wanted), (
        "all begin at once, but they cannot all end at once"
    )

    def asked(i: int) -> dict[str, Any]:
        return SEEDED | {"prompt": prompt(length, first=i), "max_tokens": wanted, "seed": i}

    together = await asyncio.gather(
        *(texts(vllm, **asked(i), salt=f"together-{i}") for i in range(count))
    )
    # vLLM preempts the latest requests; this few fit together.
    last = range(count - 8, count)
    assert len(last) * (length + wanted) <= vllm.info.kv_tokens
    apart = await asyncio.gather(*(texts(vllm, **asked(i), salt=f"apart-{i}") for i in last))
    assert apart == [together[i] for i in last]
