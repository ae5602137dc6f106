"""`manage.py check_profile`: proves profiles of engines on this machine, with the demo's model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import demo
from gateway.start import var_folder
from inference.agent.engines.profile import BadProfile
from inference.agent.engines.profiles.hardware import Hardware
from inference.agent.engines.profiles.named import named, shipped
from inference.agent.engines.profiles.proofs import ProfileProof
from inference.agent.profile_check.running import PLAIN, ProfileChecker
from inference.process import logs

COLUMNS = (
    "profile", "promise", "equal answers", "difference, mean and largest", "tok/s, 1 stream",
    "tok/s, 8 streams", "CPU", "TTFT", "memory", "accepted", "ready", "result",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Check the named profiles; the exit status is 1 if one breaks its promise."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.model and not options.adapter:
        parser.error("--model needs at least one --adapter: log-probabilities are compared with it")
    logs.configure("check_profile", "warning")
    names = options.profiles or [PLAIN, *(name for name in shipped() if name != PLAIN)]
    own = options.model is not None
    adapters = dict(_adapter(one) for one in options.adapter) if own else demo.ADAPTERS
    model = options.model if own else demo.BASE
    checker = ProfileChecker(
        model, model.name if own else demo.MODEL_NAME, adapters,
        ["--draft-model", str(options.draft_model or model), *options.engine_options],
    )  # fmt: skip
    proofs = []
    try:
        for name in names:
            named(name)  # a bad name ends it before anything runs
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            proofs.append(checker.check(name))
            proofs[-1].keep(options.proofs)
    except BadProfile as error:
        sys.exit(f"lorikeet check_profile: {error}")
    report(proofs, Hardware.here())
    print(f"Kept in {options.proofs}.")
    sys.exit(1 if any(proof.faults for proof in proofs) else 0)


def report(proofs: Iterable[ProfileProof], hardware: Hardware) -> None:
    """Print the table."""
    table = Table(*COLUMNS, title=str(hardware))
    for proof in proofs:
        table.add_row(*_row(proof))
    Console(width=max(180, Console().width)).print(table)


def _row(proof: ProfileProof) -> list[str]:
    result = proof.skipped or "; ".join(proof.faults) or "kept"
    if (side := proof.measured) is None:
        return [proof.profile, proof.promise, *[""] * 9, result]
    accepted = "" if side.acceptance is None else f"{side.acceptance:.0%}"
    return [
        proof.profile,
        proof.promise,
        f"{proof.equal} of {proof.answers}",
        f"{proof.mean:.4f} and {proof.largest:.4f}",
        f"{side.single_tps:.0f}",
        f"{side.eight_tps:.0f}",
        f"{side.cpu_ms:.2f} ms",
        f"{side.ttft_s * 1000:.0f} ms",
        f"{side.memory_bytes / (1 << 20):.0f} MiB",
        accepted,
        f"{side.ready_s:.0f} s",
        result,
    ]


def _adapter(text: str) -> tuple[str, Path]:
    folder = Path(text)
    return folder.name, folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="manage.py check_profile",
        description=(
            "Start an engine with plain and one with each profile, compare their answers with "
            "what the profile promises, measure both, and keep the result for the console. What "
            "this machine lacks is skipped. The exit status is 0 if no promise was broken."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("profiles", nargs="*", metavar="NAME", help=f"by default all: {', '.join(shipped())}")
    add("--model", type=Path, help="folder of a model to check with; by default the tiny demo's")
    add(
        "--adapter",
        action="append",
        default=[],
        metavar="FOLDER",
        help="with --model: an adapter to check with; once or several times",
    )
    add("--draft-model", help="model of the profile draft; by default the model itself")
    add(
        "--proofs",
        type=Path,
        default=Path(os.environ.get("LORIKEET_PROOFS_DIR") or var_folder() / "profiles"),
        metavar="FOLDER",
        help="where results are kept (LORIKEET_PROOFS_DIR)",
    )
    add(
        "--engine-options",
        nargs=argparse.REMAINDER,
        default=[],
        help="further options of `manage.py engine`, for all engines",
    )
    return parser
