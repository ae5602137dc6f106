"""The modules and the rank that adapters of one base model may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

PREFIX = "base_model.model."
"""What PEFT puts before a module's dotted path in a tensor's name."""


@dataclass(frozen=True)
class TargetModules:
    """`modules` maps each module that can carry an adapter to its [out_features, in_features]."""

    modules: Mapping[str, Sequence[int]]
    max_lora_rank: int

    @cached_property
    def _by_suffix(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self.modules:
            parts = path.split(".")
            for start in range(len(parts)):
                found.setdefault(".".join(parts[start:]), []).append(path)
        return found

    def matching(self, target: str) -> list[str]:
        """The modules that an entry of `target_modules` matches.

        PEFT's rule (`check_target_module_exists`): the whole path, or its end after a dot.
        """
        return self._by_suffix.get(target, [])

    @property
    def all_linear(self) -> list[str]:
        """What PEFT's `all-linear` means: every module but the output layer."""
        return [path for path in self.modules if path.rsplit(".", 1)[-1] != "lm_head"]

    @property
    def leaf_names(self) -> list[str]:
        """The last parts of all module paths, for a message."""
        return sorted({path.rsplit(".", 1)[-1] for path in self.modules})
