"""The optimiser of all that is trained here, and an adapter's two files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict
from safetensors.torch import save_file

from inference.content import CONFIG, WEIGHTS

CLIP_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Optimiser steps and the peak learning rate, after a linear warm-up and before a cosine."""

    steps: int
    peak: float
    warmup: int = 30

    def rate(self, step: int) -> float:
        """The learning rate at `step`, counted from 0."""
        rising = min(1.0, (step + 1) / self.warmup)
        return self.peak * rising * (0.02 + 0.98 * (1 + math.cos(math.pi * step / self.steps)) / 2)


def adamw(weights: list[Any]) -> torch.optim.AdamW:
    """The optimiser of these weights."""
    return torch.optim.AdamW(weights, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def optimise(
    optimizer: torch.optim.AdamW,
    schedule: Schedule,
    backward: Callable[[], float],
    report: Callable[[int, float], None],
) -> None:
    """Train the optimiser's weights; `backward` adds the gradient of a step and returns its loss,
    `report` is called after each with the steps done."""
    for step in range(schedule.steps):
        loss = backward()
        update(optimizer, schedule.rate(step))
        report(step + 1, loss)


def update(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Take a step of this learning rate along the gradients, clipped, and clear them."""
    (group,) = optimizer.param_groups
    group["lr"] = rate
    torch.nn.utils.clip_grad_norm_(group["params"], CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()


def save_adapter(adapted: Any, folder: Path, base_name: str, stored: torch.dtype) -> None:
    """Write a PEFT model's adapter as its two files."""
    config = adapted.peft_config["default"]
    write_adapter(get_peft_model_state_dict(adapted), config, folder, base_name, stored)


def write_adapter(
    tensors: Mapping[str, torch.Tensor],
    config: LoraConfig,
    folder: Path,
    base_name: str,
    stored: torch.dtype,
) -> None:
    """Write an adapter as its two files, the same bytes for the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    on_cpu = {name: one.to("cpu", stored).contiguous() for name, one in tensors.items()}
    save_file(on_cpu, folder / WEIGHTS, metadata={"format": "pt"})
    fields = config.to_dict() | {
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "target_modules": sorted(config.target_modules or ()),
    }
    (folder / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
