"""Values shared by many tests."""

from __future__ import annotations

import msgspec

from inference.interfaces.directory import Grant, Target
from inference.link.engine_info import AdapterRef, ModelInfo

MODEL = ModelInfo(
    "base", 2048, 2, 16, 8192, {"model.layers.0.self_attn.q_proj": (64, 64)}, "synthetic"
)
MOVABLE = msgspec.structs.replace(MODEL, revision="r" * 8)
"""Model info of an engine that reports its revision, so that other engines can continue its
requests."""
REF = AdapterRef("acme/support@" + "a" * 64, "a" * 64)
GRANT = Grant(1, 1, "acme", frozenset({"inference"}), None, 1.0, "salt")
BASE = Target("base", "base")
DISPATCH_KEY = "d" * 40
