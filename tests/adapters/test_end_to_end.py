"""Uploads with a tenant's key, end to end: a valid adapter becomes ready, a bad one is rejected
with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.storage import InMemoryStorage

from inference.content import CONFIG, WEIGHTS
from tenants.models import ApiKey, BaseModel, Scope, Tenant
from tests.adapters.checks.builder import lora
from tests.adapters.checks.test_checks import BAD_WEIGHTS
from tests.adapters.conftest import FakeGateway
from tests.adapters.uploads.uploading import ask, files, sound, upload
from tests.adapters.working import run_worker

pytestmark = pytest.mark.usefixtures("worker", "base_model", "object_storage", "gateway")


def header(tenant: Tenant, *scopes: str) -> dict[str, str]:
    _, secret = ApiKey.objects.issue(tenant, name="test", scopes=scopes)
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def key(tenant: Tenant) -> dict[str, str]:
    return header(tenant, Scope.WRITE_ADAPTERS)


def version_of(key: dict[str, str], number: int = 1) -> dict[str, Any]:
    status, body = ask("GET", f"/api/v1/adapters/pirate/versions/{number}", headers=key)
    assert status == 200
    return body


def test_from_upload_to_live(key: dict[str, str], gateway: FakeGateway) -> None:
    status, body = upload(sound(), headers=key)
    assert (status, body["number"], body["state"]) == (201, 1, "validating")
    assert upload(sound(), headers=key) == (200, body)
    run_worker()
    ready = version_of(key)
    assert (ready["state"], ready["aliases"]) == ("ready", ["live"])
    assert ready["report"]["probe"]["max_logprob_delta"] == 1.5
    assert gateway.asked[0][2]["name"] == f"acme/pirate@{ready['digest']}"


def test_bad_adapter_is_told_why(key: dict[str, str], gateway: FakeGateway) -> None:
    weights = BAD_WEIGHTS["rank other than r"][0]
    upload(files((CONFIG, sound()[0][1][1]), (WEIGHTS, weights)), headers=key)
    run_worker()
    rejected = version_of(key)
    assert rejected["state"] == "rejected"
    (finding,) = rejected["report"]["findings"]
    assert finding["code"] == "rank_mismatch"
    assert "[8, 16]" in finding["message"]
    assert "[4, 16]" in finding["message"]
    assert not gateway.asked


def test_refusal_is_a_problem_document(key: dict[str, str]) -> None:
    status, body = upload(files(("model.bin", b"")), headers=key)
    assert body == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": body["detail"],
        "code": "pickle_refused",
    }
    assert status == 400
    assert "safetensors" in body["detail"]


def test_who_may_upload(tenant: Tenant) -> None:
    assert upload(sound(), headers={})[0] == 401
    assert upload(sound(), headers={"Authorization": "Bearer lk_unknown"})[0] == 401
    for scope in Scope:
        status, _ = upload(sound(), headers=header(tenant, scope))
        allowed = scope in (Scope.WRITE_ADAPTERS, Scope.ADMIN)
        assert (status < 300) == allowed, scope


def test_same_content_of_two_tenants(
    key: dict[str, str], base_model: BaseModel, object_storage: InMemoryStorage
) -> None:
    """Each has its own version, files and LoRA name; neither sees the other's."""
    other = header(Tenant.objects.create(slug="umbrella", name="Umbrella"), Scope.WRITE_ADAPTERS)
    assert upload(sound(), headers=key)[0] == 201
    assert ask("GET", "/api/v1/adapters/pirate/versions/1", headers=other)[0] == 404
    assert upload(sound(), headers=other)[0] == 201
    assert sorted(object_storage.listdir("")[0]) == ["acme", "umbrella"]


def test_large_adapter_goes_through(key: dict[str, str]) -> None:
    """It is larger than any buffer that Django or a handler keeps in memory."""
    weights = lora()
    weights.metadata = {"padding": "x" * (5 << 20)}
    status, body = upload(
        files((CONFIG, sound()[0][1][1]), (WEIGHTS, weights.bytes())), headers=key
    )
    assert (status, body["size_bytes"] > 5 << 20) == (201, True)
    run_worker()
    assert version_of(key)["state"] == "ready"
