"""Which process an ingress sends a path to: as documented for nginx, in Kubernetes, in tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gateway.planes.forward import PATHS
from inference.operations.registry import OPERATIONS
from tests.stack.ingress import reaches_gateway

ROOT = Path(__file__).resolve().parents[2]
OF_GATEWAYS = [
    "/v1/chat/completions",
    "/v1/models",
    "/v1/responses",
    "/v1/filesystem",
    *(path for one in OPERATIONS for path in one.also_at),
    "/ws/live",
    "/ws/engine",
]
OF_CONSOLES = [
    *PATHS,
    *(f"{path}/a/b" for path in PATHS),
    "/",
    "/api/v1/keys",
    "/hub/api/whoami-v2",
    "/internal/fleet",
    "/metrics",
    "/demand",
]


def nginx(path: str) -> bool:
    """Whether docs/operate.md sends it to gateways. Of nginx's locations the first regular
    expression that matches counts, otherwise the longest prefix."""
    text = (ROOT / "docs" / "operate.md").read_text()
    found: list[tuple[str, str, str]] = re.findall(
        r"location (~ )?(\S+) +\{ proxy_pass http://(\w+); \}", text
    )
    patterns = [(pattern, to) for is_regex, pattern, to in found if is_regex]
    prefixes = sorted((len(prefix), prefix, to) for is_regex, prefix, to in found if not is_regex)
    matching = [to for pattern, to in patterns if re.search(pattern, path)]
    matching += [to for _, prefix, to in reversed(prefixes) if path.startswith(prefix)]
    return matching[0] == "gateways"


def kubernetes(path: str) -> bool:
    """Whether the Ingress sends it to gateways. The longest prefix of whole elements counts."""
    manifest = yaml.safe_load((ROOT / "deploy/kubernetes/base/ingress.yaml").read_text())
    (rule,) = manifest["spec"]["rules"]
    services = {
        one["path"].rstrip("/"): one["backend"]["service"]["name"] for one in rule["http"]["paths"]
    }
    longest = max((prefix for prefix in services if f"{path}/".startswith(f"{prefix}/")), key=len)
    return bool(services[longest] == "gateways")


@pytest.mark.parametrize("ingress", [nginx, kubernetes, reaches_gateway])
def test_no_file_passes_through_a_gateway(ingress: Callable[[str], bool]) -> None:
    reached = [path for path in OF_GATEWAYS + OF_CONSOLES if ingress(path)]
    assert reached == OF_GATEWAYS


def test_engines_elsewhere_reach_gateways_through_nginx() -> None:
    assert nginx("/engine/adapters/a") and reaches_gateway("/engine/adapters/a")
