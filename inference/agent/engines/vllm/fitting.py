"""Fits an engine without a GPU to its machine: dtype, KV cache and context of the model.

float32 is three times as fast as bfloat16 on AVX2, so bfloat16 is for models that only fit so. With
a GPU vLLM decides all of this itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.nn import Module
from vllm.config import ModelConfig, ParallelConfig
from vllm.platforms import current_platform

from inference.agent.engines import memory
from inference.agent.engines.memory import DoesNotFit, MemoryPlan, ModelMemory
from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.shapes import linear_shapes, on_meta
from inference.agent.engines.vllm.start import engine_args

DTYPES = ("float32", "bfloat16")
DEFAULT_BLOCK = 128
"""vLLM's block size on a CPU."""


def fitted(profile: EngineProfile) -> tuple[EngineProfile, str]:
    """The profile with what it leaves open, and a sentence if the model's context was cut.

    Raises:
        BadProfile: the model doesn't fit, vLLM can't serve it here, or it doesn't take a setting.
    """
    if not current_platform.is_cpu():
        return profile, ""
    dtypes = [profile.dtype] if profile.dtype else DTYPES
    for dtype in dtypes:
        whole = replace(profile, dtype=dtype)
        config = engine_args(whole).create_model_config()
        if config.is_moe:
            raise BadProfile(
                f"model is a mixture of experts ({config.architecture}), which vLLM serves with "
                "adapters only on a GPU"
            )
        try:
            plan = _plan(whole, config)
        except DoesNotFit:
            if dtype == dtypes[-1]:
                raise
            continue
        found = replace(whole, kv_cache_memory_bytes=plan.kv_bytes, max_model_len=plan.context)
        return found, plan.notice
    raise AssertionError("the last dtype returns or raises")


def _plan(profile: EngineProfile, config: ModelConfig) -> MemoryPlan:
    return memory.plan(
        _needed(profile, config),
        memory.free_bytes(),
        profile.block_size or DEFAULT_BLOCK,
        profile.kv_cache_memory_bytes,
        profile.max_model_len,
    )


def _needed(profile: EngineProfile, config: ModelConfig) -> ModelMemory:
    bytes_each = config.dtype.itemsize
    rank, loaded = profile.max_lora_rank, profile.max_loras + profile.loaded_adapters
    model, prefix = on_meta(config.hf_config)
    modules = linear_shapes(model, prefix).values()
    return ModelMemory(
        dtype=str(config.dtype).removeprefix("torch."),
        weights=_weights(config, model),
        adapters=loaded * rank * sum(out + into for out, into in modules) * bytes_each,
        kv_token=_kv_token(config),
        context=config.max_model_len,
    )


def _weights(config: ModelConfig, model: Module) -> int:
    """Bytes of the weights in memory; for quantized ones, of their files."""
    if config.is_quantized and Path(config.model).is_dir():
        return sum(file.stat().st_size for file in Path(config.model).glob("*.safetensors"))
    return sum(weight.numel() for weight in model.parameters()) * int(config.dtype.itemsize)


def _kv_token(config: ModelConfig) -> int:
    """Bytes of the KV cache for a token. For layers with a sliding window or a state instead of
    keys and values this is too much."""
    if config.is_attention_free:
        return 0
    one = ParallelConfig()
    values = config.get_num_kv_heads(one) * config.get_head_size() * (1 if config.use_mla else 2)
    return int(config.get_num_layers(one) * values * config.dtype.itemsize)
