"""What this machine can do, read in milliseconds: no torch or vLLM is imported for it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.agent.engines import memory
from inference.agent.engines.profile import is_cpu_build

CPU_FEATURES = {
    "avx2": "avx2",
    "avx512": "avx512f",
    "avx512_bf16": "avx512_bf16",
    "avx512_vnni": "avx512_vnni",
    "amx": "amx_tile",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
}
"""The features of CPUs that a profile can ask for, with the names that Linux gives them."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine as an engine sees it. `gpus` are the models of the GPUs that vLLM can use: none
    with vLLM's CPU build. `free_bytes` is the memory that an engine may still use."""

    cpu: str
    features: tuple[str, ...]
    cores: int
    gpus: tuple[str, ...]
    free_bytes: int

    @classmethod
    def here(cls, proc: Path = Path("/proc")) -> Hardware:
        """This machine's."""
        facts = _facts(proc / "cpuinfo")
        flags = set(facts.get("flags", facts.get("Features", "")).split())
        return cls(
            cpu=facts.get("model name", os.uname().machine),
            features=tuple(name for name, flag in CPU_FEATURES.items() if flag in flags),
            cores=len(os.sched_getaffinity(0)),
            gpus=() if is_cpu_build() else _gpus(proc),
            free_bytes=memory.free_bytes(),
        )

    @property
    def kind(self) -> dict[str, Any]:
        """What decides how an engine computes: a proof is worth something on machines of the same
        kind."""
        described = asdict(self)
        del described["free_bytes"]
        return described | {"features": list(self.features), "gpus": list(self.gpus)}

    def __str__(self) -> str:
        parts = [f"{self.cpu}, {self.cores} cores", *self.features, *self.gpus]
        return f"{', '.join(parts)}, {self.free_bytes / (1 << 30):.1f} GiB free"


def _facts(file: Path) -> dict[str, str]:
    """The first processor's facts; they are the same for all."""
    first = file.read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _gpus(proc: Path) -> tuple[str, ...]:
    """The models of NVIDIA's GPUs that this process may use, as their driver lists them."""
    files = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    models = [_facts(file).get("Model", "GPU") for file in files]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(models)
    return tuple(models[: len([one for one in visible.split(",") if one.strip()])])
