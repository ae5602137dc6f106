"""A console answers `/v1` by itself, to clients of an ingress that sends files straight to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client

from gateway.planes.forward import PATHS
from tenants.api.openai.urls import urlpatterns
from tenants.models import Scope, Tenant
from tests.tenants.making import make_key, make_tenant

ROOT = Path(__file__).resolve().parents[3]
REQUESTS = [
    ("GET", "/v1/batches", 200),
    ("GET", "/v1/files", 200),
    ("GET", "/v1/evals", 200),
    ("POST", "/v1/feedback", 400),
    ("GET", "/v1/fine_tuning/jobs", 200),
    ("POST", "/v1/load_lora_adapter", 400),
    ("GET", "/v1/messages/batches", 200),
    ("GET", "/v1/organization/usage/completions?start_time=1700000000", 200),
    ("POST", "/v1/unload_lora_adapter", 400),
    ("POST", "/v1/uploads", 400),
    ("GET", "/v1/usage/receipts", 200),
]
PREFLIGHT = """
import asyncio, json
import django
import httpx
django.setup()
from gateway.planes.control import ControlParts, application

async def ask(path):
    asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}
    transport = httpx.ASGITransport(application(ControlParts.configured()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.options(path, headers=asked)
    return answer.status_code, answer.headers.get("access-control-allow-origin")

print(json.dumps([asyncio.run(ask(path)) for path in ("/v1/files", "/api/v1/keys")]))
"""


@pytest.fixture
def tenant(db: None) -> Tenant:
    return make_tenant("acme")


def test_gateways_forward_all_that_consoles_answer() -> None:
    answered = [f"/v1/{one.pattern}" for one in urlpatterns[:-1]]
    assert all(any(path.startswith(one) for one in PATHS) for path in answered)
    assert all(any(path.startswith(one) for path in answered) for one in PATHS)
    assert str(urlpatterns[-1].pattern) == "", "everything else is not found"


def test_each_path_is_tried() -> None:
    assert all(any(path.startswith(one) for _, path, _ in REQUESTS) for one in PATHS)


@pytest.mark.parametrize(("method", "path", "status"), REQUESTS)
def test_a_key_is_enough(tenant: Tenant, method: str, path: str, status: int) -> None:
    client = Client(enforce_csrf_checks=True)
    _, key = make_key(tenant, *Scope.values)
    assert client.generic(method, path).status_code == 401
    answer = client.generic(method, path, headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == status, answer.content


def test_pages_of_other_origins_may_call_it_where_configured() -> None:
    plane = {
        "PYTHONPATH": f"platform{os.pathsep}.",
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
        "LORIKEET_CORS_ORIGINS": "https://app.example.com",
    }
    done = subprocess.run(
        [sys.executable, "-c", PREFLIGHT],
        cwd=ROOT,
        env=os.environ | plane,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (status, origin), (_, of_pages) = json.loads(done.stdout.splitlines()[-1])
    assert (status, origin, of_pages) == (204, "https://app.example.com", None)
