"""`python -m tests.labs.endpoint SOURCE [--only PART] [-k EXPRESSION]`: vLLM's own endpoint tests.

SOURCE is vLLM's source package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from tests.labs.endpoint import sides, suite  # noqa: E402
from tests.labs.endpoint.differences import DIFFERENCES  # noqa: E402
from tests.labs.endpoint.judging import Comparison, Outcome, compare, idle  # noqa: E402
from tests.labs.endpoint.sides import Side  # noqa: E402
from tests.labs.endpoint.suite import Served  # noqa: E402

TEST_S = 120
"""The longest that one test may take, in seconds."""
ALL_S = 1200
"""The longest that all tests of a model may take; those that did not run have not passed."""
AT = "tests/entrypoints/"
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
WITHOUT = ("django", "cacheprovider", "schemathesis")
"""Plugins of our own tests that vLLM's do not expect."""

Outcomes = dict[str, Outcome]


def main() -> None:
    """Run, print the tables, and exit with status 1 if a difference has no reason."""
    options = _options()
    console = Console(width=160, highlight=False, soft_wrap=True)
    served = _chosen((suite.generating(), suite.embedding()), options.only)
    with tempfile.TemporaryDirectory(prefix="lorikeet-endpoint-") as scratch:
        folder = Path(scratch)
        for one in served:
            _prepare(options.source, folder / one.name, one)
        run = _runner(folder, served, options, console)
        plain = run(sides.plain(served, folder))
        ours = run(sides.lorikeet(served, folder / "var"))
    compared = compare(plain, ours, DIFFERENCES)
    _print(console, compared)
    for pattern in [] if options.only or options.k else idle(compared, DIFFERENCES):
        console.print(f"explains nothing: {pattern}", style="yellow", markup=False)
    sys.exit(1 if not compared or any(one.unexplained for one in compared) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.endpoint", description=__doc__)
    parser.add_argument("source", type=Path, help="vLLM's source package")
    parser.add_argument("--only", default="", help="only modules whose paths contain this")
    parser.add_argument("-k", default="", help="only tests that this expression of pytest selects")
    return parser.parse_args()


def _chosen(served: Sequence[Served], part: str) -> list[Served]:
    """The models of modules whose paths contain `part`, with only those."""
    fewer = [
        replace(one, modules=tuple(name for name in one.modules if part in name)) for one in served
    ]
    return [one for one in fewer if one.modules]


def _prepare(source: Path, folder: Path, served: Served) -> None:
    folder.mkdir()
    suite.unpack(source, folder, served)
    (folder / "pytest.ini").write_text(INI)


def _runner(
    folder: Path, served: Sequence[Served], options: argparse.Namespace, console: Console
) -> Callable[[AbstractContextManager[dict[str, Side]]], Outcomes]:
    def run(servers: AbstractContextManager[dict[str, Side]]) -> Outcomes:
        began, outcomes = time.monotonic(), Outcomes()
        with servers as running:
            for one in served:
                side = running[one.name]
                outcomes |= _outcomes(folder / one.name, one, side, options.k)
        passed = sum(outcome == "passed" for outcome, _ in outcomes.values())
        took_s = time.monotonic() - began
        console.print(f"{side.name}: {passed} of {len(outcomes)} pass, in {took_s:.0f} s")
        return outcomes

    return run


def _outcomes(folder: Path, served: Served, side: Side, expression: str) -> Outcomes:
    """Run vLLM's test modules in this folder on a server."""
    report = folder / "report.json"
    command = [sys.executable, "-P", "-m", "tests.labs.endpoint.inside", str(report)]
    # Other tracebacks parse the source, which fails in Python 3.11 if the stack is deep.
    command += ["-c", "pytest.ini", "--rootdir", ".", "-q", "--tb=native", "-k", expression]
    command += ["--timeout", str(TEST_S), *(f"-pno:{plugin}" for plugin in WITHOUT)]
    command += [f"{AT}{name}" for name in served.modules]
    command += [f"--deselect={AT}{test}" for test in suite.LEFT_OUT]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        "HF_HUB_OFFLINE": "1",
        "SERVER_URL": side.url,
        "SERVER_KEY": side.key,
        "SERVER_ADAPTER": str(next(iter(served.adapters.values()), served.base)),
    }
    report.unlink(missing_ok=True)
    with (folder / "pytest.log").open("w+") as log, suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=ALL_S)
    if not report.exists():
        raise RuntimeError((folder / "pytest.log").read_text()[-4000:])
    return {test: (outcome, why) for test, (outcome, why) in json.loads(report.read_text()).items()}


def _print(console: Console, compared: list[Comparison]) -> None:
    table = Table("test", "plain vLLM", "Lorikeet")
    for one in compared:
        table.add_row(_short(one.test), one.plain, one.lorikeet)
    console.print(table)
    lacking = [one for one in compared if one.lacking]
    for title, wanted in (("Deliberate differences", False), ("Unexplained", True)):
        found = [one for one in lacking if one.unexplained is wanted]
        if found:
            console.print(f"\n{title}: {len(found)}", style="bold")
        for one in found:
            console.print(f"{_short(one.test)}\n    {one.difference or one.reason}", markup=False)
    passed = sum(one.plain == "passed" for one in compared)
    console.print(f"\nOf {passed} that plain vLLM passes, Lorikeet passes {passed - len(lacking)}.")


def _short(test: str) -> str:
    return test.removeprefix(AT)


if __name__ == "__main__":
    main()
