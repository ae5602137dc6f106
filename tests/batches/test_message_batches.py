"""`/v1/messages/batches` as Anthropic's SDK knows it. Running them is tested in `tests.stack`."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types.messages as sdk
import pytest
from pydantic import TypeAdapter
from pytest_django.fixtures import Settings

from inference.gateway.lines.seals import holds
from tenants.batch_states import Status
from tenants.batches import reading, writing
from tenants.files import blobs
from tenants.models import BaseModel, Batch, StoredFile, Tenant
from tests.batches.conftest import Ask
from tests.tenants.making import make_key, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "messages/batches"
RESULT: TypeAdapter[Any] = TypeAdapter(sdk.MessageBatchResult)


def requests(*ids: str, **params: Any) -> dict[str, Any]:
    body = {"model": "base", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi\n"}]}
    return {"requests": [{"custom_id": id, "params": body | params} for id in ids]}


def made(ask: Ask, *ids: str) -> Batch:
    answer = ask("POST", PATH, json=requests(*ids))
    assert answer.status_code == 200, answer.text
    return Batch.objects.get(pk=answer.json()["id"])


def results(ask: Ask, batch: Batch) -> dict[str, Any]:
    """Each result by its request, as the SDK reads it."""
    answer = ask("GET", f"{PATH}/{batch.pk}/results")
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return {one["custom_id"]: RESULT.validate_python(one["result"]) for one in lines}


def write(batch: Batch, ending: Status, answered: dict[int, tuple[int, bytes]]) -> None:
    """End the batch with these answers by line."""
    batch.advance(Status.IN_PROGRESS)
    for number, (status, body) in answered.items():
        batch.lines.create(number=number, status_code=status, body=body)
    ok = sum(status == 200 for status, _ in answered.values())
    batch.advance(Status.FINALIZING, ending=ending, completed=ok, failed=len(answered) - ok)
    with writing.files_of(batch) as files:
        for file in files.values():
            file.save(force_insert=True)
        assert batch.advance(ending, **files)


def test_it_is_a_batch_of_lines(ask: Ask, settings: Settings) -> None:
    shown = ask("POST", PATH, json=requests("a", "b")).json()
    whole = sdk.MessageBatch.model_validate(shown)
    assert (whole.processing_status, whole.request_counts.processing) == ("in_progress", 2)
    batch = Batch.objects.get()
    assert holds(settings.INTERNAL_TOKEN, batch.opening(), batch.seal)
    with blobs.open(batch.input_file_id) as file:
        found = [reading.request_of(one.text) for one in reading.lines(file, 10_000)]
    assert [one.custom_id for one in found] == ["a", "b"]
    assert {one.url for one in found} == {"/v1/messages"}
    assert json.loads(bytes(found[0].body)) == requests("a")["requests"][0]["params"]
    assert ask("GET", f"{PATH}/{batch.pk}").json() == shown
    assert ask("GET", f"batches/{batch.pk}").json()["request_counts"]["total"] == 2


def test_pages_go_forward_and_back(ask: Ask, tenant: Tenant) -> None:
    ids = [made(ask, "a").pk for _ in range(3)][::-1]
    first = ask("GET", f"{PATH}?limit=2").json()
    assert [one["id"] for one in first["data"]] == ids[:2]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[0], ids[1])
    rest = ask("GET", f"{PATH}?after_id={ids[1]}").json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (ids[2:], False)
    back = ask("GET", f"{PATH}?before_id={ids[2]}&limit=2").json()
    assert [one["id"] for one in back["data"]] == ids[:2]
    empty = ask("GET", PATH, secret=make_key(make_tenant("other"))[1]).json()
    assert empty == {"data": [], "first_id": None, "last_id": None, "has_more": False}


def test_results_are_what_became_of_each_request(ask: Ask) -> None:
    message: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "base", "content": [],
        "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    error = {"type": "error", "request_id": None, "error": {"type": "api_error", "message": "No."}}
    batch = made(ask, "a", "b", "c")
    assert ask("GET", f"{PATH}/{batch.pk}/results").status_code == 400
    answered = {1: (200, json.dumps(message).encode()), 2: (500, json.dumps(error).encode())}
    write(batch, Status.EXPIRED, answered)
    found = results(ask, batch)
    assert {id: one.type for id, one in found.items()} == {
        "a": "succeeded", "b": "errored", "c": "expired",
    }  # fmt: skip
    assert (found["a"].message.id, found["b"].error.error.message) == ("msg_1", "No.")
    shown = sdk.MessageBatch.model_validate(ask("GET", f"{PATH}/{batch.pk}").json())
    counts = shown.request_counts
    assert (shown.processing_status, counts.succeeded, counts.errored, counts.expired) == (
        "ended", 1, 1, 1,
    )  # fmt: skip
    assert str(shown.results_url).endswith(f"/v1/messages/batches/{batch.pk}/results")


def test_one_is_cancelled_and_deleted_with_its_files(ask: Ask) -> None:
    batch = made(ask, "a")
    assert ask("DELETE", f"{PATH}/{batch.pk}").status_code == 400
    batch.advance(Status.IN_PROGRESS)
    assert ask("POST", f"{PATH}/{batch.pk}/cancel").json()["processing_status"] == "canceling"
    batch.refresh_from_db()
    batch.advance(Status.FINALIZING)
    with writing.files_of(batch) as files:
        for file in files.values():
            file.save(force_insert=True)
        batch.advance(Status.CANCELLED, **files)
    assert results(ask, batch)["a"].type == "canceled"
    deleted = ask("DELETE", f"{PATH}/{batch.pk}").json()
    assert deleted == {"id": batch.pk, "type": "message_batch_deleted"}
    assert not Batch.objects.exists() and not StoredFile.objects.exists()
    assert ask("GET", f"{PATH}/{batch.pk}").status_code == 404


def test_if_a_request_is_invalid_each_is_told_why(ask: Ask, base: BaseModel) -> None:
    batch = made(ask, "a", "b")
    batch.advance(Status.FAILED, errors=[{"line": 2, "message": "`max_tokens` is missing."}])
    found = results(ask, batch)
    assert found["b"].error.error.message == "`max_tokens` is missing."
    assert "request 2 is invalid: `max_tokens` is missing." in found["a"].error.error.message
    counts = ask("GET", f"{PATH}/{batch.pk}").json()["request_counts"]
    assert counts["errored"] == 2


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"requests": []}', b'{"requests": [{"custom_id": 1, "params": {}}]}']
)
def test_bodies_without_requests_are_refused_in_anthropics_shape(ask: Ask, body: bytes) -> None:
    answer = ask("POST", PATH, content=body)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not StoredFile.objects.exists()


def test_a_refused_batch_leaves_no_file(ask: Ask, settings: Settings) -> None:
    settings.TENANT_BATCHES = 1
    made(ask, "a")
    answer = ask("POST", PATH, json=requests("b"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
    assert StoredFile.objects.count() == 1


def test_other_tenants_and_other_batches_are_not_found(ask: Ask, tenant: Tenant) -> None:
    batch = made(ask, "a")
    stranger = make_key(make_tenant("stranger"))[1]
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/results")):
        assert ask(method, f"{PATH}/{batch.pk}{rest}", secret=stranger).status_code == 404
    Batch.objects.update(operation="chat")
    assert ask("GET", f"{PATH}/{batch.pk}").status_code == 404
