"""`manage.py scaledown`: tells Kubernetes which engine to stop first, the idlest.

When a ReplicaSet is scaled down it deletes the pods with the lowest `pod-deletion-cost` first. This
is a separate process, so that the permission to change pods is neither reachable from outside nor
combined with secrets: it has a service account with that one permission, in the namespace of the
engines, and a token that reads figures. (An engine that could write its own annotation could write
any other's, and its image, because RBAC can't restrict a pod to itself.)

Costs are the logarithm of the load, so an engine's annotation changes when its load doubles and not
with each request: each change is a write to Kubernetes' database.

https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost
"""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import structlog

from gateway.scaling.fleet import ScaledFleet, UnknownFleet, ask
from inference.process import announce, environ, logs

log = structlog.get_logger(__name__)

COST = "controller.kubernetes.io/pod-deletion-cost"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HELP = (
    "Make Kubernetes stop the least busy engines first when it scales down, by setting "
    "controller.kubernetes.io/pod-deletion-cost. One such process is enough. Without it "
    "Kubernetes stops newer engines before older ones."
)


def main(arguments: list[str]) -> None:
    """Run until a signal ends it.

    Raises:
        BadSetting: with what is wrong.
    """
    options = _parser().parse_args(arguments)
    token = environ.secret("LORIKEET_METRICS_TOKEN", min_length=1)
    gateways = environ.base_urls(options.gateway)
    logs.configure("scaledown", options.log_level)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # process 1 has no default one
    with httpx.Client(trust_env=False) as client, Cluster.inside() as cluster:
        while True:
            try:
                mark(cluster, options.selector, ask(client, gateways, token))
                announce.ready()
            except (UnknownFleet, httpx.HTTPError, OSError) as error:
                log.warning("costs_not_set", error=str(error))
            time.sleep(options.every)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("manage.py scaledown", description=HELP)
    add = parser.add_argument
    add(
        "--gateway",
        default=os.environ.get("LORIKEET_GATEWAY_URL", "http://127.0.0.1:8000"),
        help="base URLs of one or more gateways, separated by commas (LORIKEET_GATEWAY_URL)",
    )
    add(
        "--selector",
        default="app.kubernetes.io/component=engine",
        help=(
            "label selector of the engines' pods, whose names must be the engines' ids "
            "(%(default)s)"
        ),
    )
    add(
        "--every",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="pause between updates (%(default)s)",
    )
    add("--log-level", default=os.environ.get("LORIKEET_LOG_LEVEL", "info"), help="(%(default)s)")
    return parser


def costs(fleet: ScaledFleet) -> dict[str, str]:
    """The cost of each engine, by its id."""
    return {engine.id: str(engine.load.bit_length()) for engine in fleet.engines}


def mark(cluster: Cluster, selector: str, fleet: ScaledFleet) -> None:
    """Write the costs that changed. A pod that no gateway knows is still starting, or broken: it is
    deleted first, like an idle one.

    Raises:
        httpx.HTTPError: Kubernetes does not answer, or does not allow it.
    """
    wanted = costs(fleet)
    for pod in cluster.pods(selector):
        name, annotations = pod["metadata"]["name"], pod["metadata"].get("annotations", {})
        cost = wanted.get(name, "0")
        if annotations.get(COST, "0") != cost and "deletionTimestamp" not in pod["metadata"]:
            cluster.annotate(name, {COST: cost})


class Cluster:
    """Kubernetes' API with a pod's service account; a context manager, which closes connections."""

    def __init__(self, client: httpx.Client, namespace: str, token_file: Path) -> None:
        self._client, self._namespace, self._token_file = client, namespace, token_file

    @classmethod
    def inside(cls, account: Path = ACCOUNT) -> Cluster:
        """The cluster of the pod that this process runs in.

        Raises:
            BadSetting: this is no pod, or it has no service account.
        """
        try:
            host, port = (
                os.environ["KUBERNETES_SERVICE_HOST"],
                os.environ["KUBERNETES_SERVICE_PORT"],
            )
            namespace = (account / "namespace").read_text().strip()
            context = ssl.create_default_context(cafile=account / "ca.crt")
        except (KeyError, OSError) as error:
            raise environ.BadSetting(f"this process does not run in Kubernetes: {error}") from None
        host = f"[{host}]" if ":" in host else host
        client = httpx.Client(base_url=f"https://{host}:{port}", verify=context, trust_env=False)
        return cls(client, namespace, account / "token")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """The namespace's pods with these labels."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        answer = self._client.get(
            path, params={"labelSelector": selector}, headers=self._headers()
        ).raise_for_status()
        pods: list[dict[str, Any]] = answer.json()["items"]
        return pods

    def annotate(self, pod: str, annotations: Mapping[str, str]) -> None:
        """Set these annotations; a pod that no longer exists is ignored."""
        answer = self._client.patch(
            f"/api/v1/namespaces/{self._namespace}/pods/{pod}",
            json={"metadata": {"annotations": annotations}},
            headers=self._headers() | {"Content-Type": "application/merge-patch+json"},
        )
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}  # renewed
