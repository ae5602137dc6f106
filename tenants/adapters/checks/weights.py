"""Checks the tensors of an adapter against its configuration and the base model.

vLLM pads a wrong hidden size with zeros, skips layers that do not exist and accepts a tensor whose
rank is not the configuration's. Everything that it would silently accept is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tenants.adapters.checks.config import LoraConfig
from tenants.adapters.checks.findings import Code, Findings, shown
from tenants.adapters.checks.safetensors_header import Tensor
from tenants.adapters.checks.streams import Readable
from tenants.adapters.checks.target_modules import PREFIX, TargetModules

CHUNK_BYTES = 256 << 10
MAX_VALUE = 65504.0
"""The largest finite float16: the engine may cast adapters to it, and no LoRA weight comes near."""

_NAME = re.compile(re.escape(PREFIX) + r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_UNSIGNED: dict[str, tuple[str, int, int]] = {
    "F32": ("<u4", 0x7FFFFFFF, 0x7F800000),
    "F16": ("<u2", 0x7FFF, 0x7C00),
    "BF16": ("<u2", 0x7FFF, 0x7F80),
}
"""By dtype: its bits as a numpy dtype, the mask that removes the sign, the bits of infinity.

IEEE floats order by magnitude as their bits without the sign do, NaN above infinity: one integer
maximum finds the largest magnitude and whether all values are finite, bfloat16 included.
"""


def check_names(
    tensors: list[Tensor], config: LoraConfig, targets: TargetModules, findings: Findings
) -> None:
    """Check names, pairs and shapes, from the header alone."""
    if not tensors:
        findings.add(Code.NO_TENSORS, "The file has no tensors.")
        return
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        match = _NAME.fullmatch(tensor.name)
        if match is None:
            findings.add(
                Code.TENSOR_NAME_UNSUPPORTED,
                f"{shown(tensor.name)} does not have the form "
                f"{PREFIX}<module>.lora_A.weight or .lora_B.weight.",
            )
            continue
        pairs.setdefault(match["module"], {})[match["side"]] = tensor
    for module, sides in pairs.items():
        _check_pair(module, sides, config, targets, findings)
    _check_targets(pairs.keys(), config, findings)


def _check_pair(
    module: str,
    sides: dict[str, Tensor],
    config: LoraConfig,
    targets: TargetModules,
    findings: Findings,
) -> None:
    if module not in targets.modules:
        findings.add(Code.MODULE_UNKNOWN, f"The base model has no module {shown(module)}.")
        return
    if module not in config.targeted:
        findings.add(
            Code.MODULE_NOT_TARGETED, f"{shown(module)} has tensors but is not in target_modules."
        )
    if sides.keys() != {"A", "B"}:
        missing = "B" if "A" in sides else "A"
        findings.add(Code.PAIR_INCOMPLETE, f"{shown(module)} has no lora_{missing}.")
    out_features, in_features = targets.modules[module]
    rank = config.rank_of(module)
    if "A" in sides:
        _check_shape(sides["A"], (rank, in_features), 0, findings)
    if "B" in sides:
        _check_shape(sides["B"], (out_features, rank), 1, findings)


def _check_shape(
    tensor: Tensor, expected: tuple[int, int], rank_axis: int, findings: Findings
) -> None:
    if tensor.shape == expected:
        return
    other = 1 - rank_axis
    rank_only = len(tensor.shape) == 2 and tensor.shape[other] == expected[other]
    findings.add(
        Code.RANK_MISMATCH if rank_only else Code.SHAPE_MISMATCH,
        f"{shown(tensor.name)} has shape {list(tensor.shape)}, but the base model and rank "
        f"{expected[rank_axis]} require {list(expected)}.",
    )


def _check_targets(with_tensors: Collection[str], config: LoraConfig, findings: Findings) -> None:
    """Every targeted module must have tensors: else the adapter is for another, smaller model."""
    bare = sorted(path for path in config.targeted if path not in with_tensors)
    if bare:
        findings.add(
            Code.TARGET_WITHOUT_TENSORS,
            f"{len(bare)} modules in target_modules have no tensors; the first is {bare[0]}.",
        )


def check_values(
    stream: Readable, tensors: list[Tensor], config: LoraConfig, findings: Findings
) -> None:
    """Check that every value is finite and within MAX_VALUE, for lora_B also after scaling. Reads
    in chunks."""
    for tensor in tensors:
        largest = largest_magnitude(stream, tensor)
        if not np.isfinite(largest):
            findings.add(Code.NOT_FINITE, f"{shown(tensor.name)} has a value that is not finite.")
            continue
        factor = 1.0
        if (match := _NAME.fullmatch(tensor.name)) and match["side"] == "B":
            factor = max(1.0, abs(config.scaling_of(match["module"])))
        if largest * factor > MAX_VALUE:
            findings.add(
                Code.VALUE_TOO_LARGE,
                f"{shown(tensor.name)} reaches {largest * factor:.4g} (including scaling), "
                f"above {MAX_VALUE:.0f}, the largest value that every engine can "
                "represent.",
            )


def largest_magnitude(stream: Readable, tensor: Tensor) -> float:
    """The largest absolute value; infinity where any value is not finite."""
    bits_dtype, unsigned, infinity = _UNSIGNED[tensor.dtype]
    stream.seek(tensor.begin)
    largest, left = 0, tensor.end - tensor.begin
    while left > 0:
        wanted = min(CHUNK_BYTES, left)
        chunk = stream.read(wanted)
        if len(chunk) < wanted:
            raise EOFError("the file became shorter while it was read")
        bits: npt.NDArray[np.unsignedinteger] = np.frombuffer(chunk, bits_dtype)
        largest = max(largest, int((bits & unsigned).max()))
        left -= len(chunk)
    return float("inf") if largest >= infinity else _decoded(largest, tensor.dtype)


def _decoded(bits: int, dtype: str) -> float:
    if dtype == "F16":
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << 16 if dtype == "BF16" else bits).view(np.float32))
