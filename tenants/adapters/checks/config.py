"""Checks `adapter_config.json`: would the engine serve what PEFT trained?

vLLM reads a dozen of PEFT's fields and silently ignores the rest, including some that change the
adapter's output. So fields are refused by default: apart from those judged here and those that only
concern training, a field may be present only with a value that switches it off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tenants.adapters.checks.findings import Code, Findings, shown
from tenants.adapters.checks.strict_json import BadJson, DuplicateKey, load_object
from tenants.adapters.checks.target_modules import TargetModules

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
        "layers_pattern",
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
        "bias",
        "init_lora_weights",
    }
)
PLAIN_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
"""Named initialisations that leave the base model's weights alone (vLLM's `PEFTHelper`)."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """A checked configuration. `targeted` are the modules that PEFT would put an adapter on."""

    rank: int
    alpha: float
    use_rslora: bool
    targeted: frozenset[str]

    @property
    def scaling(self) -> float:
        """The factor that lora_B is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)

    def as_json(self) -> dict[str, Any]:
        return {
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.use_rslora,
            "target_modules": sorted({path.rsplit(".", 1)[-1] for path in self.targeted}),
        }


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
    rank = _rank(fields.get("r"), targets, findings)
    alpha = _alpha(fields.get("lora_alpha"), findings)
    targeted = _targeted(fields.get("target_modules"), targets, findings)
    if findings.total > before:
        return None
    return LoraConfig(rank, alpha, bool(fields.get("use_rslora")), targeted)


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
            f"{shown(name)} is {shown(fields[name])}, which engines do not support: it "
            f"must be {allowed}.",
        )

    if fields.get("bias", "none") != "none":
        refuse("bias", '"none"')
    if not isinstance(fields.get("use_rslora", False), bool):
        refuse("use_rslora", "true or false")
    init = fields.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        refuse("init_lora_weights", "true (convert the adapter to a plain LoRA with PEFT first)")
    for name in sorted(fields.keys() - IGNORED - JUDGED):
        if fields[name]:
            refuse(name, "off (null, false or empty)")


def _rank(value: object, targets: TargetModules, findings: Findings) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        findings.add(
            Code.RANK_INVALID, f"r is {shown(value)}, but must be an integer of at least 1."
        )
        return 0
    if value > targets.max_lora_rank:
        findings.add(
            Code.RANK_TOO_LARGE,
            f"Rank {shown(value)} is above this base model's limit of {targets.max_lora_rank}.",
        )
    return value


def _alpha(value: object, findings: Findings) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond the largest float
        pass
    findings.add(Code.ALPHA_INVALID, f"lora_alpha is {shown(value)}, but must be a finite number.")
    return 0.0


def _targeted(value: object, targets: TargetModules, findings: Findings) -> frozenset[str]:
    if value == "all-linear":
        return frozenset(targets.all_linear)
    if not isinstance(value, list) or not value or not all(isinstance(t, str) for t in value):
        # PEFT takes a string as a regular expression, and an untrusted one can run for hours.
        findings.add(
            Code.TARGET_MODULES_INVALID,
            f"target_modules is {shown(value)}, but must be a list of module names or "
            '"all-linear", not a pattern.',
        )
        return frozenset()
    for target in value:
        if not targets.matching(target):
            findings.add(
                Code.TARGET_MODULE_UNKNOWN,
                f"The base model has no target module {shown(target)}. It has "
                f"{', '.join(targets.leaf_names)}.",
            )
    return frozenset(path for target in value for path in targets.matching(target))
