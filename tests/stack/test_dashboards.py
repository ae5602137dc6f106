"""The data of the dashboards' panels, from a Prometheus that scrapes the running stack."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.labs.bench.machinery.processes import free_port
from tests.stack.running import ROOT, Stack
from tools.dashboards import DASHBOARDS, FOLDER

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is not here (Debian's `prometheus`)"
    ),
]
RULES = ROOT / "deploy" / "prometheus"
DATA_S = 120.0
"""Longest wait for data, which comes with the second scrape."""


@pytest.fixture(scope="module")
def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a Prometheus that scrapes both gateways each second, while there is traffic."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(RULES, folder, dirs_exist_ok=True)
    (folder / "metrics_token").write_text(stack.facts["metrics_token"])
    targets = json.dumps([url.removeprefix("http://") for url in stack.urls])
    config = (RULES / "prometheus.yml").read_text().replace("15s", "1s")
    (folder / "prometheus.yml").write_text(config.replace('["127.0.0.1:8000"]', targets))
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with (
            httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as client,
            traffic(stack),
        ):
            yield client
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def traffic(stack: Stack) -> Iterator[None]:
    """Streams of adapters and of the base model, and requests for a model that does not exist."""
    over = threading.Event()

    def ask() -> None:
        clients = [stack.client(tenant["api_key"]) for tenant in stack.facts["tenants"]]
        while not over.wait(1):
            for client, tenant in zip(clients, stack.facts["tenants"], strict=True):
                for model in (*tenant["models"], "nothing"):
                    body = {
                        "model": model,
                        "messages": [{"role": "user", "content": "What is the capital of Peru?"}],
                        "max_tokens": 8,
                        "stream": True,
                    }
                    client.post("/v1/chat/completions", json=body)
        for client in clients:
            client.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def found(prometheus: httpx.Client, expression: str) -> list[dict[str, Any]]:
    """The expression's present samples whose values are finite."""
    try:
        answer = prometheus.get("/api/v1/query", params={"query": expression})
    except httpx.TransportError:  # it is still starting
        return []
    if answer.status_code == 503:
        return []
    assert answer.status_code == 200, f"{expression}: {answer.text}"
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return [one for one in result if math.isfinite(float(one["value"][1]))]


def expressions() -> Iterator[tuple[str, str]]:
    """The name and the expression of each query of all panels, as Grafana would send it."""
    for name in DASHBOARDS:
        for panel in json.loads((FOLDER / f"{name}.json").read_text())["panels"]:
            for target in panel["targets"]:
                asked = target["expr"].replace("$__rate_interval", "30s")
                yield f"{name}, {panel['title']}", asked.replace("$base_model", ".*")


def test_every_panel_has_data(prometheus: httpx.Client) -> None:
    missing = dict.fromkeys(expressions())
    assert len(missing) > 50
    due = time.monotonic() + DATA_S
    while missing and time.monotonic() < due:
        missing = dict.fromkeys(one for one in missing if not found(prometheus, one[1]))
        time.sleep(0.5)
    assert list(missing) == []


def test_an_engine_counts_once_through_two_gateways(prometheus: httpx.Client) -> None:
    _wait_for(prometheus, "count(lorikeet_engine_running) == 2")
    (once,) = _wait_for(prometheus, "lorikeet:engine_running:max")
    assert once["metric"]["engine"] == "engine-1"


def test_alerts_are_quiet_where_nothing_is_wrong(prometheus: httpx.Client) -> None:
    _wait_for(prometheus, "lorikeet:requests:rate5m")
    alerts = prometheus.get("/api/v1/alerts").json()["data"]["alerts"]
    names = {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}
    assert not names - {"LorikeetDiskFull", "LorikeetDiskFills"}, "of this machine's disk"


def _wait_for(prometheus: httpx.Client, expression: str) -> list[dict[str, Any]]:
    due = time.monotonic() + DATA_S
    while time.monotonic() < due:
        if some := found(prometheus, expression):
            return some
        time.sleep(0.2)
    raise AssertionError(f"nothing for {expression}")
