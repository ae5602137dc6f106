"""Nothing of one tenant reaches another, whatever is requested: adapters, the prefix cache,
idempotency keys, stored answers and kept content."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec

from inference.gateway.measuring.content import KeptContent
from inference.operations.operation import Operation
from tests.inference.gateway.operations.every import GENERATING, WITH_ECHO, ask, code_of, each
from tests.inference.operations.examples import EXAMPLES
from tests.inference.rig import Rig
from tests.inference.samples import MODEL

LONG = "Tell me about the sea, the wind and the weather. " * 20
"""Longer than several blocks of the prefix cache."""
PRETENCES: dict[str, Any] = {
    "cache_salt": "salt-acme",
    "priority": -100,
    "tenant": "acme",
    "tenant_id": len("acme"),
    "request_id": "acme",
}
"""Fields with which a client could try to pass for another tenant, or to choose a cache."""


@each(WITH_ECHO)
async def test_adapters_are_their_tenants_own(stack: Rig, operation: Operation) -> None:
    """Another tenant's adapter cannot be found by any name; adapters of the same name are
    separate."""
    mine, theirs = stack.adapter("acme", "support", 1), stack.adapter("globex", "support", 2)
    stack.adapter("acme", "secret", 3)
    body = EXAMPLES[operation.name].body
    answers = [await ask(stack, operation, body("support"), key) for key in ("acme", "globex")]
    assert [answer.status_code for answer in answers] == [200, 200]
    loaded = {adapter.ref.name for adapter in stack.engine._loaded.values()}  # type: ignore[attr-defined]
    assert loaded == ({mine.name, theirs.name} if operation.uses_adapter else set())
    nothing = await ask(stack, operation, body("nothing"), "globex")
    for name in ("secret", "acme/secret", mine.name, mine.digest):
        foreign = await ask(stack, operation, body(name), "globex")
        assert code_of(foreign, operation) == (404, "model_not_found")
        assert _nameless(foreign, name) == _nameless(nothing, "nothing")


def _nameless(answer: httpx.Response, name: str) -> str:
    id = answer.headers["x-request-id"]
    return answer.text.replace(name, "").replace(id, "")


@each(WITH_ECHO)
async def test_a_prompt_of_one_tenant_is_no_cache_hit_for_another(
    stack: Rig, operation: Operation
) -> None:
    """Whatever the request claims to be."""
    body = EXAMPLES[operation.name].body(text=LONG)
    for key, asked in (("acme", body), ("acme", body), ("globex", PRETENCES | body)):
        assert (await ask(stack, operation, asked, key)).status_code == 200
    first, again, theirs = await stack.gateway.ledger.settled(3)
    assert first.usage.cached_tokens == theirs.usage.cached_tokens == 0
    assert theirs.account.tenant_id == len("globex")
    assert bool(again.usage.cached_tokens) == (operation in GENERATING)


@each(WITH_ECHO)
async def test_an_idempotency_key_is_its_tenants_own(stack: Rig, operation: Operation) -> None:
    key = {"Idempotency-Key": "order 17"}
    mine, theirs = [await ask(stack, operation, key=who, headers=key) for who in ("acme", "globex")]
    assert (mine.status_code, theirs.status_code) == (200, 200)
    assert "idempotent-replayed" not in theirs.headers
    entries = await stack.gateway.ledger.settled(2)
    assert {entry.account.tenant_id for entry in entries} == {len("acme"), len("globex")}
    assert len({mine.headers["x-request-id"], theirs.headers["x-request-id"]}) == 2


@each(WITH_ECHO)
async def test_a_stored_answer_is_its_tenants_own(stack: Rig, operation: Operation) -> None:
    stack.gateway.keys.keeping |= {"acme", "globex"}
    answer = await ask(stack, operation)
    known = {answer.headers["x-request-id"], answer.json().get("id", "resp_1")}
    stored = dict(stack.gateway.stored.rows)
    assert bool(stored) == (operation.name == "responses")
    async with stack.gateway.client("globex") as globex:
        for id in known:
            path = f"/v1/responses/{id}"
            answers = [await globex.request(method, path) for method in ("GET", "DELETE")]
            answers += [await globex.get(f"{path}/input_items")]
            answers += [await globex.post(f"{path}/cancel")]
            assert {one.status_code for one in answers} == {404}
            goes_on = EXAMPLES["responses"].body(previous_response_id=id)
            refused = await globex.post("/v1/responses", json=goes_on)
            assert refused.json()["error"]["param"] == "previous_response_id"
    assert stack.gateway.stored.rows == stored


@each(WITH_ECHO)
async def test_content_is_kept_only_of_tenants_that_want_it(
    stack: Rig, operation: Operation
) -> None:
    stack.gateway.keys.keeping.add("acme")
    answers = {key: await ask(stack, operation, key=key) for key in ("acme", "globex")}
    assert {answer.status_code for answer in answers.values()} == {200}
    contents = stack.gateway.hub.contents
    (taken,) = contents.take(10, 1 << 20)
    kept = msgspec.json.decode(taken.text, type=KeptContent)
    assert taken.tenant_id == len("acme")
    assert f"req_{taken.id}" == answers["acme"].headers["x-request-id"]
    asked = EXAMPLES[operation.name].body(MODEL.name)
    assert (kept.operation, json.loads(kept.request)) == (operation.name, asked)
    assert (kept.text or kept.response) and not kept.cut and contents.space.total == 0
