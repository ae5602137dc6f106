"""Stored conversations, through a whole gateway and a synthetic engine, as OpenAI's SDK uses
them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError

from inference.gateway.stored import conversations as stored_conversations
from inference.gateway.stored import responses as stored_responses
from inference.operations.responses.items import split
from tests.inference.gateway.operations.test_stored_responses import sdk
from tests.inference.operations.examples import SAID, responses
from tests.inference.rig import Rig, rig
from tests.inference.samples import MODEL

PATH = "/v1/conversations"
UNKNOWN = "conv_" + "0" * 32
ITEM: dict[str, Any] = {"type": "message", "role": "user", "content": "Hello"}
CALLED = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.gateway.keys.keeping.add("acme")
        yield made


@pytest.fixture
async def client(stack: Rig) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(stack) as made:
        yield made


async def said(client: AsyncOpenAI, id: str) -> list[str]:
    """The texts of its items, oldest first."""
    items = [item async for item in client.conversations.items.list(id, order="asc", limit=2)]
    return [part["text"] for item in items for part in item.to_dict().get("content", [])]  # type: ignore[attr-defined]


async def test_one_is_made_renamed_and_deleted(stack: Rig, client: AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"a": "b"})
    assert (await client.conversations.retrieve(made.id)) == made
    assert made.metadata == {"a": "b"} and made.id.startswith("conv_")
    changed = await client.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"} and changed.created_at == made.created_at
    assert (await client.conversations.delete(made.id)).deleted
    for again in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(NotFoundError) as caught:
            await again(made.id)
        assert caught.value.code == "conversation_not_found"
    assert not stack.gateway.conversations.rows


async def test_items_are_added_listed_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[ITEM])  # type: ignore[list-item]
    items: list[Any] = [CALLED, RESULT, {"role": "assistant", "content": "It is noon."}]
    added = await client.conversations.items.create(made.id, items=items)
    assert [item.type for item in added.data] == [
        "function_call",
        "function_call_output",
        "message",
    ]
    assert added.first_id == added.data[0].id
    listed = [item async for item in client.conversations.items.list(made.id)]
    assert listed[:3] == [*reversed(added.data)] and len({item.id for item in listed}) == 4
    assert await said(client, made.id) == ["Hello", "It is noon."]
    one = added.data[2]
    assert (
        one.id and await client.conversations.items.retrieve(one.id, conversation_id=made.id) == one
    )
    left = await client.conversations.items.delete(one.id, conversation_id=made.id)
    assert left == made
    assert await said(client, made.id) == ["Hello"]
    for again in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(NotFoundError, match="item"):
            await again(one.id, conversation_id=made.id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_object", [False, True])
async def test_responses_continue_a_conversation_and_are_added(
    stack: Rig, client: AsyncOpenAI, stream: bool, as_object: bool
) -> None:
    made = await client.conversations.create(items=[ITEM])  # type: ignore[list-item]
    given: Any = {"id": made.id} if as_object else made.id
    tokens = []
    for text in (SAID, "And then?"):
        answer: Any = await client.responses.create(
            model=MODEL.name, input=text, conversation=given, stream=stream
        )
        if stream:
            *_, ended = [event async for event in answer]
            answer = ended.response
        assert answer.conversation.id == made.id and answer.to_dict()["store"]
        tokens.append(answer.usage.input_tokens)
    assert tokens[0] < tokens[1]
    texts = await said(client, made.id)
    assert [texts[i] for i in (0, 1, 3)] == ["Hello", SAID, "And then?"] and len(texts) == 5
    asked: list[Any] = [{"role": "user", "content": text} for text in texts]
    asked[2]["role"] = "assistant"
    whole = await client.responses.create(model=MODEL.name, input=asked[:4], store=False)
    assert whole.usage is not None and whole.usage.input_tokens == tokens[1]
    assert whole.output_text == texts[4] and "conversation" not in whole.to_dict()


async def test_a_change_is_repeated_where_another_came_before(
    stack: Rig, client: AsyncOpenAI
) -> None:
    made = await client.conversations.create()
    ((key, (record, _)),) = stack.gateway.conversations.rows.items()

    def race() -> None:
        other = json.loads(record)
        other["items"].append({"id": "msg_1", "role": "user", "content": "First"})
        left = len(stack.gateway.conversations.raced)
        changed = json.dumps(other).encode(), b"another %d" % left
        stack.gateway.conversations.rows[key] = changed

    stack.gateway.conversations.raced = [race]
    await client.conversations.items.create(made.id, items=[ITEM])  # type: ignore[list-item]
    assert await said(client, made.id) == ["First", "Hello"]
    stack.gateway.conversations.raced = [race] * stored_conversations.TRIES
    async with stack.gateway.client() as one:
        answer = await one.post(f"{PATH}/{made.id}/items", json={"items": [ITEM]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_overloaded")


async def test_what_is_added_twice_is_there_once(stack: Rig, client: AsyncOpenAI) -> None:
    """As when another gateway continues an answer."""
    made = await client.conversations.create()
    answer = await client.responses.create(model=MODEL.name, input=SAID, conversation=made.id)
    before = stack.gateway.conversations.rows.copy()
    (one,) = [json.loads(record) for record, _ in before.values()]
    conversation = stored_conversations.ConversationBody(0, {}, [])
    items = split(json.dumps(one["items"])[1:-1].encode())
    assert len(items) == 2 and answer.id.removeprefix("resp_") in one["items"][0]["id"]
    assert conversation.with_items(items).with_items(items).items == items


async def test_it_can_be_deleted_meanwhile(stack: Rig, client: AsyncOpenAI) -> None:
    """The answer says that it was not added."""
    made = await client.conversations.create()
    rows = stack.gateway.conversations.rows
    stack.gateway.conversations.raced = [rows.clear]
    answer = await client.responses.create(model=MODEL.name, input=SAID, conversation=made.id)
    assert answer.output_text and answer.conversation is None and answer.to_dict()["store"]
    assert not rows


async def test_it_is_bounded(
    stack: Rig, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await client.conversations.create()
    with pytest.raises(BadRequestError, match="20"):
        await client.conversations.items.create(made.id, items=[ITEM] * 21)  # type: ignore[list-item]
    monkeypatch.setattr(stored_conversations, "MAX_ITEMS", 2)
    await client.conversations.items.create(made.id, items=[ITEM] * 2)  # type: ignore[list-item]
    with pytest.raises(BadRequestError, match="3 items"):
        await client.conversations.items.create(made.id, items=[ITEM])  # type: ignore[list-item]
    answer = await client.responses.create(model=MODEL.name, input=SAID, conversation=made.id)
    assert answer.conversation is None, "there is no room for it"
    monkeypatch.setattr(stored_conversations, "MAX_BYTES", 100)
    async with stack.gateway.client() as one:
        large = await one.post(PATH, json={"items": [ITEM]})
    assert large.status_code == 413
    stack.gateway.limits.full = True
    with pytest.raises(RateLimitError):
        await client.conversations.create()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": False}, "store"),
        ({"background": True}, "conversation"),
        ({"previous_response_id": "resp_" + "0" * 32}, "previous_response_id"),
        ({"conversation": "conv_1"}, None),
        ({"conversation": 7}, "conversation"),
        ({"conversation": {"name": "x"}}, "conversation"),
    ],
    ids=str,
)
async def test_what_does_not_go_with_it(
    stack: Rig, fields: dict[str, Any], param: str | None
) -> None:
    body = responses(**({"conversation": UNKNOWN} | fields))
    async with stack.gateway.client() as one:
        answer = await one.post("/v1/responses", json=body)
    assert answer.status_code == (404 if param is None else 400), answer.text
    found = answer.json()["error"]
    assert param is None or found["param"].startswith(param)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "", None, 405),
        ("PUT", f"/{UNKNOWN}", None, 405),
        ("POST", "", {"items": [{"type": "web_search_call"}]}, 400),
        ("POST", "", {"items": [{"type": "item_reference", "id": "msg_1"}]}, 400),
        ("POST", "", {"items": ["x"]}, 400),
        ("POST", "", {"metadata": {"a": 1}}, 400),
        ("POST", "", {"metadata": {str(n): "" for n in range(17)}}, 400),
        ("POST", f"/{UNKNOWN}", {}, 400),
        ("POST", f"/{UNKNOWN}", {"metadata": {}}, 404),
        ("POST", f"/{UNKNOWN}/items", {"items": [ITEM]}, 404),
        ("GET", f"/{UNKNOWN}/items?limit=0", None, 404),
        ("GET", f"/{UNKNOWN}/items/msg_1", None, 404),
        ("GET", f"/{UNKNOWN}/things", None, 404),
        ("GET", f"/{UNKNOWN}/items/msg_1/x", None, 404),
        ("GET", "/", None, 404),
    ],
)
async def test_what_is_refused(stack: Rig, method: str, path: str, body: Any, status: int) -> None:
    async with stack.gateway.client() as one:
        answer = await one.request(method, f"{PATH}{path}", json=body)
    assert answer.status_code == status, answer.text
    assert not stack.gateway.conversations.rows


async def test_a_tenant_without_storage_is_told_how_to_turn_it_on(stack: Rig) -> None:
    async with sdk(stack, "globex") as one:
        with pytest.raises(BadRequestError, match="Stored prompts"):
            await one.conversations.create()
        with pytest.raises(BadRequestError, match="storage, which is off"):
            await one.responses.create(model=MODEL.name, input=SAID, conversation=UNKNOWN)
    assert not stack.gateway.conversations.rows


async def test_nothing_is_generated_without_room_to_store_it(
    stack: Rig, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await client.conversations.create()
    body = responses(conversation=made.id)
    stack.gateway.hub.contents.space.take(4, 16 << 20)
    async with stack.gateway.client() as one:
        assert (await one.post("/v1/responses", json=body)).status_code == 503
        monkeypatch.setattr(stored_responses, "MAX_BYTES", 10)
        assert (await one.post("/v1/responses", json=body)).status_code == 413
    assert not stack.gateway.ledger.entries


async def test_another_tenants_object_is_not_found(stack: Rig, client: AsyncOpenAI) -> None:
    stack.gateway.keys.keeping.add("globex")
    made = await client.conversations.create(items=[ITEM])  # type: ignore[list-item]
    async with sdk(stack, "globex") as other:
        for ask in (
            other.conversations.retrieve,
            other.conversations.delete,
            other.conversations.items.list,
        ):
            with pytest.raises(NotFoundError):
                await ask(made.id)
        with pytest.raises(NotFoundError):
            await other.conversations.items.create(made.id, items=[ITEM])  # type: ignore[list-item]
        with pytest.raises(NotFoundError):
            await other.responses.create(model=MODEL.name, input=SAID, conversation=made.id)
    assert await said(client, made.id) == ["Hello"]
