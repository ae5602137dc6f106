"""`/v1/responses` as a websocket, on a whole gateway and a synthetic engine. Includes what the Open
Responses suite (2026-04-24) tests of sockets: one turn, several turns, continuing without storage,
an unknown response, another socket, a failed turn, and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from structlog.testing import capture_logs
from websockets import ClientConnection, ConnectionClosed, InvalidStatus, connect

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.gateway import responses_socket
from inference.gateway.responses_socket import GOING_AWAY
from inference.link.accounts import Usage
from inference.pacing import FREE
from inference.shared_capacity import TENANT_SHARE
from tests.document.sdk_types import faults
from tests.inference.operations.examples import SAID, responses
from tests.inference.operations.items import check_order
from tests.inference.rig import SLOW, STALLED, Rig, rig, until
from tests.inference.samples import MODEL

CREATE: dict[str, Any] = responses() | {"type": "response.create"}
ANSWER = f"{MODEL.name}: {SAID}"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


@asynccontextmanager
async def socket(stack: Rig, key: str = "acme") -> AsyncIterator[ClientConnection]:
    url = stack.gateway.url.replace("http", "ws", 1) + "/v1/responses"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with connect(url, additional_headers=headers) as made:
        yield made


async def turn(made: ClientConnection, message: Any = CREATE, **fields: Any) -> dict[str, Any]:
    """Send `message`; returns the response of the last event, or the error event."""
    text = message if isinstance(message, str | bytes) else json.dumps(message | fields)
    await made.send(text)
    return await heard(made)


async def heard(made: ClientConnection) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    while True:
        text = await made.recv()
        assert isinstance(text, str)
        events.append(json.loads(text))
        if events[-1]["type"] == "error":
            return events[-1]
        assert not faults("responses", text.encode(), event=True)
        if events[-1]["type"] == "response.failed":
            return dict(events[-1]["response"])
        if events[-1]["type"] in ("response.completed", "response.incomplete"):
            check_order(events)
            return dict(events[-1]["response"])


def said(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


def code(event: dict[str, Any]) -> tuple[int, str, str | None]:
    assert event["type"] == "error", event
    error = event["error"]
    assert error["message"]
    return event["status"], error["code"], error["param"]


async def test_turns_come_one_after_another_and_are_billed(stack: Rig) -> None:
    async with socket(stack) as made:
        first, second = await turn(made), await turn(made, input="Else")
    assert (said(first), said(second)) == (ANSWER, f"{MODEL.name}: Else")
    assert first["status"] == "completed" and first["id"] != second["id"]
    entries = {entry.id: entry for entry in await stack.gateway.ledger.settled(2)}
    assert {f"resp_{id}" for id in entries} == {first["id"], second["id"]}
    counted = {entry.usage.completion_tokens for entry in entries.values()}
    assert counted == {one["usage"]["output_tokens"] for one in (first, second)}


async def test_a_cut_turn_is_incomplete_and_can_be_continued(stack: Rig) -> None:
    async with socket(stack) as made:
        cut = await turn(made, max_output_tokens=2)
        assert cut["status"] == "incomplete"
        more = await turn(made, previous_response_id=cut["id"], input="More")
    assert more["status"] == "completed"
    assert more["usage"]["input_tokens"] > cut["usage"]["input_tokens"]


async def test_a_turn_continues_the_one_before_with_all_items(stack: Rig) -> None:
    result = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    items: list[Any] = [{"role": "user", "content": SAID}]
    async with socket(stack) as made, socket(stack) as other:
        first = await turn(made)
        second = await turn(made, previous_response_id=first["id"], input=[call, result])
        third = await turn(made, previous_response_id=second["id"], input="And then?")
        items += [*first["output"], call, result, *second["output"]]
        items.append({"role": "user", "content": "And then?"})
        whole = await turn(other, input=items)
        assert said(third) == said(whole)
        assert third["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        lost = await turn(made, previous_response_id=first["id"])
        assert code(lost)[1] == "previous_response_not_found", "only the last one is kept"
        assert said(await turn(made, previous_response_id=third["id"], input="On")).endswith("On")


async def test_a_response_of_another_socket_is_not_there(stack: Rig) -> None:
    async with socket(stack) as made, socket(stack) as again, socket(stack, "globex") as other:
        first = await turn(made)
        for one in (again, other):
            missing = await turn(one, previous_response_id=first["id"])
            wrong = (400, "previous_response_not_found", "previous_response_id")
            assert code(missing) == wrong
            assert said(await turn(one)) == ANSWER, "the socket is still good"


async def test_a_turn_that_fails_is_forgotten(stack: Rig) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    async with socket(stack) as made:
        first = await turn(made)
        assert code(await turn(made, model="nothing"))[1] == "model_not_found"
        second = await turn(made, previous_response_id=first["id"], input="More")
        assert second["status"] == "completed", "a turn that goes on from nothing harms nothing"
        stack.engine.behaviour = replace(SLOW, fail_after_tokens=2)
        broken = await turn(made, previous_response_id=second["id"])
        assert (broken["status"], broken["error"]["type"]) == ("failed", "engine_failed")
        stack.engine.behaviour = Behaviour()
        assert code(await turn(made, previous_response_id=second["id"]))[0] == 400
        third = await turn(made)
        refused = await turn(made, previous_response_id=third["id"], max_output_tokens=0)
        assert code(refused) == (400, "invalid_request", "max_output_tokens")
        assert code(await turn(made, previous_response_id=third["id"]))[0] == 400


async def test_a_conversation_begins_without_an_answer(stack: Rig) -> None:
    """As Codex begins it."""
    async with socket(stack) as made:
        begun = await turn(made, generate=False, input=[{"role": "user", "content": "One"}])
        assert (begun["status"], begun["output"], begun["usage"]["output_tokens"]) == (
            "completed", [], 0
        )  # fmt: skip
        first = await turn(made, previous_response_id=begun["id"], input="Two")
    assert said(first) == f"{MODEL.name}: Two"
    async with socket(stack) as made:
        both = await turn(
            made, input=[{"role": "user", "content": "One"}, {"role": "user", "content": "Two"}]
        )
    assert first["usage"]["input_tokens"] == both["usage"]["input_tokens"]
    assert len(await stack.gateway.ledger.settled(2)) == 2


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("not json", None),
        (b"\xff", None),
        ("[]", None),
        ("[" * 1000, None),
        ({"model": MODEL.name, "input": "x"}, "type"),
        (CREATE | {"type": "response.cancel"}, "type"),
        (CREATE | {"background": True}, "background"),
        (CREATE | {"generate": 0}, "generate"),
        (CREATE | {"generate": False, "input": 7}, "input"),
        (CREATE | {"stream_id": "a"}, "stream_id"),
        (CREATE | {"input": []}, "input"),
        (CREATE | {"previous_response_id": None, "input": 7}, "input"),
    ],
)
async def test_what_is_wrong_is_told_and_harms_nothing(
    stack: Rig, message: Any, param: str | None
) -> None:
    async with socket(stack) as made:
        assert code(await turn(made, message)) == (400, "invalid_request", param)
        assert said(await turn(made)) == ANSWER


async def test_a_body_that_is_too_large_is_refused(stack: Rig) -> None:
    async with socket(stack) as made:
        large = await turn(made, input="a" * 200_000)
        assert code(large)[:2] == (413, "payload_too_large")
        first = await turn(made, input="a" * 60_000, max_output_tokens=1)
        assert code(first)[:2] == (400, "context_length_exceeded")


async def test_wrong_messages_count_as_requests_and_are_logged(stack: Rig) -> None:
    async with socket(stack) as made:
        with capture_logs() as lines:
            for _ in range(3):
                assert code(await turn(made, "{"))[0] == 400
    assert list(stack.gateway.limits.settled.values()) == [Usage()] * 3
    told = [line for line in lines if line["event"] == "request"]
    assert [(line["status"], line["tenant"], line["error"]) for line in told] == [
        (400, "acme", "invalid_request")
    ] * 3


async def test_a_tenant_of_wrong_messages_is_slowed_and_no_other_is(stack: Rig) -> None:
    async with socket(stack) as acme, socket(stack, "globex") as globex:
        for _ in range(int(FREE) + 2):
            assert code(await turn(acme, "{"))[0] == 400
        assert said(await turn(globex)) == ANSWER
        async with stack.gateway.client() as client:
            answers = [client.post("/v1/responses", content=b"{") for _ in range(2 * int(FREE))]
            statuses = {answer.status_code for answer in await asyncio.gather(*answers)}
    assert statuses == {400, 429}, "its sockets and its other requests are slowed together"


async def test_the_sockets_of_a_tenant_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "MAX_SOCKETS", TENANT_SHARE)
    async with rig(tmp_path) as stack:
        async with socket(stack) as made:
            with pytest.raises(InvalidStatus, match="429"):
                async with socket(stack):
                    pass
            async with socket(stack, "globex") as other:
                assert said(await turn(other)) == ANSWER
            assert said(await turn(made)) == ANSWER
        async with socket(stack) as made:
            assert said(await turn(made)) == ANSWER


async def test_a_socket_that_is_not_yet_open_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "MAX_SOCKETS", TENANT_SHARE)
    async with rig(tmp_path) as stack:
        messages = iter(["websocket.connect", "websocket.disconnect"])
        accepted: list[bool] = []

        async def receive() -> dict[str, Any]:
            return {"type": next(messages)}

        async def send(message: Any) -> None:
            if message["type"] == "websocket.accept":
                with pytest.raises(InvalidStatus):
                    async with socket(stack):
                        pass
                accepted.append(True)

        headers = [(b"authorization", b"Bearer acme")]
        scope: Any = {"type": "websocket", "path": "/v1/responses", "headers": headers}
        await stack.gateway.server.config.loaded_app(scope, receive, send)
        assert accepted


async def test_a_socket_needs_a_key(stack: Rig) -> None:
    """What is refused in the handshake has the status, headers and body of a request's answer."""
    for key, status, code in (
        ("", 401, "invalid_api_key"),
        ("nobody", 401, "invalid_api_key"),
        ("acme:usage:read", 403, "insufficient_permissions"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            async with socket(stack, key):
                pass
        answer = refused.value.response
        assert answer.status_code == status and answer.body is not None
        assert answer.headers["x-request-id"].startswith("req_")
        assert json.loads(answer.body)["error"]["code"] == code


async def test_limits_hold_for_each_turn(stack: Rig) -> None:
    async with socket(stack) as made:
        first = await turn(made)
        stack.gateway.limits.full = True
        assert code(await turn(made))[:2] == (429, "rate_limit_exceeded")
        stack.gateway.limits.full = False
        assert (await turn(made, previous_response_id=first["id"]))["status"] == "completed"


async def test_one_message_may_wait(stack: Rig) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = STALLED
    async with socket(stack) as made:
        await made.send(json.dumps(CREATE))
        await until(lambda: stack.engine.stats().running)
        for _ in range(2):
            await made.send(json.dumps(CREATE | {"input": "Else"}))
        assert code(await heard(made))[0] == 400
        stack.engine.behaviour = Behaviour()
        assert [said(await heard(made)) for _ in range(2)] == [ANSWER, f"{MODEL.name}: Else"]


async def test_a_client_that_goes_ends_its_turn(stack: Rig) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = STALLED
    async with socket(stack) as made:
        await made.send(json.dumps(CREATE))
        await until(lambda: stack.engine.stats().running)
    await until(lambda: not stack.engine.stats().running)
    (entry,) = await stack.gateway.ledger.settled()
    assert entry.finish_reason == "cancelled"


async def test_a_gateway_that_ends_sends_its_clients_away(stack: Rig) -> None:
    async with socket(stack) as made:
        await turn(made)
        stack.gateway.hub.closed.set()
        with pytest.raises(ConnectionClosed) as caught:
            await made.recv()
    assert caught.value.rcvd is not None and caught.value.rcvd.code == GOING_AWAY


async def test_openais_sdk_works_on_the_socket(stack: Rig) -> None:
    client = AsyncOpenAI(base_url=f"{stack.gateway.url}/v1", api_key="acme", max_retries=0)
    async with client, client.responses.connect() as connection:
        ids: list[str] = []
        for input in (SAID, "And then?"):
            previous: Any = {"previous_response_id": ids[-1]} if ids else {}
            await connection.response.create(model=MODEL.name, input=input, **previous)
            async with asyncio.timeout(30):
                async for event in connection:
                    if event.type == "response.completed":
                        ids.append(event.response.id)
                        break
        assert event.type == "response.completed"
        assert event.response.output_text == f"{MODEL.name}: And then?"
