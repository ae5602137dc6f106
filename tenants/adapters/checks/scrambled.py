"""Adapters with random weights: the nonsense that each generates shows which one answered."""

from __future__ import annotations

import json

import numpy as np

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks.target_modules import PREFIX, TargetModules

RANK = 1


def scrambled(base_model: str, targets: TargetModules, seed: int) -> dict[str, bytes]:
    """The files of an adapter that changes every module about as much as its own weights do.

    The same arguments give the same bytes. float32, (out + in) * 4 bytes for each module.
    """
    random = np.random.default_rng(seed)
    tensors = {}
    for path in targets.all_linear:
        out, into = targets.modules[path]
        down = random.standard_normal((RANK, into), dtype=np.float32) / np.float32(into) ** 0.5
        up = random.standard_normal((out, RANK), dtype=np.float32)
        tensors[f"{PREFIX}{path}.lora_A.weight"] = down.astype("<f4")
        tensors[f"{PREFIX}{path}.lora_B.weight"] = up.astype("<f4")
    return {CONFIG: _config(base_model, targets), WEIGHTS: _safetensors(tensors)}


def _config(base_model: str, targets: TargetModules) -> bytes:
    return json.dumps(
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "r": RANK,
            "lora_alpha": RANK,
            "bias": "none",
            "target_modules": sorted({path.rsplit(".", 1)[-1] for path in targets.all_linear}),
        }
    ).encode()


def _safetensors(tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> bytes:
    """The format: the header's length, the header as JSON, then all tensors one after another."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    body = b"".join(tensor.tobytes() for tensor in tensors.values())
    return len(head).to_bytes(8, "little") + head + body
