"""The Compose file runs every process, each with its own secrets alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.process_secrets import ALL, SECRETS_OF

FILE = Path(__file__).resolve().parents[2] / "deploy" / "compose.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
SECRETS = {**SECRETS_OF, "migrate": {"LORIKEET_DATABASE_URL"}}
OURS = ("gateway", "console", "worker", "engine", "migrate")
NEEDED = {
    "LORIKEET_DATABASE_URL", "LORIKEET_SECRET_KEY", "LORIKEET_KEY_PEPPER", "LORIKEET_DISPATCH_KEY",
    "LORIKEET_WORKER_TOKEN", "LORIKEET_INTERNAL_TOKEN", "LORIKEET_RECEIPT_KEY",
    "LORIKEET_CONTENT_KEY", "LORIKEET_ENGINE_CREDENTIAL",
}  # fmt: skip
"""Without these something does not work."""


@pytest.mark.parametrize("name", OURS)
def test_each_process_is_given_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    given = {*service["environment"]} & ALL
    assert given <= SECRETS[name] and SECRETS[name] & NEEDED <= given
    assert service["command"][0] == name


@pytest.mark.parametrize("name", OURS)
def test_none_has_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_only_this_machine_reaches_them() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
