"""`/v1/batches`: batches are created, listed and cancelled by permitted keys, or refused."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from procrastinate.contrib.django.models import ProcrastinateJob
from pytest_django.fixtures import Settings

from inference.gateway.lines.seals import holds
from inference.operations.registry import OPERATIONS
from tenants.batch_states import Status
from tenants.models import Batch, StoredFile, Tenant
from tests.batches.conftest import Ask
from tests.tenants.making import make_key, make_tenant

CHAT = "/v1/chat/completions"


@pytest.fixture
def file(tenant: Tenant) -> StoredFile:
    """A row without content, which is enough for tests that don't read it."""
    return tenant.files.create(purpose="batch", filename="a.jsonl", size_bytes=1)


def wanted(file: StoredFile, **changed: Any) -> dict[str, Any]:
    body = {"input_file_id": file.pk, "endpoint": CHAT, "completion_window": "24h"}
    return {**body, **changed}


def test_a_batch_is_made_listed_and_cancelled(
    ask: Ask, file: StoredFile, settings: Settings
) -> None:
    made = ask("POST", "batches", json=wanted(file, metadata={"for": "tea"})).json()
    openai.types.Batch.model_validate(made)
    assert (made["status"], made["metadata"]) == ("validating", {"for": "tea"})
    assert made["usage"]["total_tokens"] == made["request_counts"]["total"] == 0
    assert made["expires_at"] - made["created_at"] == 86_400
    assert ask("GET", f"batches/{made['id']}").json() == made
    assert ask("GET", "batches").json()["data"] == [made]
    batch = Batch.objects.get()
    assert holds(settings.INTERNAL_TOKEN, batch.opening(), batch.seal)
    (job,) = ProcrastinateJob.objects.all()
    assert (job.task_name, job.args) == ("read_batch", {"batch_id": batch.pk})
    assert ask("POST", f"batches/{made['id']}/cancel").json()["status"] == "cancelled"
    again = ask("POST", f"batches/{made['id']}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "batch_ended")


def test_one_that_runs_is_cancelled_when_its_worker_hears_of_it(ask: Ask, file: StoredFile) -> None:
    id = ask("POST", "batches", json=wanted(file)).json()["id"]
    Batch.objects.get().advance(Status.IN_PROGRESS, total=3)
    for _ in range(2):
        assert ask("POST", f"batches/{id}/cancel").json()["status"] == "cancelling"


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"endpoint": "/v1/models"}, "endpoint"),
        *(({"endpoint": one.path}, "endpoint") for one in OPERATIONS if not one.in_batches),
        ({"completion_window": "1h"}, None),
        ({"input_file_id": "file-" + "0" * 24}, "input_file_id"),
        ({"input_file_id": "\0"}, "input_file_id"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}},
         "output_expires_after.seconds"),
        ({"colour": "red"}, None),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(
    ask: Ask, file: StoredFile, changed: dict[str, Any], param: str | None
) -> None:
    answer = ask("POST", "batches", json=wanted(file, **changed))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not Batch.objects.exists()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 60_000])
def test_invalid_bodies_are_refused(ask: Ask, body: bytes) -> None:
    assert ask("POST", "batches", content=body).status_code == 400
    assert ask("POST", "batches", content=b" " * 70_000).status_code == 413


def test_files_of_another_purpose_are_refused(ask: Ask, tenant: Tenant) -> None:
    other = tenant.files.create(purpose="user_data", filename="a", size_bytes=1)
    assert "user_data" in ask("POST", "batches", json=wanted(other)).json()["error"]["message"]


def test_the_number_of_open_batches_is_bounded(
    ask: Ask, file: StoredFile, settings: Settings
) -> None:
    settings.TENANT_BATCHES = 1
    first = ask("POST", "batches", json=wanted(file)).json()
    refused = ask("POST", "batches", json=wanted(file))
    assert refused.status_code == 429 and refused.headers["retry-after"]
    ask("POST", f"batches/{first['id']}/cancel")
    assert ask("POST", "batches", json=wanted(file)).status_code == 200


def test_the_same_request_again_is_the_same_batch(ask: Ask, file: StoredFile) -> None:
    def made(name: str, **changed: Any) -> Any:
        headers = {"Idempotency-Key": name}
        return ask("POST", "batches", json=wanted(file, **changed), headers=headers)

    first = made("a").json()
    assert made("a").json() == first
    assert made("b").json()["id"] != first["id"]
    other = made("a", metadata={"x": "y"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert made("").status_code == 400
    assert (Batch.objects.count(), ProcrastinateJob.objects.count()) == (2, 2)


@pytest.mark.parametrize("endpoint", [one.path for one in OPERATIONS if one.in_batches])
def test_another_tenants_batch_is_not_found(ask: Ask, file: StoredFile, endpoint: str) -> None:
    made = ask("POST", "batches", json=wanted(file, endpoint=endpoint)).json()
    _, stranger = make_key(make_tenant())
    for method, path in (("GET", ""), ("POST", "/cancel")):
        assert ask(method, f"batches/{made['id']}{path}", secret=stranger).status_code == 404
    assert ask("GET", "batches", secret=stranger).json()["data"] == []
    refused = ask("POST", "batches", json=wanted(file, endpoint=endpoint), secret=stranger)
    assert refused.json()["error"]["param"] == "input_file_id"
    assert Batch.objects.get().status == Status.VALIDATING


@pytest.mark.parametrize("scope", ["usage:read", "adapters:write", "admin"])
def test_which_keys_may(ask: Ask, tenant: Tenant, file: StoredFile, scope: str) -> None:
    _, other = make_key(tenant, scope)
    for method, path in (("GET", "batches"), ("POST", "batches"), ("GET", "batches/x")):
        assert ask(method, path, secret=other).status_code == 403
        assert ask(method, path, secret="").status_code == 401
