"""The arithmetic of sizes, against published figures, simulations and itself."""

from __future__ import annotations

import json
import math
import random
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest

from demo import BASE
from inference.sizing import (
    MODELS,
    CannotSize,
    Device,
    EngineSpeed,
    ModelSize,
    Traffic,
    break_even,
    described,
    distinct,
    plan,
    resident,
)

pytestmark = pytest.mark.pure

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
}  # fmt: skip
MISTRAL = LLAMA | {"vocab_size": 32768}
SMOL: dict[str, Any] = {
    "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
H100 = Device(memory=80e9, bandwidth=3.35e12, flops=989e12, price=3.0)
CHATS = Traffic(requests_s=20, prompt=1000, output=200, cached=0.5, adapters=1000, slots=64)


@pytest.mark.parametrize(
    ("config", "parameters", "kv_token"),
    [  # as published with the models, and as vLLM has it from these files
        (LLAMA, 8_030_261_248, 131_072),
        (QWEN, 7_615_616_512, 57_344),
        (MISTRAL, 7_248_023_552, 131_072),
        (SMOL, 134_515_008, 23_040),
    ],
)
def test_sizes_are_those_of_published_models(
    config: dict[str, Any], parameters: int, kv_token: int
) -> None:
    model = ModelSize.of(config)
    assert model.parameters == parameters
    assert model.kv_token("bfloat16") == kv_token
    assert model.kv_token("fp8") == kv_token / 2


def test_the_demos_weights_have_their_size() -> None:
    model = ModelSize.of(json.loads((BASE / "config.json").read_text()))
    size = (BASE / "model.safetensors").stat().st_size
    width = next(one for one in (2, 4) if abs(size - one * model.parameters) < 100_000)
    assert abs(size - width * model.parameters) < 0.01 * size


def test_an_adapter_has_two_matrices_in_each_layer() -> None:
    # PEFT says 41,943,040 for all linear layers of Llama 3.1 8B at rank 16.
    assert ModelSize.of(LLAMA).adapter(16, "bfloat16") == 2 * 41_943_040


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "no num_attention_heads"),
        (LLAMA | {"num_local_experts": 8}, "experts"),
        ({name: LLAMA[name] for name in LLAMA if name != "vocab_size"}, "no vocab_size"),
    ],
)
def test_what_cannot_be_sized_is_said(config: dict[str, Any], said: str) -> None:
    with pytest.raises(CannotSize, match=said):
        ModelSize.of(config)


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CannotSize, match=r"weights take 16\.1 GB"):
        plan(ModelSize.of(LLAMA), replace(H100, memory=16e9), CHATS, "bfloat16", "bfloat16")


def test_one_sequence_alone_takes_the_time_of_reading_the_weights() -> None:
    device = replace(H100, bandwidth_share=1.0, step_s=0.0)
    alone = Traffic(requests_s=0.01, prompt=1, output=1)
    found = plan(ModelSize.of(LLAMA), device, alone, "bfloat16", "bfloat16", longest=1)
    assert found.step_s == pytest.approx(2 * 8_030_261_248 / 3.35e12, rel=1e-3)
    assert (found.sequences, found.engines) == (1, 1)


def test_a_plan_carries_its_traffic() -> None:
    model = ModelSize.of(LLAMA)
    found = plan(model, H100, CHATS, "bfloat16", "bfloat16")
    assert found.engines * found.capacity * CHATS.load >= CHATS.requests_s
    assert (found.engines - 1) * found.capacity * CHATS.load < CHATS.requests_s
    held = found.sequences * (CHATS.prompt + CHATS.output) * found.kv_token
    assert found.weights + CHATS.slots * found.adapter + held <= 0.9 * H100.memory
    spent = found.engines * H100.price / 3600
    assert found.cost_million == pytest.approx(spent / (20 * 1200) * 1e6)
    assert 0 < found.running < found.sequences and 0 < found.tpot_s < found.step_s
    assert found.ttft_s >= found.prefill_s + found.tpot_s


def test_more_of_anything_needs_no_fewer_engines() -> None:
    model = ModelSize.of(LLAMA)
    before = plan(model, H100, CHATS, "bfloat16", "bfloat16")
    for more in (
        replace(CHATS, requests_s=200), replace(CHATS, prompt=8000), replace(CHATS, output=2000),
        replace(CHATS, cached=0.0), replace(CHATS, load=0.35),
    ):  # fmt: skip
        assert plan(model, H100, more, "bfloat16", "bfloat16").engines >= before.engines
    halved = plan(model, H100, CHATS, "int8", "fp8")
    assert halved.capacity > before.capacity and halved.sequences > before.sequences


def test_traffic_of_nobody_costs_without_bound() -> None:
    found = plan(ModelSize.of(SMOL), H100, replace(CHATS, requests_s=0), "bfloat16", "bfloat16")
    assert (found.engines, found.cost_million) == (1, math.inf)


@pytest.mark.parametrize(("zipf", "slots"), [(0.8, 16), (1.0, 64), (1.2, 200)])
def test_residency_is_that_of_a_simulated_cache(zipf: float, slots: int) -> None:
    weights = [rank**-zipf for rank in range(1, 501)]
    asked = random.Random(1).choices(range(500), weights, k=60_000)
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for adapter in asked:
        hits += adapter in kept
        kept[adapter] = None
        kept.move_to_end(adapter)
        if len(kept) > slots:
            kept.popitem(last=False)
    assert resident(500, zipf, slots) == pytest.approx(hits / len(asked), abs=0.02)
    batches = [len({*asked[at : at + 64]}) for at in range(0, len(asked), 64)]
    assert distinct(500, zipf, 64) == pytest.approx(sum(batches) / len(batches), rel=0.03)


def test_without_slots_nothing_is_resident_and_with_enough_all() -> None:
    assert (resident(10, 1.0, 0), resident(10, 1.0, 10), resident(0, 1.0, 0)) == (0.0, 1.0, 1.0)


def test_engines_pay_from_some_traffic_on() -> None:
    model = ModelSize.of(LLAMA)
    found = plan(model, H100, CHATS, "bfloat16", "bfloat16")
    at = break_even(found, H100, CHATS, 0.5, 1.5)
    spent = at * (1000 * 0.5 + 200 * 1.5) / 1e6 * 3600
    assert spent == pytest.approx(H100.price)
    assert break_even(found, H100, CHATS, 0.0, 0.0) == math.inf
    assert break_even(found, H100, CHATS, 1e-4, 1e-4) == math.inf


@pytest.mark.parametrize("wrong", ["8", 0, -1, 1.5, True, 10**400, [1], None])
def test_what_is_no_size_is_refused(wrong: Any) -> None:
    with pytest.raises(CannotSize, match="vocab_size"):
        ModelSize.of(LLAMA | {"vocab_size": wrong})


def test_the_listed_models_are_those_of_their_configs() -> None:
    assert [*MODELS.values()] == [ModelSize.of(one) for one in (LLAMA, QWEN, MISTRAL, SMOL)]


def test_a_plan_in_words() -> None:
    model = MODELS["Llama 3.1 8B"]
    found = plan(model, H100, CHATS, "bfloat16", "bfloat16")
    said = dict(described(model, H100, CHATS, found, 12.5))
    assert said["Parameters"] == "8,030,261,248"
    assert said["Engines"] == f"{found.engines}"
    assert said["Cheaper than the service from"] == "12.50 requests/s, one engine"
    assert "A million tokens, at this traffic" in said
    never = described(model, replace(H100, price=0), replace(CHATS, adapters=0), found, math.inf)
    assert never[-1][1] == "never, with these prices" and len(never) == len(said) - 3


@pytest.mark.parametrize(("places", "rate", "wait_s"), [(1, 0.5, 1.0), (2, 1.0, 1 / 3)])
def test_requests_wait_for_a_place_as_erlang_says(places: int, rate: float, wait_s: float) -> None:
    """Of engines on which an answer takes a second beside any others."""
    speed = EngineSpeed({1: 0.1}, context_s=0, prompt_s=0, prompt_tokens=256, request_s=0)
    traffic = Traffic(requests_s=rate, prompt=1, output=10, load=0.9)
    found = plan(MODELS["SmolLM2 135M"], H100, traffic, "int8", "int8", places, speed)
    assert (found.engines, found.running, found.tpot_s) == pytest.approx((1, rate, 0.1))
    assert found.ttft_s == pytest.approx(wait_s + rate / 2 * 0.1 + 0.1)


SPEED = (
    '{"steps": {"4": 0.02, "1": 0.01}, "context_s": 0, "prompt_s": 0, "prompt_tokens": 256, '
    '"request_s": 1}'
)


def test_a_measured_speed_is_read() -> None:
    found = EngineSpeed.read(SPEED)
    taken = [found.step(count, 100) for count in (0.5, 1, 2.5, 4, 7)]
    assert taken == pytest.approx([0.01, 0.01, 0.015, 0.02, 0.03])
    assert replace(found, steps={4: 0.02}).step(8, 0) == 0.02
    assert [found.chunks(tokens) for tokens in (10, 128, 512)] == [1, 1, 2.5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "Expected `object`"),
        ('{"steps": {"1": 1}}', "missing required field `context_s`"),
        (SPEED.replace("256", "0"), "Expected `int` >= 1"),
        (SPEED.replace("0.01", "-1"), "Expected `float` >= 0.0"),
        (SPEED.replace("0.01", "1e400"), "Number out of range"),
        (SPEED.replace("0.01", "0"), "each step takes time"),
    ],
)
def test_what_is_no_speed_is_refused(text: str, said: str) -> None:
    with pytest.raises(CannotSize, match=said):
        EngineSpeed.read(text)
