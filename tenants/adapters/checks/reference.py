"""What PEFT and transformers compute of an engine's probe, on the CPU: the reference for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from inference.content import WEIGHTS

Prompts = Sequence[Sequence[int]]
Logprobs = list[float]
"""Of each token of a prompt but the first."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The log-probabilities of the prompts, without (if asked for) and with the adapter. `unable`:
    why there are none."""

    base: list[Logprobs]
    adapted: list[Logprobs]
    unable: str = ""


def compute(
    base: Path,
    dtype: str,
    prompts: Prompts,
    versions: Sequence[Mapping[str, IO[bytes]]],
    *,
    with_base: bool,
) -> Reference:
    """Compute with the first version of the adapter's two files of which PEFT reads all weights.

    `base` is the base model's folder, `dtype` what torch calls the type to compute in.
    """
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    unable = ""
    for files in versions:
        try:
            return _computed(base, dtype, prompts, files, with_base)
        except MemoryError:
            raise
        except Exception as error:
            unable = f"{type(error).__name__}: {error}"
    return Reference([], [], unable)


def _computed(
    base: Path, dtype: str, prompts: Prompts, files: Mapping[str, IO[bytes]], with_base: bool
) -> Reference:
    model: Any = AutoModelForCausalLM.from_pretrained(
        base, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
    ).eval()
    plain = [_logprobs(model, ids) for ids in prompts] if with_base else []
    adapted = _adapted(model, files)
    return Reference(plain, [_logprobs(adapted, ids) for ids in prompts])


def _logprobs(model: Any, ids: Sequence[int]) -> Logprobs:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
        chosen = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids[1:])[:, None])
    found: Logprobs = chosen[:, 0].tolist()
    return found


def _adapted(model: Any, files: Mapping[str, IO[bytes]]) -> Any:
    """The model with the adapter.

    Raises:
        Exception: PEFT can't read it, or does not know where a weight belongs.
    """
    for name, file in files.items():  # PEFT reads a folder: here it is of links to open files
        Path(name).unlink(missing_ok=True)
        os.symlink(f"/proc/self/fd/{file.fileno()}", name)
    config = PeftConfig.from_pretrained(".")
    config.inference_mode = True
    adapted: Any = get_peft_model(model, config)
    loaded = set_peft_model_state_dict(adapted, load_file(WEIGHTS))
    lost = [*loaded.unexpected_keys, *(one for one in loaded.missing_keys if "lora_" in one)]
    if lost:
        raise ValueError(f"PEFT does not place {lost[0]}")
    return adapted.eval()
