"""A second chance for tests that failed: each runs once more, alone, after the rest of a parallel
run (a pytest plugin).

A test that passes then failed by chance, such as for a lack of time. It does not fail the run, but
is listed under "passed only alone" with the end of its first failure, to be mended. More than MOST
failures are a fault, and nothing runs again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from _pytest.terminal import TerminalReporter

MOST = 25
"""How many failed tests are run once more; a broken build fails in many more."""
LAST_LINES = 20
"""How much of a first failure is printed, besides the lines of our own code on the way there."""
OWN_LINE = re.compile(r"(?!\.venv)[\w/]+\.py:\d+: |>")
ONLY_ALONE = "passed only alone"
FAILED = ("failed", "error")
"""The terminal reporter's categories of a failed test and of a failed fixture."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rerun(config))


class Rerun:
    """Runs failed tests again at the end of a session with several processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)  # after xdist has stopped its processes
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reporter = self._reporter
        failed = {report.nodeid for name in FAILED for report in reporter.stats.get(name, [])}
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
            return
        reporter.write_sep("=", f"{len(failed)} failed: running each once more, alone")
        passed = failed - failing(sorted(failed), self._config.rootpath)
        for name in FAILED:
            first = reporter.stats.pop(name, [])
            self._keep(name, [report for report in first if report.nodeid not in passed])
            self._keep(ONLY_ALONE, [report for report in first if report.nodeid in passed])
        if passed == failed:
            session.exitstatus = pytest.ExitCode.OK

    def _keep(self, category: str, reports: list[pytest.TestReport]) -> None:
        if reports:
            self._reporter.stats.setdefault(category, []).extend(reports)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        first = {
            report.nodeid: report for report in reversed(terminalreporter.stats.get(ONLY_ALONE, []))
        }
        for report in first.values():
            terminalreporter.write_sep("_", f"{ONLY_ALONE}: {report.nodeid} ({report.when})")
            lines = report.longreprtext.splitlines()
            above = filter(OWN_LINE.match, lines[:-LAST_LINES])
            for line in (*above, *lines[-LAST_LINES:]):
                terminalreporter.write_line(line)

    @property
    def _reporter(self) -> TerminalReporter:
        found = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(found, TerminalReporter)
        return found


def failing(tests: list[str], root: Path) -> set[str]:
    """Run these tests one after another in a process of their own; returns those that failed."""
    with TemporaryDirectory() as cache:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-o",
            f"cache_dir={cache}",
            "--",
            *tests,
        ]
        status = subprocess.run(command, cwd=root).returncode
        if status == pytest.ExitCode.OK:
            return set()
        found = Path(cache) / "v" / "cache" / "lastfailed"
        if status != pytest.ExitCode.TESTS_FAILED or not found.exists():
            return set(tests)
        return set(json.loads(found.read_text()))
