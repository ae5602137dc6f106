"""Adapters as customers have them: folders of two files, valid ones and broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from random import random

from demo import ADAPTERS, BASE, MODEL_NAME
from inference.agent.engines.synthetic.model import llama_modules
from inference.content import CONFIG, FILES, WEIGHTS
from tests.adapters.checks.builder import config_bytes, lora

SUPPORT, PIRATE = ADAPTERS["support"], ADAPTERS["pirate"]
"""Two adapters that answer every question differently."""
TARGETS = ("q_proj", "v_proj")


def files(folder: Path) -> list[Path]:
    return [folder / name for name in FILES]


def own(source: Path, folder: Path) -> Path:
    """A copy that answers as its source does, but with a digest that no other adapter has."""
    config = json.loads((source / CONFIG).read_text()) | {"lora_dropout": random()}
    return _write(folder, json.dumps(config).encode(), (source / WEIGHTS).read_bytes())


def too_high(folder: Path) -> Path:
    """Rank 32, where the demo's engines take 16."""
    weights = lora(TARGETS, rank=32, shapes=llama_modules(BASE / "config.json"))
    return _write(folder, _config(32), weights.bytes())


def inert(folder: Path) -> Path:
    """Valid files of an adapter without effect: all its values are zero."""
    weights = lora(TARGETS, rank=4, shapes=llama_modules(BASE / "config.json"))
    for name, entry in weights.entries.items():
        weights.put(name, entry["shape"], fill=bytes(4))
    return _write(folder, _config(4), weights.bytes())


def _config(rank: int) -> bytes:
    return config_bytes(r=rank, base_model_name_or_path=MODEL_NAME)


def _write(folder: Path, config: bytes, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes(config)
    (folder / WEIGHTS).write_bytes(weights)
    return folder
