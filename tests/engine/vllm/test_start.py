"""What is said about a vLLM that does not start, and what it starts with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from inference.agent.engines import memory
from inference.agent.engines.engine import EngineNotStarted
from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.vllm.causes import cause_of

pytestmark = pytest.mark.vllm


@pytest.fixture
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for vLLM's sockets, with a path that is short enough for them."""
    with TemporaryDirectory() as folder:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", folder)
        yield


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.usefixtures("runtime_folder")
async def test_the_cause_in_vllms_core_is_said(base: Path, tmp_path: Path) -> None:
    from inference.agent.engines.vllm.engine import VLLMEngine

    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(EngineNotStarted, match="RuntimeError: Cannot find any model weights"):
        await VLLMEngine.start(EngineProfile.on_cpu(str(tmp_path)))


@pytest.mark.asyncio(loop_scope="session")
async def test_what_vllm_says_about_a_model_is_one_line(tmp_path: Path) -> None:
    from inference.agent.engines.vllm.engine import VLLMEngine

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "of_next_year"}))
    with pytest.raises(EngineNotStarted, match="of_next_year") as told:
        await VLLMEngine.start(EngineProfile.on_cpu(str(tmp_path)))
    assert "\n" not in str(told.value)


def test_a_cause_names_what_it_goes_back_to() -> None:
    try:
        try:
            raise KeyError("layer.3")
        except KeyError as inner:
            raise RuntimeError("cannot load\n the model") from inner
    except RuntimeError as error:
        assert cause_of(error) == (
            "RuntimeError: cannot load the model because of KeyError: 'layer.3'"
        )


# --- Fitted to the machine -----------------------------------------------------------------------


def fitted(base: Path, **given: Any) -> tuple[EngineProfile, str]:
    from inference.agent.engines.vllm.fitting import fitted as fit

    return fit(EngineProfile.on_cpu(str(base), **given))


KV_TOKEN = 3 * 2 * 2 * 32 * 4
"""Bytes: of 3 layers, the keys and values of 2 heads of 32 numbers of 4 bytes."""


def test_a_small_model_has_its_whole_context(base: Path) -> None:
    profile, told = fitted(base)
    assert (profile.dtype, profile.max_model_len, told) == ("float32", 512, "")
    assert profile.kv_cache_memory_bytes == memory.LEAST_KV_BYTES


def test_the_context_is_cut_to_the_cache_that_was_asked_for(base: Path) -> None:
    profile, told = fitted(base, kv_cache_memory_bytes=(256 + 32) * KV_TOKEN)
    assert profile.max_model_len == 256
    assert told == "Context 256 of 512 tokens: --kv-bytes 0.1G for all of it."


def test_bfloat16_is_for_what_only_fits_so(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = (base / "model.safetensors").stat().st_size + 512 * KV_TOKEN
    monkeypatch.setattr(memory, "PROCESS_BYTES", 0)
    monkeypatch.setattr(memory, "SHARE", 1)
    few = {"max_loras": 1, "max_lora_rank": 1}
    monkeypatch.setattr(memory, "free_bytes", lambda: int(1.2 * needed))
    assert fitted(base, **few)[0].dtype == "float32"
    monkeypatch.setattr(memory, "free_bytes", lambda: int(0.8 * needed))
    assert fitted(base, **few)[0].dtype == "bfloat16"
    with pytest.raises(BadProfile, match="as float32"):
        fitted(base, **few, dtype="float32")
    monkeypatch.setattr(memory, "free_bytes", lambda: int(0.4 * needed))
    with pytest.raises(BadProfile, match=r"does not fit: it needs .* as bfloat16"):
        fitted(base, **few)


MIXTURES: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("name", MIXTURES)
def test_what_vllm_can_not_serve_without_a_gpu_is_said(
    name: str, base: Path, tmp_path: Path
) -> None:
    import transformers

    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    make = getattr(transformers, f"{name}Config")
    config = make(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, **MIXTURES[name])
    config.architectures = [f"{name}ForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(BadProfile, match=rf"a mixture of experts \({config.architectures[0]}\)"):
        fitted(tmp_path)
