"""Makes an adapter's files what PEFT would save, where that is exact: other names, same numbers.

Anything else stays as it is, for `static` to refuse by its name.
"""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import IO, Any

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks import safetensors_header
from tenants.adapters.checks.config import MAX_CONFIG_BYTES
from tenants.adapters.checks.findings import Findings, shown
from tenants.adapters.checks.safetensors_header import DTYPE_BYTES, Tensor
from tenants.adapters.checks.streams import COPY_BYTES
from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.adapters.checks.target_modules import PREFIX

PEFT_DEFAULTS = {"r": 8, "lora_alpha": 8}
"""What PEFT's `LoraConfig` takes for fields that the engine requires."""
MLX_FIELD = "lora_parameters"
"""A field of mlx-lm's configurations, and of no others."""

_NAME = re.compile(r"(?P<path>.+)\.lora_(?P<side>[AB])(?:\.[^.]+)?\.weight")
_MLX_NAME = re.compile(r"(?P<path>.+)\.lora_(?P<side>[ab])")
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts that torch.compile, FSDP and activation checkpointing add to a module's path."""


def convert(
    config: IO[bytes], weights: IO[bytes], new_config: IO[bytes], new_weights: IO[bytes]
) -> dict[str, list[str]]:
    """Write each file that has to be changed to its new one, which is empty and else stays so.

    Returns a sentence for each change, by the file's name.
    """
    tensors = _tensors(weights)
    renamed = _renamed(tensors)
    config.seek(0)
    text, changes = _plain_config(config.read(MAX_CONFIG_BYTES + 1), [*renamed.values()])
    changes_by_file = {}
    if changes:
        new_config.write(text)
        changes_by_file[CONFIG] = changes
    changed = [tensor.name for tensor in tensors if renamed[tensor.name] != tensor.name]
    if changed:
        _rewrite(weights, tensors, renamed, new_weights)
        changes_by_file[WEIGHTS] = [
            f"{len(changed)} of {len(tensors)} tensors were renamed, such as {shown(changed[0])} "
            f"to {shown(renamed[changed[0]])}."
        ]
        if _MLX_NAME.fullmatch(changed[0]):
            changes_by_file[WEIGHTS].append("Tensors of mlx-lm were transposed.")
    return changes_by_file


def _tensors(weights: IO[bytes]) -> Sequence[Tensor]:
    """The file's tensors in the order of their bytes; none if it is invalid."""
    size = weights.seek(0, os.SEEK_END)
    weights.seek(0)
    found = safetensors_header.read(weights, size, max_tensors=size, findings=Findings())
    return found or ()


def _renamed(tensors: Sequence[Tensor]) -> dict[str, str]:
    """PEFT's name for each tensor; the names as they are if two tensors would have the same."""
    names = {tensor.name: _plain_name(tensor.name) for tensor in tensors}
    return names if len(set(names.values())) == len(names) else {name: name for name in names}


def _plain_name(name: str) -> str:
    match = _NAME.fullmatch(name) or _MLX_NAME.fullmatch(name)
    if match is None:
        return name
    parts = [part for part in match["path"].split(".") if part not in _WRAPPERS]
    if parts[:1] == ["module"]:  # of DistributedDataParallel
        del parts[0]
    while parts[:2] == ["base_model", "model"]:
        del parts[:2]
    return f"{PREFIX}{'.'.join(parts)}.lora_{match['side'].upper()}.weight"


def _plain_config(text: bytes, names: Sequence[str]) -> tuple[bytes, list[str]]:
    """The configuration, and what was changed in it."""
    plain = text.removeprefix(BOM_UTF8)
    changes = ["The byte order mark was removed."] if plain != text else []
    try:
        fields = load_object(plain)
    except BadJson:
        return plain, changes
    if isinstance(fields.get(MLX_FIELD), dict) and "peft_type" not in fields:
        fields = _from_mlx(fields, names)
        changes.append("The configuration was converted from mlx-lm's.")
    elif missing := {k: v for k, v in PEFT_DEFAULTS.items() if k not in fields}:
        fields |= missing
        changes += [
            f"{name} was missing, so PEFT's default is used: {missing[name]}." for name in missing
        ]
    else:
        return plain, changes
    return json.dumps(fields, indent=2).encode(), changes


def _from_mlx(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    given = fields[MLX_FIELD]
    rank, scale = given.get("rank"), given.get("scale")
    numbers = isinstance(rank, int | float) and isinstance(scale, int | float)
    paths = {match["path"].removeprefix(PREFIX) for match in map(_NAME.fullmatch, names) if match}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": fields.get("model"),
        "r": rank,
        "lora_alpha": scale * rank if numbers else scale,
        "use_dora": fields.get("fine_tune_type") == "dora",
        "target_modules": sorted(paths),
        "inference_mode": True,
    }


def _rewrite(
    weights: IO[bytes], tensors: Sequence[Tensor], names: Mapping[str, str], target: IO[bytes]
) -> None:
    """The file with other names; matrices of mlx-lm are transposed."""
    start = tensors[0].begin
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for tensor in tensors:
        turned = _is_turned(tensor)
        entries[names[tensor.name]] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape[::-1] if turned else tensor.shape,
            "data_offsets": [tensor.begin - start, tensor.end - start],
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    target.write(len(header).to_bytes(8, "little") + header)
    weights.seek(start)
    for tensor in tensors:
        if _is_turned(tensor):
            target.write(_turned(weights.read(tensor.end - tensor.begin), tensor))
        else:
            _copy(weights, tensor.end - tensor.begin, target)


def _is_turned(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and bool(_MLX_NAME.fullmatch(tensor.name))


def _turned(data: bytes, tensor: Tensor) -> bytes:
    import numpy as np  # only for the tensors of mlx-lm, whose factors are (in, r) and (r, out)

    matrix = np.frombuffer(data, f"<u{DTYPE_BYTES[tensor.dtype]}").reshape(tensor.shape)
    return matrix.T.tobytes()


def _copy(source: IO[bytes], size: int, target: IO[bytes]) -> None:
    while size > 0 and (chunk := source.read(min(COPY_BYTES, size))):
        target.write(chunk)
        size -= len(chunk)
