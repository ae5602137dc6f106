"""The isolation check on real vLLM: its requests, its result, and where that is shown."""

from __future__ import annotations

import httpx
import pytest

from demo import MODEL_NAME
from tenants.isolation import TENANTS
from tests.stack.running import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.stack]


def test_tenants_on_real_vllm_are_isolated(stack: Stack, operator: httpx.Client) -> None:
    run = stack.manage("check_isolation")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{MODEL_NAME} on engine-1: isolated" in run.stdout
    page = operator.get("/operate/").text
    assert '<span class="pill ok">Isolated</span>' in page and "on engine-1" in page
    slugs = {tenant["slug"] for tenant in operator.get("/api/v1/tenants").json()["results"]}
    assert slugs and slugs.isdisjoint(TENANTS)
    keys = operator.get("/api/v1/keys", params={"tenant": TENANTS[0]}).json()
    assert keys["results"] == []
    assert stack.manage("reconcile").returncode == 0
