"""The parity gate: an engine's answers with an adapter must be PEFT's.

A child process computes the log-probabilities of the engine's probe with transformers and PEFT on
the CPU (`checks.reference`). It needs the base model's files and memory for them; a version that
can't be compared is not rejected, and its report says why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

from django.conf import settings
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from inference.content import FILES
from tenants.adapters import sandbox
from tenants.adapters.checks.findings import Code, Finding, message_of
from tenants.adapters.probe import ProbedPrompt, ProbeReport
from tenants.adapters.storage import ORIGINALS, open_file
from tenants.models import AdapterVersion

TOLERANCE = 0.02
"""Nats by which a log-probability may differ. In float32 engines and PEFT agree within 1e-4."""
NOISE_FACTOR = 5.0
"""How much more they may differ with the adapter than without: an engine that computes in bfloat16,
or whose weights are quantized, differs by itself."""
MOST_NOISE = 1.0
"""If they differ by more without an adapter, the comparison says nothing about the adapter."""
ADDRESS_SPACE = 3 << 30
"""Of the child, beyond the model: PyTorch with its libraries takes a third of this."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a weight by its type."""
CPU_S = 300
OPEN_FILES = 256
MOST_BASES = 8

Logprobs = list[list[float]]
"""Of each prompt's tokens but the first."""
_computing = Lock()
"""Only one comparison computes at a time: each takes a core, a model's memory and seconds of
imports."""
_of_bases: dict[tuple[object, ...], Logprobs] = {}
"""What base models compute without an adapter, which is half of a comparison. By the model's files,
the type and the prompts; used while computing."""


class NotCompared(Exception):
    """The version could not be compared; the message says why."""


@dataclass(frozen=True, slots=True)
class ParityDifference:
    """The largest differences of log-probabilities, in nats, with the adapter and without."""

    difference: float
    noise: float

    @property
    def allowed(self) -> float:
        return TOLERANCE + NOISE_FACTOR * self.noise

    def as_json(self) -> dict[str, float]:
        return {"difference": self.difference, "allowed": self.allowed}

    def differs(self, code: Code, expected: str) -> Finding | None:
        """Why the adapter is rejected; None if the engine answers as it is expected to."""
        if self.difference <= self.allowed:
            return None
        return Finding(
            code,
            f"The engine's log-probabilities with this adapter differ from {expected} by up to "
            f"{self.difference:.2g} (allowed: {self.allowed:.2g}), so it would not answer as it "
            "was trained to.",
        )


def prepare_first() -> None:
    """In a new installation: do the imports of the first comparison while the engine starts."""
    if settings.BASE_MODELS and not AdapterVersion.objects.exists():
        sandbox.templates.prepare(computes=True)


def prepare(version: AdapterVersion) -> None:
    """Start what takes seconds, so that it is done when the engine has answered the probe."""
    if version.adapter.base_model.name in settings.BASE_MODELS and not _computing.locked():
        sandbox.templates.prepare(computes=True)


def compare(version: AdapterVersion, probed: ProbeReport) -> ParityDifference:
    """Compare what the engine computed in its probe with what PEFT computes.

    Raises:
        NotCompared: as it says.
    """
    if not probed.prompts:
        raise NotCompared("the engine reports no log-probabilities of this model")
    base = base_folder(version.adapter.base_model.name)
    dtype, prompts = _dtype(base), [one.ids for one in probed.prompts]
    key = (base, _stamps(base), dtype, tuple(map(tuple, prompts)))
    with _computing:
        plain = _of_bases.get(key)
        reference = _reference(version, base, dtype, prompts, with_base=plain is None)
        if plain is None:
            plain = _of_bases[key] = reference["base"]
            if len(_of_bases) > MOST_BASES:
                del _of_bases[next(iter(_of_bases))]
    return _difference(reference["adapted"], plain, probed.prompts)


def compare_with_trainer(held: Sequence[ProbedPrompt], probed: ProbeReport) -> ParityDifference:
    """Compare what the engine computed of these rows with what the version's trainer did.

    Raises:
        NotCompared: as it says.
    """
    if len(probed.rows) != len(held):
        raise NotCompared("the engine reports no log-probabilities of rows")
    return _difference([one.adapted for one in held], [one.base for one in held], probed.rows)


def _difference(
    adapted: Logprobs, plain: Logprobs, probed: Sequence[ProbedPrompt]
) -> ParityDifference:
    """Of what was expected with the adapter and without from what an engine found."""
    found = ParityDifference(
        _largest(adapted, [one.adapted for one in probed]),
        _largest(plain, [one.base for one in probed]),
    )
    if found.noise > MOST_NOISE:
        raise NotCompared(
            f"without an adapter the engine's log-probabilities differ by up to {found.noise:.2g} "
            f"from those of the model in LORIKEET_BASE_MODELS"
        )
    return found


def base_folder(name: str) -> Path:
    """Where the base model's files are, if the operator has named a place that has them."""
    place = settings.BASE_MODELS.get(name)
    if place is None:
        raise NotCompared("LORIKEET_BASE_MODELS does not say where the base model is")
    if Path(place).is_dir():
        return Path(place)
    try:
        return Path(snapshot_download(place, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError):
        raise NotCompared("the worker has no copy of the base model") from None


def _stamps(base: Path) -> tuple[tuple[str, int], ...]:
    """Each of its files with the time at which it was changed, in ns."""
    return tuple(sorted((file.name, file.stat().st_mtime_ns) for file in base.iterdir()))


def _dtype(base: Path) -> str:
    """The type in which the model fits into LORIKEET_PARITY_BYTES; float32 if possible."""
    try:
        config = json.loads((base / "config.json").read_text())
    except (OSError, ValueError):
        raise NotCompared("the base model's config.json can't be read") from None
    if "quantization_config" in config:
        raise NotCompared("the base model's weights are quantized")
    stored = config.get("dtype") or config.get("torch_dtype") or "float16"
    weights = sum(file.stat().st_size for file in base.glob("*.safetensors"))
    count = weights // BYTES.get(stored, 2)
    fitting = [
        one for one in ("float32", "bfloat16") if count * BYTES[one] <= settings.PARITY_BYTES
    ]
    if not weights:
        raise NotCompared("the base model has no safetensors files")
    if not fitting:
        least = count * BYTES["bfloat16"]
        raise NotCompared(
            f"the base model takes {least:,} bytes (LORIKEET_PARITY_BYTES is "
            f"{settings.PARITY_BYTES:,})"
        )
    return fitting[0]


def _reference(
    version: AdapterVersion,
    base: Path,
    dtype: str,
    prompts: Sequence[list[int]],
    *,
    with_base: bool,
) -> dict[str, Any]:
    """What PEFT computes: of the files as they were sent, else of those that are served; and what
    the base model does, if that is asked for too."""
    served = {name: name for name in FILES}
    sent = served | {name: f"{ORIGINALS}/{name}" for name in version.converted}
    with ExitStack() as opened:
        files: sandbox.Files = {
            stored: (opened.enter_context(open_file(version.folder, stored)), "rb")
            for stored in {*sent.values(), *served.values()}
        }
        task = {
            "task": "compute", "base": str(base), "dtype": dtype, "prompts": prompts,
            "with_base": with_base, "versions": [sent, served] if version.converted else [served],
        }  # fmt: skip
        limits = sandbox.SandboxLimits(
            cpu_s=CPU_S, time_s=2 * CPU_S, open_files=OPEN_FILES, file_bytes=1 << 20,
            memory_bytes=ADDRESS_SPACE + 2 * settings.PARITY_BYTES,
        )  # fmt: skip
        try:
            found = sandbox.run(task, files, limits)
        except (sandbox.LimitExceeded, sandbox.Crashed) as error:
            raise NotCompared(f"computing with PEFT failed: {message_of(error)}") from error
    if found["unable"]:
        why = found["unable"].replace(str(base), version.adapter.base_model.name)
        raise NotCompared(f"computing with PEFT failed: {why}")
    return found


def _largest(expected: Logprobs, given: Logprobs) -> float:
    pairs = map(partial(zip, strict=True), expected, given)
    return max((abs(one - other) for one, other in chain.from_iterable(pairs)), default=0.0)
