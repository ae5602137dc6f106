"""Checks `adapter_config.json`: would the engine serve what PEFT trained?

vLLM reads a dozen of PEFT's fields and silently ignores the rest, including some that change the
adapter's output. So fields are refused by default: apart from those judged here and those that only
concern training, a field may be present only with a value that switches it off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from tenants.adapters.checks.findings import Code, Findings, shown
from tenants.adapters.checks.strict_json import BadJson, DuplicateKey, load_object
from tenants.adapters.checks.target_modules import TargetModules
from tenants.adapters.checks.targeting import targeted

Number = TypeVar("Number", int, float)

MAX_CONFIG_BYTES = 256 << 10
"""PEFT writes about 1 KiB; a list of every module's full path stays far below this."""

IGNORED = frozenset(
    {
        # Provenance.
        "base_model_name_or_path",
        "revision",
        "peft_version",
        "auto_mapping",
        "inference_mode",
        # Training only; their effect is in the tensors.
        "lora_dropout",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        # Without effect unless another field, which must be off, is on.
        "megatron_core",
        "qalora_group_size",
        "runtime_config",
    }
)
JUDGED = frozenset(
    {
        "peft_type",
        "task_type",
        "r",
        "lora_alpha",
        "use_rslora",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "rank_pattern",
        "alpha_pattern",
        "bias",
        "init_lora_weights",
    }
)
PLAIN_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica"})
"""Named initialisations that leave the base model's weights alone. Those of LoRA-GA and PiSSA do
not: the tensors are right only together with a base model that was changed for them."""

MAX_PATTERNS = 500
"""Entries of `rank_pattern` or `alpha_pattern`. The engine compiles each as a regular expression,
keeps so many compiled, and tries them on each module."""
_PLAIN_KEY = re.compile(r"\^?[\w.]+", re.ASCII)
"""Keys that take the engine no time. Any regular expression would be PEFT's rule."""

_MERGE = (
    "merge the adapter into the base model (model.merge_and_unload()) and have the result served as"
    " a model of its own, or train it again without"
)
ADVICE: Mapping[str, str] = {
    "use_dora": "save it as a LoRA that comes close to it: peft.save_as_lora(path, model, rank=64)",
    "lora_bias": _MERGE,
    "modules_to_save": _MERGE,
    "trainable_token_indices": _MERGE,
    "target_parameters": _MERGE,
    "layer_replication": _MERGE,
    "fan_in_fan_out": _MERGE,
}
"""What the owner can do about an option that engines do not support."""


@dataclass(frozen=True)
class LoraConfig:
    """A checked configuration. `targeted` are the modules that PEFT would put an adapter on; the
    patterns are other ranks and alphas for some of them."""

    rank: int
    alpha: float
    use_rslora: bool
    targeted: frozenset[str]
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        return self._ranks(module) or self.rank

    def scaling_of(self, module: str) -> float:
        """The factor that the module's lora_B is multiplied by."""
        rank, found = self.rank_of(module), self._alphas(module)
        alpha = self.alpha if found is None else found
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    @cached_property
    def _ranks(self) -> Callable[[str], int | None]:
        return _first_match(self.rank_pattern)

    @cached_property
    def _alphas(self) -> Callable[[str], float | None]:
        return _first_match(self.alpha_pattern)

    def as_json(self) -> dict[str, Any]:
        return {
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.use_rslora,
            "target_modules": sorted({path.rsplit(".", 1)[-1] for path in self.targeted}),
        } | {
            name: dict(pattern)
            for name, pattern in (
                ("rank_pattern", self.rank_pattern),
                ("alpha_pattern", self.alpha_pattern),
            )
            if pattern
        }


def _first_match(pattern: Mapping[str, Number]) -> Callable[[str], Number | None]:
    """PEFT's rule (`get_pattern_key`): the first key that is the module's path, or its end after a
    dot."""
    rules = [(re.compile(rf"(?:.*\.)?(?:{key})$"), value) for key, value in pattern.items()]
    return lambda module: next((value for rule, value in rules if rule.match(module)), None)


def parse(raw: bytes, targets: TargetModules, findings: Findings) -> LoraConfig | None:
    """Check the file's bytes; None if anything is wrong, which is added to `findings`."""
    before = findings.total
    if len(raw) > MAX_CONFIG_BYTES:
        findings.add(
            Code.CONFIG_TOO_LARGE, f"adapter_config.json is larger than {MAX_CONFIG_BYTES} bytes."
        )
        return None
    try:
        fields = load_object(raw)
    except DuplicateKey as error:
        findings.add(Code.CONFIG_DUPLICATE_KEY, f"In adapter_config.json, {error}.")
        return None
    except BadJson as error:
        findings.add(
            Code.CONFIG_NOT_JSON, f"adapter_config.json is not a valid JSON object: {error}."
        )
        return None
    _check_kind(fields, findings)
    _check_options(fields, findings)
    rank = _rank("r", fields.get("r"), targets, findings)
    alpha = _alpha("lora_alpha", fields.get("lora_alpha"), findings)
    modules = targeted(fields, targets, findings)
    ranks = _pattern("rank_pattern", fields, findings)
    for key, value in ranks.items():
        _rank(f"rank_pattern[{shown(key)}]", value, targets, findings)
    alphas = _pattern("alpha_pattern", fields, findings)
    for key, value in alphas.items():
        _alpha(f"alpha_pattern[{shown(key)}]", value, findings)
    if findings.total > before:
        return None
    return LoraConfig(rank, alpha, bool(fields.get("use_rslora")), modules, ranks, alphas)


def _check_kind(fields: dict[str, Any], findings: Findings) -> None:
    peft_type, task_type = fields.get("peft_type"), fields.get("task_type")
    if peft_type != "LORA":
        findings.add(
            Code.PEFT_TYPE_UNSUPPORTED, f'peft_type is {shown(peft_type)}, but must be "LORA".'
        )
    if task_type not in (None, "CAUSAL_LM"):
        findings.add(
            Code.TASK_TYPE_UNSUPPORTED,
            f'task_type is {shown(task_type)}, but must be "CAUSAL_LM" or null.',
        )


def _check_options(fields: dict[str, Any], findings: Findings) -> None:
    def refuse(name: str, allowed: str) -> None:
        findings.add(
            Code.OPTION_UNSUPPORTED,
            f"{shown(name)} is {shown(fields[name])}, which engines do not support: {allowed}.",
        )

    if fields.get("bias", "none") != "none":
        refuse("bias", f'it must be "none". To serve it, {_MERGE} it')
    if not isinstance(fields.get("use_rslora", False), bool):
        refuse("use_rslora", "it must be true or false")
    init = fields.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        refuse(
            "init_lora_weights",
            "the adapter needs a base model whose weights were changed before training. Convert it "
            "to a plain LoRA: model.save_pretrained(path, path_initial_model_for_weight_conversion="
            "initial), where initial is the adapter as it was saved before training",
        )
    for name in sorted(fields.keys() - IGNORED - JUDGED):
        if fields[name]:
            advice = ADVICE.get(name, "")
            to_serve = f". To serve it, {advice}" if advice else ""
            refuse(name, f"it must be off (null, false or empty){to_serve}")


def _rank(name: str, value: object, targets: TargetModules, findings: Findings) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        findings.add(
            Code.RANK_INVALID, f"{name} is {shown(value)}, but must be an integer of at least 1."
        )
        return 0
    if value > targets.max_lora_rank:
        findings.add(
            Code.RANK_TOO_LARGE,
            f"{name} is {shown(value)}, above this base model's limit of {targets.max_lora_rank}.",
        )
    return value


def _alpha(name: str, value: object, findings: Findings) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond the largest float
        pass
    findings.add(Code.ALPHA_INVALID, f"{name} is {shown(value)}, but must be a finite number.")
    return 0.0


def _pattern(name: str, fields: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    """The field's entries, their values unchecked."""
    found = fields.get(name) or {}
    if not isinstance(found, dict):
        reason = "must map modules to numbers"
    elif len(found) > MAX_PATTERNS:
        reason = f"has {len(found)} entries; at most {MAX_PATTERNS} are allowed"
    elif bad := [key for key in found if not _PLAIN_KEY.fullmatch(key)]:
        reason = f"has the key {shown(bad[0])}; each must be a module's path or its end, as q_proj"
    else:
        return found
    findings.add(Code.PATTERN_INVALID, f"{name} {reason}.")
    return {}
