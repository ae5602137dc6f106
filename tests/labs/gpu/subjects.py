"""The models and adapters of the steps: made here, with random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.agent.engines.engine import LocalAdapter
from inference.agent.engines.profile import EngineProfile
from inference.content import CONFIG, FILES, WEIGHTS
from inference.link.engine_info import AdapterRef
from tests.engine.factory import TARGETS, make_base, make_tokenizer

RANK = 16
CUDA = "cuda"
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuSizes:
    """How much a step does: on a GPU, or on a CPU to try the script."""

    adapters: tuple[int, ...]
    streams: tuple[int, ...]
    tokens: int
    rounds: int


SIZES = {
    CUDA: GpuSizes((0, 1, 8, 64), (1, 8, 64, 256), 128, 2),
    "cpu": GpuSizes((0, 1, 8, 64), (1, 8), 24, 1),
}


def large_model(folder: Path, device: str) -> tuple[Path, dict[str, Any]]:
    """A folder with a model, and what vLLM needs besides: on a GPU one of the shape of Llama 3.1 8B
    without weights, which vLLM then makes up; its vocabulary is that of a tiny tokenizer."""
    if device != CUDA:
        return make_base(folder, 1024), {}
    from transformers import LlamaConfig

    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=1, dtype="bfloat16", **LLAMA_8B
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, {"load_format": "dummy"}


def profile_of(model: Path, device: str, adapters: int, extra: dict[str, Any]) -> EngineProfile:
    """The agent's settings for this model with a slot for each adapter."""
    slots = max(1, adapters)
    given: dict[str, Any] = {"max_loras": slots, "max_cpu_loras": slots, "extra": extra}
    if device == CUDA:
        return EngineProfile.on_gpu(
            str(model), dtype="bfloat16", max_num_seqs=256, max_model_len=2048, **given
        )
    return EngineProfile.on_cpu(
        str(model), dtype="float32", kv_cache_memory_bytes=64 << 20, max_model_len=1024, **given
    )


def many_adapters(model: Path, folder: Path, count: int) -> list[LocalAdapter]:
    """Adapters with the same random weights under different names and ids: to an engine, which
    reads each of them, they are different ones."""
    config = json.loads((model / "config.json").read_text())
    (folder / "weights").mkdir(parents=True)
    _write_adapter(folder / "weights", config)
    made = []
    for number in range(1, count + 1):
        digest = f"{number:064x}"
        path = folder / digest
        path.mkdir()
        for file in FILES:
            (path / file).symlink_to(folder / "weights" / file)
        made.append(LocalAdapter(AdapterRef(f"gpu/a{number}@{digest}", digest), number, path))
    return made


def _write_adapter(folder: Path, config: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (wide, high) in _widths(config).items():
            part = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{part}.{module}"
            for factor, shape in (("A", (RANK, wide)), ("B", (high, RANK))):
                values = torch.randn(shape, dtype=torch.float32) * 0.01
                tensors[f"{name}.lora_{factor}.weight"] = values.to(torch.bfloat16)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    lora = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": TARGETS}
    (folder / CONFIG).write_text(json.dumps(lora | {"task_type": "CAUSAL_LM", "bias": "none"}))


def _widths(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        "q_proj": (hidden, queries), "k_proj": (hidden, keys), "v_proj": (hidden, keys),
        "o_proj": (queries, hidden), "gate_proj": (hidden, inner), "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }  # fmt: skip
