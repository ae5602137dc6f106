"""A bad engine profile is refused with the field, the value and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import pytest

from inference.agent.engines.profile import LORA_RANKS, BadProfile, EngineProfile


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"max_lora_rank": 24}, "max_lora_rank is 24: it must be one of 1, 8, 16, 32"),
        ({"dtype": "int4"}, "dtype is 'int4': it must be one of auto"),
        ({"max_loras": 0}, "max_loras is 0: it must be at least 1"),
        ({"max_model_len": -5}, "max_model_len is -5"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes is 0"),
        ({"max_loras": 4, "max_cpu_loras": 2}, "max_cpu_loras is 2: it must be at least max_loras"),
        ({"chat_template": Path("/nowhere.jinja")}, "this file does not exist"),
        ({"extra": {"dtype": "half", "seed": 1}}, "dtype can be neither in extra nor"),
        ({"extra": {"enable_prefix_caching": False}}, "enable_prefix_caching"),
        ({"extra": {"worker_extension_cls": "x.Y"}}, "worker_extension_cls"),
    ],
)
def test_a_bad_setting_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadProfile, match=message):
        EngineProfile(**({"model": "a/b"} | given))


def test_the_cpu_has_defaults_that_what_is_given_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    profile = EngineProfile.on_cpu("a/b", dtype="bfloat16", max_num_seqs=None)
    assert (profile.dtype, profile.max_num_seqs, profile.block_size) == ("bfloat16", 64, 32)
    assert profile.executor == "uni"
    assert profile.max_num_batched_tokens == 256
    assert EngineProfile.on_cpu("a/b", max_num_seqs=512).max_num_batched_tokens == 512
    assert profile.extra == {"long_prefill_token_threshold": 64}
    assert EngineProfile.on_cpu("a/b", max_model_len=32).extra == {
        "long_prefill_token_threshold": 32
    }
    given = {"long_prefill_token_threshold": 0}
    assert EngineProfile.on_cpu("a/b", extra=given).extra == given


@pytest.mark.parametrize(("cores", "sequences"), [(1, 16), (2, 16), (4, 32), (8, 64), (64, 64)])
def test_few_cores_run_few_sequences_at_once(
    cores: int, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    assert EngineProfile.on_cpu("a/b").max_num_seqs == sequences


def test_a_gpu_gets_vllms_defaults() -> None:
    profile = EngineProfile.on_gpu("a/b", max_loras=8)
    assert (profile.dtype, profile.executor, profile.kv_cache_memory_bytes) == (None, None, None)
    assert profile.max_loras == profile.loaded_adapters == 8


def test_the_name_is_the_served_one_or_the_models_last_part(tmp_path: Path) -> None:
    assert EngineProfile(model="org/Tiny-1B").name == "Tiny-1B"
    assert EngineProfile(model=str(tmp_path)).name == tmp_path.name
    assert EngineProfile(model=str(tmp_path), served_name="house").name == "house"


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(BadProfile, match="this folder does not exist"):
        EngineProfile(model="/models/none")


@pytest.mark.vllm
def test_vllm_takes_exactly_these_ranks() -> None:
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == LORA_RANKS


@pytest.mark.vllm
def test_an_extra_that_vllm_does_not_know() -> None:
    from inference.agent.engines.vllm.start import engine_args

    with pytest.raises(BadProfile, match="extra contains nonsense, which vLLM does not support"):
        engine_args(EngineProfile(model="a/b", extra={"nonsense": 1}))
    assert engine_args(EngineProfile(model="a/b", extra={"seed": 7})).seed == 7


def test_options_that_make_another_revision() -> None:
    for plain in (EngineProfile.on_cpu("org/base"), EngineProfile.on_gpu("org/base")):
        assert plain.changing == {}
    more_room = EngineProfile.on_gpu("org/base", max_loras=8, kv_cache_memory_bytes=1 << 30)
    assert more_room.changing == {}
    extra = {"kv_cache_dtype": "fp8", "long_prefill_token_threshold": 64}
    changed = EngineProfile.on_gpu("org/base", dtype="half", quantization="fp8", extra=extra)
    assert changed.changing == {
        "dtype": "half", "quantization": "fp8", "kv_cache_dtype": "fp8"
    }  # fmt: skip


def test_a_pooling_profile_keeps_vllms_batch_size() -> None:
    profile = EngineProfile.on_cpu("a/b", runner="pooling")
    assert profile.max_num_batched_tokens is None and profile.extra == {}
    with pytest.raises(BadProfile, match="runner is 'both': it must be one of generate, pooling"):
        EngineProfile(model="a/b", runner="both")
