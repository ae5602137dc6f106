"""The linear layers of a Hugging Face model, without its weights. It imports PyTorch."""

from __future__ import annotations

import torch
from transformers import AutoModel, AutoModelForCausalLM, PretrainedConfig

EMBEDDINGS = ("embed_tokens", "lm_head")
"""vLLM could adapt these too, but their adapters resize the vocabulary or are never applied to
prompt log-probabilities; PEFT's defaults leave them alone."""


def on_meta(config: PretrainedConfig) -> tuple[torch.nn.Module, str]:
    """The model without weights, in a few milliseconds per layer, and what vLLM's paths of its
    modules begin with: `model.` for one that generates no text."""
    with torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config), ""
        except ValueError:
            return AutoModel.from_config(config), "model."


def linear_shapes(model: torch.nn.Module, prefix: str) -> dict[str, tuple[int, int]]:
    """Each linear layer of what `on_meta` returned by dotted path, as vLLM names it:
    (out_features, in_features)."""
    return {
        f"{prefix}{name}": (module.out_features, module.in_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }


def adaptable_shapes(model: torch.nn.Module, prefix: str) -> dict[str, tuple[int, int]]:
    """Those of `linear_shapes` that an adapter may target."""
    return {
        name: shape
        for name, shape in linear_shapes(model, prefix).items()
        if name.rpartition(".")[2] not in EMBEDDINGS
    }
