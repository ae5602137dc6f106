"""Static validation: would the engine serve this adapter as PEFT does?

Nothing is executed and no file is read into memory whole. Pure functions over streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tenants.adapters.checks import config as config_file
from tenants.adapters.checks import safetensors_header, weights
from tenants.adapters.checks.config import LoraConfig
from tenants.adapters.checks.findings import Findings
from tenants.adapters.checks.streams import Readable
from tenants.adapters.checks.target_modules import TargetModules


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome. Without findings the adapter is accepted, and `config` is not None."""

    findings: Findings
    config: LoraConfig | None
    tensors: int = 0
    parameters: int = 0

    @property
    def accepted(self) -> bool:
        return not self.findings

    def report(self) -> dict[str, Any]:
        """For the version's validation report."""
        return {
            "findings": [finding.as_json() for finding in self.findings],
            "findings_omitted": self.findings.omitted,
            "tensors": self.tensors,
            "parameters": self.parameters,
        }


def check(
    config: Readable, adapter: Readable, adapter_bytes: int, targets: TargetModules
) -> Verdict:
    """Check the two files of an adapter for the base model that `targets` describes.

    `adapter` is the safetensors file, seekable and at its start, of `adapter_bytes` bytes. A step
    runs only if the earlier ones could read the files, so that each fault is reported once.
    """
    findings = Findings()
    lora = config_file.parse(config.read(config_file.MAX_CONFIG_BYTES + 1), targets, findings)
    tensors = safetensors_header.read(
        adapter, adapter_bytes, max_tensors=2 * len(targets.modules), findings=findings
    )
    if lora is None or tensors is None:
        return Verdict(findings, lora)
    weights.check_names(tensors, lora, targets, findings)
    weights.check_values(adapter, tensors, lora, findings)
    return Verdict(findings, lora, len(tensors), sum(math.prod(t.shape) for t in tensors))
