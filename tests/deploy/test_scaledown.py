"""Pod deletion costs, which tell Kubernetes which engine to stop first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.scaling.fleet import EngineLoad, ScaledFleet
from gateway.scaling.kubernetes import COST, Cluster, costs, mark
from inference.process.environ import BadSetting


class Kubernetes:
    """A Kubernetes API with the pods of a namespace."""

    def __init__(self, **costs: str | None) -> None:
        self.pods = [
            {"metadata": {"name": name, "annotations": {} if cost is None else {COST: cost}}}
            for name, cost in costs.items()
        ]
        self.patched: list[tuple[str, dict[str, Any]]] = []
        self.status = 200

    def answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        if request.method == "GET":
            assert request.url.path == "/api/v1/namespaces/engines/pods"
            assert request.url.params["labelSelector"] == "a=b"
            return httpx.Response(200, json={"items": self.pods})
        assert request.headers["content-type"] == "application/merge-patch+json"
        self.patched.append((request.url.path.rpartition("/")[2], json.loads(request.content)))
        return httpx.Response(self.status, json={})

    def cluster(self, folder: Path) -> Cluster:
        (folder / "token").write_text("secret\n")
        transport = httpx.MockTransport(self.answer)
        client = httpx.Client(transport=transport, base_url="https://kubernetes")
        return Cluster(client, "engines", folder / "token")


def fleet(**loads: int) -> ScaledFleet:
    return ScaledFleet({}, [EngineLoad(id, "base", load, False) for id, load in loads.items()])


def test_the_idlest_costs_least_and_small_changes_cost_no_write() -> None:
    assert costs(fleet(a=0, b=1, c=5, d=7, e=8)) == {
        "a": "0",
        "b": "1",
        "c": "3",
        "d": "3",
        "e": "4",
    }


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    kubernetes = Kubernetes(idle=None, same="2", busier="1", unknown="3")
    with kubernetes.cluster(tmp_path) as cluster:
        mark(cluster, "a=b", fleet(idle=0, same=3, busier=9))
    assert kubernetes.patched == [
        ("busier", {"metadata": {"annotations": {COST: "4"}}}),
        ("unknown", {"metadata": {"annotations": {COST: "0"}}}),
    ]


def test_a_pod_that_is_being_deleted_is_left_alone(tmp_path: Path) -> None:
    kubernetes = Kubernetes(going="5")
    kubernetes.pods[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with kubernetes.cluster(tmp_path) as cluster:
        mark(cluster, "a=b", fleet(going=0))
    assert kubernetes.patched == []


def test_a_pod_that_is_gone_meanwhile_is_no_fault_and_a_refusal_is(tmp_path: Path) -> None:
    kubernetes = Kubernetes(gone="5")
    kubernetes.status = 404
    with kubernetes.cluster(tmp_path) as cluster:
        mark(cluster, "a=b", fleet())
        kubernetes.status = 403
        with pytest.raises(httpx.HTTPStatusError):
            mark(cluster, "a=b", fleet())


def test_outside_of_kubernetes_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="not run in Kubernetes"):
        Cluster.inside(tmp_path)
