"""`python -m tests.labs.gpu [--device cpu] [--out FILE] [steps]`: runs steps, writes a report."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from inference.agent.engines.profiles.named import shipped
from inference.agent.profile_check.running import PLAIN
from tests.labs.gpu.report import StepReport, written
from tests.labs.gpu.steps import PROFILE, STEPS
from tests.labs.gpu.subjects import CUDA, SIZES

ROOT = Path(__file__).parents[3]
FIRST = ("fp8-kv", "ngram", "int8")
BUDGET_S = 900.0
"""For everything: such a machine is often lent for a quarter of an hour."""
LIMITS_S = {"machine": 60.0, "speed": 300.0}
STEP_S = 120.0
"""Of any other step."""


def main() -> None:
    """Run the steps; the exit status is 1 if one failed."""
    names = [*STEPS, *(PROFILE + name for name in profiles())]
    parser = argparse.ArgumentParser(prog="python -m tests.labs.gpu", description=__doc__)
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"of {', '.join(names)}; all if none"
    )
    parser.add_argument("--device", choices=sorted(SIZES), default=CUDA)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu.md")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all steps")
    parser.add_argument("--slower", type=float, default=1.0, help="multiplies the steps' limits")
    options = parser.parse_args()
    if unknown := set(options.steps) - set(names):
        parser.error(f"no step is called {', '.join(sorted(unknown))}")
    ends, found = time.monotonic() + options.budget, list[StepReport]()
    for name in options.steps or names:
        limit_s = min(LIMITS_S.get(name, STEP_S) * options.slower, ends - time.monotonic())
        found.append(run(name, options.device, limit_s))
        print(f"{name}: {found[-1].result}, {found[-1].took_s:.0f} s", file=sys.stderr, flush=True)
        options.out.write_text(written(found, options.device))  # kept whatever happens next
    sys.exit(1 if any(one.fault for one in found) else 0)


def profiles() -> list[str]:
    """All but plain, which each is compared with; those first that only a GPU can show."""
    others = [name for name in shipped() if name != PLAIN and name not in FIRST]
    return [*FIRST, *others]


def run(name: str, device: str, limit_s: float) -> StepReport:
    """Run one step in a process of its own, which is ended with its children after `limit_s`."""
    if limit_s <= 0:
        return StepReport(name, "no time was left for it")
    command = [sys.executable, "-m", "tests.labs.gpu.steps", name, "--device", device]
    path = [f"{ROOT}/platform", str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
            fault = _last_line(err, status) if status else ""
        except subprocess.TimeoutExpired:
            fault = f"ended after {limit_s:.0f} s"
        finally:
            _end(process)
        took_s = time.monotonic() - began
        out.seek(0)
        return StepReport.of(name, fault, out.read(), took_s)


def _last_line(err: IO[str], status: int) -> str:
    err.seek(0)
    lines = [line.strip() for line in err.read().splitlines() if line.strip()]
    return lines[-1][:500] if lines else f"ended with {status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what the step left behind: its engine's processes are in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


if __name__ == "__main__":
    main()
