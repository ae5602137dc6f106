"""The model that the synthetic engine pretends to serve."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from inference.agent.engines.profile import POOLING, EngineProfile
from inference.agent.engines.revision import revision_of
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.pooling.scoring import RERANK, SCORE
from inference.operations.registry import OPERATIONS
from inference.operations.tokens import DETOKENIZE, TOKENIZE


def operations_of(runner: str | None) -> list[str]:
    """Those that a real engine with this runner would have; all, if none is named."""
    if runner is None:
        return [operation.name for operation in OPERATIONS]
    if runner == POOLING:
        return [one.name for one in (EMBEDDINGS, SCORE, RERANK, TOKENIZE, DETOKENIZE)]
    return [one.name for one in OPERATIONS if not one.pools]


def revision_of_profile(profile: EngineProfile) -> str:
    """That of the model it pretends to serve; of its name alone, if that is no local folder."""
    folder = Path(profile.model)
    if folder.is_dir():
        return revision_of(folder, folder, profile.chat_template, profile.changing)
    return hashlib.sha256(profile.model.encode()).hexdigest()


def llama_modules(config: Path) -> dict[str, tuple[int, int]]:
    """The linear layers of a Llama with this config.json, or of a tiny one if there is none."""
    given = json.loads(config.read_text()) if config.is_file() else {}
    hidden, inner = given.get("hidden_size", 64), given.get("intermediate_size", 128)
    heads = given.get("num_attention_heads", 4)
    head = given.get("head_dim") or hidden // heads
    kv = head * (given.get("num_key_value_heads") or heads)
    shapes = {
        "self_attn.q_proj": (head * heads, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, head * heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    layers = given.get("num_hidden_layers", 2)
    return {
        f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in shapes.items()
    }
