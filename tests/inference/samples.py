"""Values shared by many tests."""

from __future__ import annotations

import msgspec

from inference.interfaces.directory import Grant, ResolvedTarget
from inference.link.engine_info import AdapterRef, ModelInfo
from inference.operations.registry import OPERATIONS

MODEL = ModelInfo(
    "base", 2048, 2, 16, 8192, {"model.layers.0.self_attn.q_proj": (64, 64)}, "synthetic",
    "r" * 8, operations=[*(operation.name for operation in OPERATIONS), "echo"],
)  # fmt: skip
OLDER = msgspec.structs.replace(MODEL, revision="older")
"""Of an engine that cannot continue what one of MODEL has begun to answer."""
REF = AdapterRef("acme/support@" + "a" * 64, "a" * 64)
GRANT = Grant(1, 1, "acme", frozenset({"inference"}), None, 1.0, "salt")
BASE = ResolvedTarget("base", "base")
DISPATCH_KEY = "d" * 40
