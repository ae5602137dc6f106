"""Whether an adapter was trained on the base model that it is meant for, as far as names tell.

PEFT writes what its user gave to `from_pretrained`: a name of the Hub, or a folder of the machine
that trained. Names that end alike mean the same model: `Qwen/Qwen3-0.6B`, `/models/qwen3-0.6b/` and
a folder of the Hub's cache. Whether others do, only people know.
"""

from __future__ import annotations

import re

_NOT_COMPARED = re.compile(r"[\W_]")
_IN_CACHE = "models--"
"""How folders of the Hub's cache begin: `models--Qwen--Qwen3-0.6B/snapshots/<revision>`."""


def last_part(name: str) -> str:
    """The model's own name, without an organisation, folders and a revision."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    cached = [part for part in parts if part.startswith(_IN_CACHE)]
    return cached[-1].rsplit("--", 1)[-1] if cached else parts[-1] if parts else ""


def may_be(trained_on: str, base_model: str) -> bool:
    """Whether `trained_on` can be a name of the base model; an empty one can."""
    named, ours = (
        _NOT_COMPARED.sub("", last_part(one).lower()) for one in (trained_on, base_model)
    )
    return not named or named == ours
