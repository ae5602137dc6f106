"""Builds adapters byte by byte, valid ones and every kind of broken one."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inference.content import FILES
from tenants.adapters.checks.contents import read
from tenants.adapters.checks.target_modules import PREFIX, TargetModules
from tenants.adapters.uploads.content import UploadContents

HIDDEN, KV, INNER, LAYERS = 16, 8, 24, 2
"""A minimal Llama with grouped key and value heads, so that no two shapes are alike."""


def modules() -> dict[str, list[int]]:
    """Every module that can carry an adapter: [out_features, in_features]."""
    layer = {
        "self_attn.q_proj": [HIDDEN, HIDDEN],
        "self_attn.k_proj": [KV, HIDDEN],
        "self_attn.v_proj": [KV, HIDDEN],
        "self_attn.o_proj": [HIDDEN, HIDDEN],
        "mlp.gate_proj": [INNER, HIDDEN],
        "mlp.up_proj": [INNER, HIDDEN],
        "mlp.down_proj": [HIDDEN, INNER],
    }
    return {
        f"model.layers.{n}.{name}": shape for n in range(LAYERS) for name, shape in layer.items()
    }


TARGETS = TargetModules(modules(), max_lora_rank=16)
_ITEM = {"F64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I8": 1, "BOOL": 1}


@dataclass
class Weights:
    """A safetensors file before it is written: its entries in order, and the bytes of each."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)
    metadata: Any = field(default_factory=lambda: {"format": "pt"})

    def put(
        self, name: str, shape: list[int], dtype: str = "F32", fill: bytes | None = None
    ) -> None:
        """Add or replace a tensor; `fill` is the bytes of one value, repeated."""
        count = math.prod(shape)
        if fill is None and dtype == "F32":
            raw = np.linspace(-0.5, 0.5, count, dtype="<f4").tobytes()
        else:
            raw = (fill or b"\0" * _ITEM[dtype]) * count
        self.entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
        self.data[name] = raw

    def drop(self, name: str) -> None:
        del self.entries[name], self.data[name]

    def set_value(self, name: str, index: int, raw: bytes) -> None:
        """Overwrite one value of a tensor."""
        whole = bytearray(self.data[name])
        whole[index * len(raw) : (index + 1) * len(raw)] = raw
        self.data[name] = bytes(whole)

    def laid_out(self) -> dict[str, Any]:
        """The header's object, with the tensors' data laid out one after another."""
        position, header = 0, {"__metadata__": self.metadata} if self.metadata is not None else {}
        for name, entry in self.entries.items():
            end = position + len(self.data[name])
            header[name] = entry | {"data_offsets": [position, end]}
            position = end
        return header

    def body(self) -> bytes:
        return b"".join(self.data.values())

    def bytes(self) -> bytes:
        return encode(json.dumps(self.laid_out()).encode(), self.body())


def encode(header: bytes, body: bytes) -> bytes:
    """A safetensors file of these two parts, which may be invalid."""
    return len(header).to_bytes(8, "little") + header + body


def config(**changes: Any) -> dict[str, Any]:
    """A configuration as PEFT writes it; the value `...` removes a field."""
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.05,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
        "layers_to_transform": None,
        "megatron_core": "megatron.core",
        "qalora_group_size": 16,
        "loftq_config": {},
    } | changes
    return {name: value for name, value in fields.items() if value is not ...}


def config_bytes(**changes: Any) -> bytes:
    return json.dumps(config(**changes)).encode()


def lora(
    targets: tuple[str, ...] = ("q_proj", "v_proj"),
    rank: int = 4,
    dtype: str = "F32",
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Weights:
    """The tensors of a valid adapter."""
    weights = Weights()
    for path, (out, into) in (shapes or modules()).items():
        if path.rsplit(".", 1)[-1] in targets:
            weights.put(f"{PREFIX}{path}.lora_A.weight", [rank, into], dtype)
            weights.put(f"{PREFIX}{path}.lora_B.weight", [out, rank], dtype)
    return weights


def looked_at(files: Mapping[str, bytes], oid: str = "") -> tuple[UploadContents, dict[str, bytes]]:
    """What is found of an adapter's two files, and the two as they are served."""
    converted = {name: io.BytesIO() for name in FILES}
    found = read({name: io.BytesIO(data) for name, data in files.items()}, converted, oid)
    return found, {
        name: converted[name].getvalue() if name in found.converted else files[name]
        for name in FILES
    }


def name_of(layer: int, module: str, side: str) -> str:
    """A tensor's name, such as `name_of(0, "self_attn.q_proj", "A")`."""
    return f"{PREFIX}model.layers.{layer}.{module}.lora_{side}.weight"
