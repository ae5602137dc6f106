"""Models of other people's architectures, with random weights: each is served with an adapter that
PEFT made, which passes the upload's checks and answers as it does with PEFT.

`make test` takes the first one, `make models` all.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.profile import EngineProfile
from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks.static import check
from tenants.adapters.checks.target_modules import TargetModules
from tests.engine.factory import AdapterFactory, write_model
from tests.engine.test_parity import Subject, compare

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]

MODELS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "qwen 3": ("Qwen3Config", {"max_position_embeddings": 40960}, ALL),
    "llama 3": (
        "LlamaConfig",
        {"max_position_embeddings": 131072, "rope_parameters": LLAMA3_ROPE},
        ALL,
    ),
    "gemma 3": (
        "Gemma3TextConfig",
        {
            "max_position_embeddings": 32768,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        ALL,
    ),
    "mistral": ("MistralConfig", {"max_position_embeddings": 32768, "sliding_window": None}, ALL),
    "phi 4": ("Phi3Config", {"max_position_embeddings": 16384}, FUSED),
}
PROMPTS = [[9, 30, 77, 120, 41], [5, 6, 7, 8] * 20]


@pytest.mark.parametrize("name", list(MODELS) if "MODELS" in os.environ else list(MODELS)[:1])
async def test_it_is_served_with_an_adapter(name: str, tmp_path: Path) -> None:
    import transformers

    from inference.agent.engines.vllm.engine import VLLMEngine

    config, options, targets = MODELS[name]
    make = getattr(transformers, config)
    base = write_model(tmp_path / "base", lambda size: make(vocab_size=size, **SMALL | options))
    engine = await VLLMEngine.start(EngineProfile.on_cpu(str(base), max_loras=1))
    try:
        own = engine.info
        factory = AdapterFactory(base, tmp_path)
        adapter = factory.make(target_modules=targets, strength=0.05)
        weights = (adapter.path / WEIGHTS).read_bytes()
        verdict = check(
            io.BytesIO((adapter.path / CONFIG).read_bytes()),
            io.BytesIO(weights),
            len(weights),
            TargetModules(own.modules, own.max_lora_rank),
        )
        assert verdict.accepted, list(verdict.findings)
        report = await engine.probe(adapter)
        assert report.finite and report.max_logprob_delta > 0
        subject = Subject(engine, base, [None, adapter], PROMPTS)
        for each in subject.adapters:
            for prompt in PROMPTS:
                compare(await subject.serve(each, prompt), subject.expected(each, prompt))
    finally:
        await engine.close()
