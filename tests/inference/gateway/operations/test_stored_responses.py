"""Stored responses, through a whole gateway and a synthetic engine, as OpenAI's SDK uses them; and
that other tenants cannot read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.responses import Response

from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.gateway.stored import responses as stored_responses
from tests.inference.answers import MemoryResponses
from tests.inference.gateway.fleet.test_takeover import ASKED, began, fleet, gave_up
from tests.inference.gateway.long_answers import STEADY
from tests.inference.gateway.operations.test_responses import events_of
from tests.inference.gateway.operations.test_responses_socket import code, socket, turn
from tests.inference.operations.examples import SAID, responses
from tests.inference.rig import SLOW, Rig, rig, until
from tests.inference.samples import MODEL

PATH = "/v1/responses"
ANSWER = f"{MODEL.name}: {SAID}"
UNKNOWN = "resp_" + "0" * 32


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.gateway.keys.keeping.add("acme")
        yield made


@asynccontextmanager
async def sdk(stack: Rig, key: str = "acme") -> AsyncIterator[AsyncOpenAI]:
    url = f"{stack.gateway.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as made:
        yield made


@pytest.fixture
async def client(stack: Rig) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(stack) as made:
        yield made


def stores(response: Response) -> bool:
    return bool(response.to_dict()["store"])


async def test_a_response_is_stored_read_and_deleted(stack: Rig, client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL.name, input=SAID, metadata={"a": "b"})
    assert stores(made)
    assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
    async with stack.gateway.client() as one:  # checked against the document and the SDK's types
        assert (await one.get(f"{PATH}/{made.id}")).json() == made.to_dict()
        assert (await one.head(f"{PATH}/{made.id}")).content == b""
        listed = (await one.get(f"{PATH}/{made.id}/input_items")).json()
        assert [item["content"][0]["text"] for item in listed["data"]] == [SAID]
        deleted = (await one.delete(f"{PATH}/{made.id}")).json()
    assert deleted == {"id": made.id, "object": "response", "deleted": True}
    for again in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(NotFoundError) as caught:
            await again(made.id)
        assert caught.value.code == "response_not_found"
    assert stack.gateway.stored.rows == {}


async def test_a_stream_is_stored_before_its_last_event(stack: Rig, client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL.name, input=SAID) as stream:
        async for event in stream:
            if event.type in ("response.created", "response.completed"):
                assert stores(event.response)
            if event.type == "response.completed":
                found = await client.responses.retrieve(event.response.id)
    assert found.output_text == ANSWER and found.status == "completed"
    cut = await client.responses.create(model=MODEL.name, input=SAID, max_output_tokens=2)
    assert (await client.responses.retrieve(cut.id)).status == "incomplete"


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_is_stored_unless_wanted(stack: Rig, stream: bool) -> None:
    async def last(key: str, **fields: Any) -> dict[str, Any]:
        async with stack.gateway.client(key) as one:
            answer = await one.post(PATH, json=responses(stream=stream, **fields))
        if not stream:
            return dict(answer.json())
        datas = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return dict(json.loads(datas[-1])["response"])

    assert not (await last("acme", store=False))["store"]
    assert not (await last("globex", store=True))["store"], "its tenant keeps nothing"
    assert stack.gateway.stored.rows == {}
    assert (await last("acme"))["store"], "OpenAI's default"


async def test_a_response_continues_a_stored_one(stack: Rig, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL.name, input=SAID, instructions="Rhyme.")
    tools: Any = [
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
    ]
    second = await client.responses.create(
        model=MODEL.name, input=tools, previous_response_id=first.id
    )
    await client.responses.delete(first.id)
    third = await client.responses.create(
        model=MODEL.name, input="And then?", previous_response_id=second.id, stream=True
    )
    *_, ended = [event async for event in third]
    assert ended.type == "response.completed"
    assert (second.previous_response_id, ended.response.previous_response_id) == (
        first.id, second.id,
    )  # fmt: skip
    asked: list[Any] = [{"role": "user", "content": SAID}, *first.to_dict()["output"], *tools]  # type: ignore[misc]
    asked += [*second.to_dict()["output"], {"role": "user", "content": "And then?"}]  # type: ignore[misc]
    whole = await client.responses.create(model=MODEL.name, input=asked, store=False)
    assert ended.response.output_text == whole.output_text
    assert ended.response.usage is not None and whole.usage is not None
    assert ended.response.usage.input_tokens == whole.usage.input_tokens
    assert ended.response.instructions is None, "they are not carried over"


async def test_what_a_response_would_continue_is_counted(stack: Rig, client: AsyncOpenAI) -> None:
    count = client.responses.input_tokens.count
    first = await client.responses.create(model=MODEL.name, input=SAID)
    item: Any = {"role": "user", "content": SAID}
    conversation = (await client.conversations.create(items=[item])).id
    assert (await count(model=MODEL.name, conversation=conversation)).input_tokens == (
        await count(model=MODEL.name, input=[item])
    ).input_tokens
    continued: Any
    for continued in ({"previous_response_id": first.id}, {"conversation": conversation}):
        counted = await count(model=MODEL.name, input="And then?", **continued)
        made = await client.responses.create(model=MODEL.name, input="And then?", **continued)
        assert made.usage is not None and counted.input_tokens == made.usage.input_tokens
        assert len(stack.gateway.conversations.rows) == 1
    listed = [one async for one in client.conversations.items.list(conversation)]
    assert len(listed) == 3, "a count adds nothing"
    with pytest.raises(BadRequestError) as caught:
        await count(model=MODEL.name, previous_response_id=UNKNOWN)
    assert caught.value.code == "previous_response_not_found"


async def test_items_of_stored_responses_are_referred_to(stack: Rig, client: AsyncOpenAI) -> None:
    """As the Vercel AI SDK does unless `store` is false."""
    first = await client.responses.create(model=MODEL.name, input=SAID)
    item = first.output[0].to_dict()
    reference = {"type": "item_reference", "id": item["id"]}
    before, after = {"role": "user", "content": SAID}, {"role": "user", "content": "And then?"}
    asked: Any = [before, reference, after]
    second = await client.responses.create(model=MODEL.name, input=asked)
    whole: Any = [before, item, after]
    same = await client.responses.create(model=MODEL.name, input=whole, store=False)
    assert second.output_text == same.output_text
    assert second.usage is not None and same.usage is not None
    assert second.usage.input_tokens == same.usage.input_tokens
    stack.gateway.keys.keeping.add("globex")
    of_first = first.id.removeprefix("resp_")
    unknown = [f"msg_{of_first}_1", f"fc_{of_first}_0", f"msg_{'0' * 32}_0", "msg_mine", ""]
    async with stack.gateway.client() as mine, stack.gateway.client("globex") as other:
        refused = [await other.post(PATH, json=responses(asked))]
        for id in unknown:
            body = responses([before, reference | {"id": id}])
            refused.append(await mine.post(PATH, json=body))
        for answer in refused:
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "input[1]")
            assert "not stored" in error["message"]
        many = [reference] * 2000
        assert (await mine.post(PATH, json=responses(many))).status_code == 413


async def test_items_of_too_many_responses_are_refused_by_their_number(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_responses, "MAX_REFERRED", 1)
    made = [await client.responses.create(model=MODEL.name, input=SAID) for _ in range(2)]
    items = [one.output[0].to_dict() for one in made]
    one, other = ({"type": "item_reference", "id": item["id"]} for item in items)
    asked: Any = [one, one, {"role": "user", "content": "And then?"}]
    await client.responses.create(model=MODEL.name, input=asked)
    asked = [one, other]
    with pytest.raises(BadRequestError, match=r"more than 1 responses") as refused:
        await client.responses.create(model=MODEL.name, input=asked)
    assert refused.value.param == "input[1]"


async def test_items_are_listed_in_pages(client: AsyncOpenAI) -> None:
    items: Any = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "One"}], "id": "msg_mine"},
        {"role": "assistant", "content": "Two"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"role": "user", "content": "Three"},
    ]
    made = await client.responses.create(model=MODEL.name, input=items)
    listing = client.responses.input_items.list
    # The SDK requests the next page with `after`.
    seen = [item async for item in listing(made.id, limit=3, order="asc")]
    assert [item.type for item in seen] == [item.get("type", "message") for item in items]
    assert seen[1].id == "msg_mine" and len({item.id for item in seen}) == len(items)
    backwards = [item.id async for item in listing(made.id)]
    assert backwards == [item.id for item in reversed(seen)]
    wrong: Any
    for name, wrong in (("limit", 0), ("limit", 101), ("order", "up"), ("after", "msg_x")):
        with pytest.raises(BadRequestError) as caught:
            await listing(made.id, extra_query={name: wrong})
        assert caught.value.param == name


async def test_a_query_that_is_not_understood_is_refused(stack: Rig, client: AsyncOpenAI) -> None:
    made = (await client.responses.create(model=MODEL.name, input=SAID)).id
    listing = client.responses.input_items.list
    assert (await listing(made, include=["file_search_call.results"])).data
    conversation = (await client.conversations.create()).id
    async with stack.gateway.client() as one:
        for path in (f"responses/{made}/input_items", f"conversations/{conversation}/items"):
            taken = await one.get(f"/v1/{path}?include=a&include[]=b&limit=1&api-version=preview")
            assert taken.status_code == 200, taken.text
            for query in ("before=x", "limit[]=1", "limit=1&limit=1", "Order=asc"):
                refused = await one.get(f"/v1/{path}?{query}")
                error = refused.json()["error"]
                assert (refused.status_code, error["param"]) == (400, query.partition("=")[0])
        assert (await one.get(f"/v1/responses/{made}?streem=true")).status_code == 400


async def test_what_another_tenant_stored_is_not_there(stack: Rig, client: AsyncOpenAI) -> None:
    stack.gateway.keys.keeping.add("globex")
    mine = (await client.responses.create(model=MODEL.name, input=SAID)).id
    async with stack.gateway.client("globex") as one:
        for id in (mine, UNKNOWN):
            asked = [("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")]
            answers = [await one.request(how, f"{PATH}/{id}{what}") for how, what in asked]
            assert {answer.status_code for answer in answers} == {404}
            said = {json.dumps(answer.json()).replace(id, "") for answer in answers}
            assert len(said) == 1 and "response_not_found" in said.pop()
            body = responses(previous_response_id=id)
            refused = await one.post(PATH, json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert (await client.responses.retrieve(mine)).id == mine


@pytest.mark.parametrize(
    "id",
    ["resp_", "resp_x", UNKNOWN[:-1], UNKNOWN + "0", "resp_" + "A" * 32, "%00", "..%2Fmodels",
     "resp_%00" + "0" * 31, "a" * 5000, UNKNOWN + "%0a", "\u00e9"],
)  # fmt: skip
async def test_hostile_ids_are_unknown_ones(stack: Rig, id: str) -> None:
    async with stack.gateway.client() as one:
        for how, what in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            assert (await one.request(how, f"{PATH}/{id}{what}")).status_code == 404
        assert (await one.get(f"{PATH}/{UNKNOWN}/nothing")).status_code == 404
        assert (await one.post(f"{PATH}/{UNKNOWN}")).status_code == 405
        previous = responses(previous_response_id=id)
        assert (await one.post(PATH, json=previous)).status_code == 400
        compact = await one.post(f"{PATH}/compact", json={})
        assert "truncation" in compact.json()["error"]["message"]


async def test_keys_and_limits_hold_for_what_is_stored(stack: Rig, client: AsyncOpenAI) -> None:
    id = (await client.responses.create(model=MODEL.name, input=SAID)).id
    for key, status in (("", 401), ("nobody", 401), ("acme:usage:read", 403)):
        async with stack.gateway.client(key) as one:
            for how, what in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
                assert (await one.request(how, f"{PATH}/{id}{what}")).status_code == status
    stack.gateway.limits.full = True
    async with stack.gateway.client() as one:
        assert (await one.get(f"{PATH}/{id}")).status_code == 200
        missing = await one.get(f"{PATH}/{UNKNOWN}")
        assert missing.status_code == 429, "asking for what is not there counts as a request"


async def test_what_runs_in_the_foreground_is_not_cancelled(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL.name, input=SAID)
    with pytest.raises(BadRequestError, match="background"):
        await client.responses.cancel(made.id)
    with pytest.raises(BadRequestError, match="`stream`"):
        await client.responses.retrieve(made.id, stream=True)


async def test_without_a_database_the_answer_is_told_not_to_be_stored(
    stack: Rig, client: AsyncOpenAI
) -> None:
    stack.gateway.stored.away = True
    assert not stores(await client.responses.create(model=MODEL.name, input=SAID))
    *_, ended = await events_of(stack, responses())
    assert ended["type"] == "response.completed" and not ended["response"]["store"]
    assert ended["response"]["output"][0]["content"][0]["text"] == ANSWER
    async with stack.gateway.client() as one:
        for body in (responses(previous_response_id=UNKNOWN),):
            assert (await one.post(PATH, json=body)).status_code == 503
        assert (await one.get(f"{PATH}/{UNKNOWN}")).status_code == 503


async def test_what_is_too_large_is_not_stored(
    stack: Rig, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_responses, "MAX_BYTES", 2000)
    assert not stores(await client.responses.create(model=MODEL.name, input="a" * 2000))
    assert not stores(await client.responses.create(model=MODEL.name, input="a" * 800))
    assert stores(await client.responses.create(model=MODEL.name, input="a"))
    monkeypatch.undo()
    first = await client.responses.create(model=MODEL.name, input="a b " * 1000)
    long = "a b " * 24_000
    async with stack.gateway.client() as one:
        refused = await one.post(PATH, json=responses(long, previous_response_id=first.id))
    assert refused.status_code == 413, "together it is over the limit of a body"


async def test_nobody_waits_for_another_tenants_room(stack: Rig, client: AsyncOpenAI) -> None:
    space = stack.gateway.hub.contents.space
    for size in (1 << 16, 1):
        while space.take(len("acme"), size):
            pass
    assert not stores(await client.responses.create(model=MODEL.name, input=SAID))
    stack.gateway.keys.keeping.add("globex")
    async with sdk(stack, "globex") as other:
        assert stores(await other.responses.create(model=MODEL.name, input=SAID))


async def test_a_repeated_request_is_stored_once(stack: Rig) -> None:
    first = responses()
    async with stack.gateway.client() as one:
        headers = {"Idempotency-Key": "order 17"}
        answers = [await one.post(PATH, json=first, headers=headers) for _ in range(2)]
        assert answers[0].json() == answers[1].json()
        (row,) = stack.gateway.stored.rows
        assert answers[0].json()["id"] == f"resp_{row[1]}"
        more = responses("More", previous_response_id=answers[0].json()["id"])
        headers = {"Idempotency-Key": "order 18"}
        followed = await one.post(PATH, json=more, headers=headers)
        await one.delete(f"{PATH}/resp_{row[1]}")
        again = await one.post(PATH, json=more, headers=headers)
    assert followed.json() == again.json() and followed.status_code == 200


@pytest.mark.parametrize("what", ["responses", "whole responses"])
async def test_an_adopted_answer_is_stored_under_its_id(tmp_path: Path, what: str) -> None:
    path, body = ASKED[what]
    stored = MemoryResponses()
    async with fleet(tmp_path, stored=stored) as made:
        for one in made.rig.gateways:
            one.keys.keeping.add("acme")
        asking = await began(made, path, body)
        again = asyncio.create_task(made.ask(made.two, path, body))
        await until(lambda: made.two.hub.in_flight)
        made.behave(STEADY)
        answer = await again
        await gave_up(asking)
        async with made.two.client() as client:
            found = (await client.get(f"{PATH}/resp_{answer.id}")).json()
    assert [*stored.rows] == [(len("acme"), answer.id)]
    assert found["usage"]["output_tokens"] == answer.usage["completion_tokens"]


async def test_sockets_store_responses_and_continue_stored_ones(
    stack: Rig, client: AsyncOpenAI
) -> None:
    stack.gateway.keys.keeping.add("globex")
    before = await client.responses.create(model=MODEL.name, input="Before")
    async with socket(stack) as made:
        first = await turn(made, previous_response_id=before.id)
        assert first["store"] and first["status"] == "completed"
        second = await turn(made, previous_response_id=first["id"], input="More", store=False)
        assert not second["store"]
    stored = await client.responses.retrieve(first["id"])
    assert stored.id == first["id"]
    items = [
        item async for item in await client.responses.input_items.list(first["id"], order="asc")
    ]
    assert [item.type for item in items] == ["message"] * 3
    async with socket(stack) as again, socket(stack, "globex") as other:
        assert (await turn(again, previous_response_id=first["id"]))["status"] == "completed"
        for one, id in ((again, second["id"]), (other, first["id"])):
            missing = await turn(one, previous_response_id=id)
            assert code(missing)[:2] == (400, "previous_response_not_found")
        bad = await turn(again, previous_response_id=7)
        assert code(bad) == (400, "invalid_request", "previous_response_id")


async def test_a_failed_or_abandoned_response_is_not_stored(
    stack: Rig, client: AsyncOpenAI
) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = replace(SLOW, fail_after_tokens=3)
    events = await events_of(stack, responses())
    assert events[-1]["type"] == "response.failed"
    stack.engine.behaviour = SLOW
    async with client.responses.stream(model=MODEL.name, input=SAID) as stream:
        async for _ in stream:
            break
    await until(lambda: not stack.engine.stats().running)
    await until(
        lambda: (
            not stack.gateway.hub.contents.space.total
            or stack.gateway.hub.contents.take(9, 1 << 20)
        )
    )
    assert stack.gateway.stored.rows == {}
