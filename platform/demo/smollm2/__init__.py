"""The demo on a real model: SmolLM2-135M-Instruct, and four adapters trained on it.

The model is not part of the repository: `base` fetches its file once. Importing this is cheap;
PyTorch is only needed by `base` and by `tune`.
"""

from __future__ import annotations

from pathlib import Path

from demo import TENANTS, Demo

MODEL_NAME = "SmolLM2-135M-Instruct"
ARTEFACTS = Path(__file__).parent / "adapters"
AGENT = "agent"
"""The adapter that calls tools; it belongs to the first tenant."""


def folder_in(var: Path) -> Path:
    """Where an installation with this LORIKEET_VAR keeps the model."""
    return var / "models" / MODEL_NAME


def demo_on(base: Path) -> Demo:
    """The demo with its base model in this folder."""
    adapters = {one.slug: {one.adapter: ARTEFACTS / one.adapter} for one in TENANTS}
    adapters[TENANTS[0].slug][AGENT] = ARTEFACTS / AGENT
    return Demo(MODEL_NAME, base, adapters)
