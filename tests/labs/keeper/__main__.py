"""`python -m tests.labs.keeper [--wheel FILE]`: a day of somebody who keeps an installation.

Installs the wheel into an environment of its own; makes the first operator; answers two tenants;
backs up; kills every process; restores elsewhere; upgrades an installation of the release before,
whose database is full; exports one tenant and deletes it. The ledger, adapters and keys are
compared before and after each step. Prints a line for each, and ends with 1 at the first that
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import psutil
from rich.console import Console

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from demo import MODEL_NAME, QUESTIONS, TENANTS  # noqa: E402
from tests.stack.keeping import HAS  # noqa: E402
from tests.stack.running import free_ports, settings_free  # noqa: E402

READY_S, ANSWER_S, STOP_S = 1800.0, 300.0, 120.0
ASKED = 20
"""Questions to each of two tenants."""
Facts = dict[str, Any]


@dataclass(frozen=True)
class Installation:
    """A folder of data, and the command that works on it."""

    var: Path
    command: tuple[str, ...]

    def run(self, *arguments: str, **settings: str) -> str:
        """The command's output."""
        done = subprocess.run(
            [*self.command, *arguments], env=self._environment | settings, text=True,
            cwd=self.var.parent, capture_output=True, timeout=READY_S,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{arguments[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextmanager
    def up(self) -> Iterator[Facts]:
        """Everything runs until the end. Yields what it wrote to `up.json`."""
        facts, log = self.var / "up.json", self.var.parent / "up.log"
        facts.unlink(missing_ok=True)
        settings = {"LORIKEET_PORT": str(free_ports(2)), "LORIKEET_DEMO": MODEL_NAME}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*self.command, "up"], env=self._environment | settings, stdout=out, stderr=out,
                cwd=self.var.parent, start_new_session=True,
            )  # fmt: skip
        try:
            end = time.monotonic() + READY_S
            while not facts.exists():
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"it did not start:\n{log.read_text()[-3000:]}")
                time.sleep(0.5)
            yield json.loads(facts.read_text())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            process.wait(STOP_S)

    def kill(self) -> int:
        """Kill each of its processes, PostgreSQL included. Returns how many there were."""
        mine = [one for one in psutil.process_iter() if self._owns(one)]
        for one in mine:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(mine)
        return len(mine)

    def has(self, key: str) -> Facts:
        """Its ledger with receipts, its adapters by their digests, and the name of a key."""
        found: Facts = json.loads(self.run("shell", "--no-imports", "-c", HAS.format(key=key)))
        return found

    @property
    def _environment(self) -> dict[str, str]:
        return settings_free() | {"LORIKEET_VAR": str(self.var), "HOME": str(self.var.parent)}

    def _owns(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            here = str(self.var)
            if process.environ().get("LORIKEET_VAR") == here:
                return True
            return any(here in argument for argument in process.cmdline())
        return False


class Day:
    """Where everything happens."""

    def __init__(self, scratch: Path, console: Console) -> None:
        self.scratch, self.console = scratch, console
        self.python = scratch / "env" / "bin" / "python"

    def step(self, name: str, action: Callable[[], object]) -> None:
        """Do it, and tell how long it took."""
        began = time.monotonic()
        with self.console.status(f"{name} ..."):
            outcome = action()
        took = f"{time.monotonic() - began:5.0f} s"
        self.console.print(f"{took}  {name}: {outcome}", soft_wrap=True, markup=False)

    def installed(self, name: str) -> Installation:
        """An installation of the wheel."""
        return Installation(self._var(name), (str(self.python.with_name("lorikeet")),))

    def checked_out(self, name: str, commit: str) -> Installation:
        """An installation of another commit, with the wheel's dependencies."""
        source = self.scratch / f"source-{name}"
        run("git", "clone", "-q", "--shared", str(ROOT), str(source))
        run("git", "-C", str(source), "checkout", "-q", commit)
        return Installation(self._var(name), (str(self.python), str(source / "manage.py")))

    def _var(self, name: str) -> Path:
        folder = self.scratch / name
        folder.mkdir(exist_ok=True)
        return folder / "var"


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def install(day: Day, wheel: Path | None) -> str:
    """The locked requirements and the wheel, which is built unless one is given."""
    uv = str(Path(sys.executable).with_name("uv"))
    if wheel is None:
        run(uv, "build", "-q", "--wheel", "--out-dir", str(day.scratch / "dist"), str(ROOT))
        (wheel,) = (day.scratch / "dist").glob("lorikeet-*.whl")
    run(sys.executable, "tools/install.py", "--venv", str(day.scratch / "env"))
    run(uv, "pip", "install", "-q", "--no-deps", "--python", str(day.python), str(wheel))
    return wheel.name


def ask(facts: Facts) -> str:
    """Questions to two tenants' adapters, every other one as a stream."""
    for tenant in TENANTS[:2]:
        for at in range(ASKED):
            question, _ = QUESTIONS[at % len(QUESTIONS)]
            answered(facts, tenant.slug, tenant.adapter, question, stream=bool(at % 2))
    return f"{2 * ASKED} answers"


def answered(facts: Facts, slug: str, model: str, question: str, *, stream: bool = False) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 16,
        "stream": stream,
    }
    headers = {"Authorization": f"Bearer {key(facts, slug)}"}
    url = f"{facts['base_url']}/chat/completions"
    answer = httpx.post(url, headers=headers, json=body, timeout=ANSWER_S)
    if answer.status_code != 200:
        sys.exit(f"{slug}: {answer.status_code} {answer.text}")


def key(facts: Facts, slug: str) -> str:
    return str(next(one["api_key"] for one in facts["tenants"] if one["slug"] == slug))


def same(one: Facts, other: Facts) -> str:
    """Raises SystemExit where they differ."""
    for name in one:
        if one[name] != other[name]:
            sys.exit(f"{name} differ: {one[name]!r:.500} and {other[name]!r:.500}")
    return f"{len(one['events'])} events and {len(one['adapters'])} adapters are the same"


def settled(place: Installation, key: str, least: int) -> Facts:
    """What it has, once the ledger has all answers."""
    while len((has := place.has(key))["events"]) < least:
        time.sleep(1)
    return has


def live(day: Day) -> tuple[Installation, Facts, Facts]:
    """The first installation, with traffic, backed up and killed."""
    first = day.installed("first")
    with first.up() as facts:
        day.step("first operator", lambda: first.run("create_operator", "ada").splitlines()[0])
        day.step("two tenants with traffic", lambda: ask(facts))
        own = key(facts, TENANTS[0].slug)
        had = settled(first, own, 2 * ASKED)
        archive = str(day.scratch / "backup.tar")
        day.step("backup", lambda: first.run("backup", archive).splitlines()[-1])
        day.step("kill -9 of everything", lambda: f"{first.kill()} processes")
    return first, facts, had


def restore(day: Day, facts: Facts, had: Facts) -> Installation:
    """Elsewhere; the old key gets an answer there."""
    other = day.installed("elsewhere")
    tenant = TENANTS[0]
    own = key(facts, tenant.slug)
    archive = str(day.scratch / "backup.tar")
    day.step("restore elsewhere", lambda: other.run("restore", archive).splitlines()[-1])
    day.step("compared with what was", lambda: same(had, other.has(own)))
    with other.up() as now:
        told = facts | {"base_url": now["base_url"]}
        ask_again = partial(answered, told, tenant.slug, tenant.adapter, QUESTIONS[0][0])
        day.step("the old key asks", lambda: ask_again() or "answered")
    return other


def upgrade(day: Day) -> None:
    """From the last commit that had only the first migration, with a full database."""
    (second,) = (ROOT / "tenants" / "migrations").glob("0002_*.py")
    added = run("git", "log", "--diff-filter=A", "--format=%H", "--", str(second)).splitlines()
    before = run("git", "rev-parse", f"{added[-1]}^")
    old = day.checked_out("before", before)
    with old.up() as facts:
        day.step(f"the release before, {before[:8]}", lambda: ask(facts))
        own = key(facts, TENANTS[0].slug)
        had = settled(old, own, 2 * ASKED)
    new = Installation(old.var, day.installed("before").command)
    day.step("migrate", lambda: f"{len(new.run('migrate').splitlines())} lines")
    day.step("compared with what was", lambda: same(had, new.has(own)))
    with new.up() as now:
        day.step("it answers", lambda: ask(now))


def billed(had: Any) -> list[dict[str, Any]]:
    """The ledger without the numbers and digests of adapters' versions, which go with a tenant."""
    gone = ("adapter_version", "adapter_digest")
    return [{name: one[name] for name in one if name not in gone} for one in had["events"]]


def depart(day: Day, place: Installation, facts: Facts) -> None:
    """One tenant's export and deletion; the other one stays."""
    leaving, staying = TENANTS[0], TENANTS[1]
    own = key(facts, staying.slug)
    had = place.has(own)
    archive = day.scratch / "export.zip"
    place.run("export_tenant", leaving.slug, "--out", str(archive))
    with ZipFile(archive) as content:
        names = content.namelist()
    day.step("export", lambda: f"{len(names)} files, {archive.stat().st_size:,} bytes")
    told = place.run("delete_tenant", leaving.slug, "--now", "--confirm", leaving.slug)
    day.step("delete", lambda: f"a receipt of {len(told):,} characters")
    has = place.has(own)
    if billed(has) != billed(had) or has["key"] != had["key"]:
        sys.exit("the ledger or the other tenant's key has changed")
    if any(name.startswith(f"{leaving.slug}/") for name in has["adapters"]):
        sys.exit(f"adapters of {leaving.slug} are left: {has['adapters']}")
    day.console.print(f"        {len(has['events'])} events are left, and no adapter of the tenant")
    with place.up() as now:
        told_url = facts | {"base_url": now["base_url"]}
        answered(told_url, staying.slug, staying.adapter, QUESTIONS[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.keeper", description=__doc__)
    parser.add_argument("--wheel", type=Path, help="a wheel, instead of building one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lorikeet-keeper-") as folder:
        day = Day(Path(folder), Console(highlight=False))
        day.step("install from the wheel", lambda: install(day, options.wheel))
        _, facts, had = live(day)
        other = restore(day, facts, had)
        upgrade(day)
        depart(day, other, facts)


if __name__ == "__main__":
    main()
