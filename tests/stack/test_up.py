"""`make up` itself, on the synthetic engine: its facts, options, Ctrl-C, and a second start."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from dotenv import dotenv_values

from demo import MODEL_NAME, QUESTIONS, TENANTS, smollm2
from gateway.process_secrets import SECRETS_OF
from gateway.start import SECRETS
from tests.otlp import Collector, collector
from tests.stack.asking import until
from tests.stack.keeping import HAS
from tests.stack.rolling import FIRST, answered_by, revisions
from tests.stack.running import ROOT, Stack, gone, settings_free, signed_in, up

pytestmark = pytest.mark.stack
SYNTHETIC = "--engine synthetic"
PATIENCE_S = 300.0
PLANTED = {
    name: f"planted-{name.lower()}"
    for name in ("LORIKEET_EMAIL_HOST_PASSWORD", "LORIKEET_OIDC_CLIENT_SECRET", "HF_TOKEN",
                 "AWS_SECRET_ACCESS_KEY", "OTEL_EXPORTER_OTLP_HEADERS")
}  # fmt: skip
"""Secrets in the environment of `make up`."""


@pytest.fixture
def traces() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.mark.timeout(900)  # it starts everything twice, and restores a backup
def test_two_gateways_one_engine_a_clean_end_and_a_second_start(
    tmp_path: Path, traces: Collector
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    above = {folder: folder.stat().st_mode for folder in (private, *private.parents)}
    var = private / "var"
    settings = PLANTED | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url,
        "LORIKEET_EMBEDDING_ENGINES": "1",
        "LORIKEET_TRAINERS": "1",
        "LORIKEET_DEMO": smollm2.MODEL_NAME,
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
    }
    with up(var, LORIKEET_ENGINE_OPTIONS=SYNTHETIC, LORIKEET_GATEWAYS="2", **settings) as first:
        family = psutil.Process(first.process.pid).children(recursive=True)
        assert stat.S_IMODE((var / "up.json").stat().st_mode) == 0o600
        assert stat.S_IMODE((var / "secrets.env").stat().st_mode) == 0o600
        assert [tenant["slug"] for tenant in first.facts["tenants"]] == [t.slug for t in TENANTS]
        facts = first.facts
        bearer = {"Authorization": f"Bearer {facts['metrics_token']}"}
        for url in first.urls:
            metrics = httpx.get(f"{url}/metrics", headers=bearer, timeout=60)
            assert "lorikeet_streams" in metrics.text
        key = first.key(TENANTS[0].slug)
        for url in first.urls:
            answer = httpx.post(
                f"{url}/v1/chat/completions",
                headers={"Authorization": f"Bearer {key}"},
                json={
                    "model": TENANTS[0].adapter,
                    "messages": [{"role": "user", "content": QUESTIONS[0][0]}],
                },
                timeout=PATIENCE_S,
            )
            assert answer.status_code == 200, answer.text
        assert len(first.children("gateway")) == 2
        assert f"Serving the tiny {MODEL_NAME} instead" in (var / "up.log").read_text()
        _each_has_its_own_secrets_alone(first)
        assert {folder: folder.stat().st_mode for folder in above} == above
        assert _open_to_others(var) == []
        assert '"engine":"synthetic"' in first.log("engine-1"), "every start says which engine runs"
        until(lambda: "Ctrl-C stops everything" in (var / "up.log").read_text())
        _paste((var / "up.log").read_text(), key)
        _it_embeds_at_last(first, key)
        kept = first.manage("backup", str(tmp_path / "backup.tar"))
        assert kept.returncode == 0, kept.stderr
    assert first.process.returncode == 0, (var / "up.log").read_text()
    until(lambda: all(gone(one) for one in family))
    for name in ("gateway-1", "console", "engine-1", "worker-1"):
        for line in first.log(name).splitlines():
            if line.startswith("{"):
                assert {"event", "level", "timestamp", "process"} <= json.loads(line).keys()
    assert '"request_id"' in first.log("gateway-1")
    names = ("gateway-1", "console", "engine-1", "worker-1")
    assert key not in "".join(first.log(name) for name in names)

    _all_comes_back_elsewhere(tmp_path, var, key)

    chats = traces.named(f"chat {TENANTS[0].adapter}")
    assert {one.instance for one in chats} == set(first.urls)
    of_engine = [one for one in traces.spans if one.service == "lorikeet-engine"]
    for chat in chats:
        parts = [one.name for one in of_engine if one.trace == chat.trace]
        assert parts == ["fetch adapter", "queue", "load adapter", "prefill", "decode"]

    with up(var, LORIKEET_ENGINE_OPTIONS=f"{SYNTHETIC} --max-lora-rank 32") as second:
        assert second.facts["operator"] == facts["operator"]
        assert second.facts["tenants"] == facts["tenants"]
        assert second.facts["metrics_token"] == facts["metrics_token"]
        _other_engines_take_over(second)


def _all_comes_back_elsewhere(tmp_path: Path, var: Path, key: str) -> None:
    """From a backup, when this installation is gone: the ledger, adapters, keys and secrets."""
    other = tmp_path / "elsewhere" / "var"

    def manage(folder: Path, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments], cwd=ROOT, text=True,
            env=settings_free() | {"LORIKEET_VAR": str(folder)}, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    manage(other, "restore", str(tmp_path / "backup.tar"))
    shell = ("shell", "--no-imports", "-c", HAS.format(key=key))
    had, has = (json.loads(manage(folder, *shell)) for folder in (var, other))
    assert has == had and len(has["events"]) >= 2 and len(has["adapters"]) == len(TENANTS)
    assert (other / "secrets.env").read_bytes() == (var / "secrets.env").read_bytes()
    assert "No planned migration" in manage(other, "migrate", "--plan")


def _other_engines_take_over(stack: Stack) -> None:
    """Engines that replace all others need no rollout, once the adapters were tried on them."""
    with signed_in(stack) as operator:
        # At least: four times a day the check of isolation has adapters of its own tried too.
        until(lambda: any(one["tried"] >= len(TENANTS) for one in revisions(operator, engines=1)))
        (new,) = revisions(operator, engines=1)
        assert (new["max_lora_rank"], new["standing"]) == (32, "waiting")
        assert answered_by(stack) == {tenant.slug: {FIRST} for tenant in TENANTS}


def _it_embeds_at_last(stack: Stack, key: str) -> None:
    """With an engine that starts after everything else, at a lower priority (nice 10)."""
    name = stack.facts["embedding_model"]
    with stack.client(key) as client:
        until(lambda: name in client.get("/v1/models").text)
        body = {"model": name, "input": ["one", "another"]}
        assert len(client.post("/v1/embeddings", json=body).json()["data"]) == 2
    assert sorted(engine.nice() for engine in stack.children("engine")) == [0, 10]


ELSEWHERE = {"engines", "scaledown"}
"""Roles that run only with more than one machine."""


def _each_has_its_own_secrets_alone(stack: Stack) -> None:
    """Checked in /proc, for each process and all its descendants."""
    made = dotenv_values(stack.var / "secrets.env")
    values = {name: str(made.get(name) or PLANTED.get(name)) for name in (*SECRETS, *PLANTED)}
    processes = {name: stack.children(name) for name in SECRETS_OF.keys() - ELSEWHERE}
    postmaster = (stack.var / "postgres" / "postmaster.pid").read_text().split()[0]
    processes["postgres"] = [psutil.Process(int(postmaster))]
    for name, several in processes.items():
        assert several, name
        own = SECRETS_OF.get(name, frozenset()) & values.keys()
        for process in several:
            assert _known(process, values) == own, (name, process)
            for child in process.children(recursive=True):  # checks of uploads get none
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    assert _known(child, values) in (own, set()), (name, child)


def _known(process: psutil.Process, values: Mapping[str, str]) -> set[str]:
    """The names of the secrets in a process's environment."""
    seen = Path(f"/proc/{process.pid}/environ").read_bytes()
    return {secret for secret, value in values.items() if value.encode() in seen}


def _open_to_others(var: Path) -> list[Path]:
    """Paths that other users could read if the folder were open to them."""
    found = []
    for path in var.rglob("*"):
        with suppress(FileNotFoundError):  # PostgreSQL removed it meanwhile
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISSOCK(mode) and not stat.S_ISLNK(mode):
                found.append(path)
    return [path for path in found if path != var / "up.log"]  # written by this test


def _paste(printed: str, key: str) -> None:
    """The printed curl line and Python snippet work as they stand."""
    curl = printed[printed.index("curl -N") : printed.index("\n\nPython:")]
    answer = subprocess.run(
        ["bash", "-c", curl], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert "data: [DONE]" in answer.stdout, answer.stderr
    snippet = printed[printed.index("from openai") : printed.index("\n\nCtrl-C")]
    assert key in snippet
    said = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert said.returncode == 0 and said.stdout.strip(), said.stderr


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"LORIKEET_GATEWAYS": "0"},
            "LORIKEET_GATEWAYS='0' is not allowed: it must be an integer from 1 to 64",
        ),
        ({"LORIKEET_SECRET_KEY": "short"}, "LORIKEET_SECRET_KEY has 5 characters"),
    ],
)
def test_a_bad_setting_ends_the_start_with_one_line(
    tmp_path: Path, variables: dict[str, str], says: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "up"],
        env=settings_free()
        | {"LORIKEET_VAR": str(tmp_path), "LORIKEET_DATABASE_URL": "postgresql:///none"}
        | variables,
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().startswith("lorikeet: ")
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_engine_needs_its_token_and_a_model() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "engine", "--model", "x"],
        env=settings_free(), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().startswith("lorikeet engine: LORIKEET_ENGINE_CREDENTIAL is not set")


def test_an_engine_that_does_not_start_tells_the_gateways_why(tmp_path: Path) -> None:
    told: list[tuple[str, str | None, Any]] = []
    secret = "e" * 40

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.append((self.path, self.headers["Authorization"], body))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Gateway) as server, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # nobody listens on it
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ports = dead.getsockname()[1], server.server_address[1]
        urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        command = ["engine", "--engine", "synthetic", "--model", "org/tiny", "--id", "e1"]
        command += ["--reserved", "999", "--journal-dir", str(tmp_path), "--gateway", urls]
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *command],
            env=settings_free() | {"LORIKEET_ENGINE_CREDENTIAL": secret},
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        server.shutdown()
    cause = done.stderr.strip().rpartition("lorikeet engine: ")[2]
    assert cause.startswith("reserved is 999: it must be from 0 to")
    assert told == [("/engine/failed", f"Bearer {secret}", {"engine": "e1", "cause": cause})]
