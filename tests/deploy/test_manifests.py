"""The Kubernetes manifests are valid, complete, and grant no more privileges than needed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.planes.forward import PATHS
from gateway.process_secrets import SECRETS_OF
from tests.labs.kubernetes.api import Object

ROOT = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
OVERLAYS = sorted(folder.name for folder in (ROOT / "overlays").iterdir())
VERSION = "1.31"
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")


@pytest.fixture(scope="module", params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Object]:
    """All objects that Kustomize builds from an overlay."""
    folder = ROOT / "overlays" / request.param
    built = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return [one for one in yaml.safe_load_all(built.stdout) if one]


def test_those_of_the_scenario_can_be_built() -> None:
    overlay = Path(__file__).resolve().parents[1] / "labs" / "kubernetes" / "overlay"
    restrictor = ["--load-restrictor", "LoadRestrictionsNone"]
    built = subprocess.run(["kubectl", "kustomize", overlay, *restrictor], capture_output=True)
    assert built.returncode == 0, built.stderr


def test_every_object_is_what_kubernetes_takes(manifests: list[Object]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="an extra of `dev`")
    for one in manifests:
        if not one["apiVersion"].startswith("keda.sh/"):
            validator.validate(one, VERSION, strict=True)


def test_nothing_runs_with_more_than_it_needs(manifests: list[Object]) -> None:
    for name, pod in pods(manifests):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is (name == "scaledown"), name
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], name
            assert not security["allowPrivilegeEscalation"], name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name


def test_each_process_is_given_its_own_secret_alone(manifests: list[Object]) -> None:
    for name, pod in pods(manifests):
        (container,) = pod["containers"]
        given = [
            one["secretRef"]["name"] for one in container.get("envFrom", []) if "secretRef" in one
        ]
        assert given == ([] if name == "redis" else [name])
        if name in SECRETS_OF and name != "redis":
            assert container["args"][0] == name


def test_what_drains_has_time_for_it(manifests: list[Object]) -> None:
    for name, pod in pods(manifests):
        arguments = pod["containers"][0].get("args", [])
        if "--drain" in arguments:
            drain_s = float(arguments[arguments.index("--drain") + 1])
            assert pod["terminationGracePeriodSeconds"] >= drain_s + 30, name


def test_engines_have_no_service_and_no_port(manifests: list[Object]) -> None:
    selected = [one["spec"]["selector"] for one in manifests if one["kind"] == "Service"]
    assert {"app.kubernetes.io/component": "engine"} not in selected
    (engine,) = (pod for name, pod in pods(manifests) if name == "engine")
    assert "ports" not in engine["containers"][0]


def test_nobody_is_reached_but_for_what_a_policy_says(manifests: list[Object]) -> None:
    policies = [one for one in manifests if one["kind"] == "NetworkPolicy"]
    everything = [one for one in policies if one["spec"]["podSelector"] == {}]
    assert any(
        one["spec"]["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in one["spec"]
        for one in everything
    )
    for name, _ in pods(manifests):
        assert any(_selects(policy["spec"]["podSelector"], name) for policy in policies), name


def _selects(selector: Object, name: str) -> bool:
    label = "app.kubernetes.io/component"
    if selector.get("matchLabels", {}).get(label) == name:
        return True
    return any(name in one["values"] for one in selector.get("matchExpressions", []))


def test_the_world_reaches_no_internal_address(manifests: list[Object]) -> None:
    (ingress,) = (one for one in manifests if one["kind"] == "Ingress")
    paths = {
        path["path"]: path["backend"]["service"]["name"]
        for rule in ingress["spec"]["rules"]
        for path in rule["http"]["paths"]
    }
    assert paths == {
        **dict.fromkeys(PATHS, "console"),
        **dict.fromkeys(("/detokenize", "/rerank", "/score", "/tokenize", "/v2"), "gateways"),
        "/v1": "gateways",
        "/ws": "gateways",
        "/": "console",
    }


def test_one_process_alone_may_do_anything_in_kubernetes(manifests: list[Object]) -> None:
    roles = [one for one in manifests if one["kind"] in ("Role", "ClusterRole")]
    rules = [rule for role in roles for rule in role["rules"]]
    assert rules in ([], [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}])
    bound = [one for one in manifests if one["kind"] == "RoleBinding"]
    assert all(one["subjects"][0]["name"] == "scaledown" for one in bound)


def pods(manifests: list[Object]) -> Iterator[tuple[str, Any]]:
    """The pod templates in the manifests, each with the name of its object."""
    for one in manifests:
        if one["kind"] == "ScaledObject":
            continue
        spec = one.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield one["metadata"]["name"], template["spec"]
