"""The secrets that are printed for Kubernetes."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gateway.process_secrets import ALL, SECRETS_OF


def printed(*arguments: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("kubernetes_secrets", *arguments, stdout=out)
    found: list[dict[str, Any]] = json.loads(out.getvalue())["items"]
    return found


def test_each_process_is_given_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL:
        monkeypatch.setenv(name, f"the {name}")
    monkeypatch.delenv("LORIKEET_REDIS_URL")
    found = {one["metadata"]["name"]: one["stringData"] for one in printed()}
    assert found.pop("migrate") == {"LORIKEET_DATABASE_URL": "the LORIKEET_DATABASE_URL"}
    assert {process: set(values) for process, values in found.items()} == {
        process: SECRETS_OF[process] - {"LORIKEET_REDIS_URL"}
        for process in ("gateway", "console", "worker", "trainer", "scaledown")
    }


def test_a_namespace_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORIKEET_METRICS_TOKEN", "x")
    assert {one["metadata"]["namespace"] for one in printed("--namespace", "other")} == {"other"}


def test_without_a_token_nothing_could_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LORIKEET_METRICS_TOKEN", raising=False)
    with pytest.raises(CommandError, match="LORIKEET_METRICS_TOKEN"):
        printed()
