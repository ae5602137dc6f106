"""Judges by names whether an adapter was trained on the base model that it is uploaded for.

PEFT writes what was passed to `from_pretrained`: a name on the Hub, or a folder on the machine that
trained it. Names with the same last part mean the same model: `Qwen/Qwen3-0.6B`,
`/models/qwen3-0.6b/`, or a folder of the Hub's cache. For other names, only a person can tell.
"""

from __future__ import annotations

import re

_NOT_COMPARED = re.compile(r"[\W_]")
_IN_CACHE = "models--"
"""The prefix of folders in the Hub's cache: `models--Qwen--Qwen3-0.6B/snapshots/<revision>`."""


def last_part(name: str) -> str:
    """The model's name without organisation, folders and revision."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    cached = [part for part in parts if part.startswith(_IN_CACHE)]
    return cached[-1].rsplit("--", 1)[-1] if cached else parts[-1] if parts else ""


def may_be(trained_on: str, base_model: str) -> bool:
    """Whether `trained_on` can be a name of the base model. An empty name can."""
    named, ours = (
        _NOT_COMPARED.sub("", last_part(one).lower()) for one in (trained_on, base_model)
    )
    return not named or named == ours
