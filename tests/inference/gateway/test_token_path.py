"""The token path over real sockets: HTTP, gateway, engine link, agent, synthetic engine, and
back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI

from inference.agent.engines.engine import EngineOutput, EngineWork
from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.agent.link import AgentLink
from inference.errors import ApiKeyRevoked, EngineLost, InsufficientQuota
from inference.gateway.dispatcher import Dispatcher
from inference.ids import new_id
from inference.interfaces.directory import Grant, Limits, ResolvedTarget
from inference.interfaces.limiter import Reservation, ReservationRequest
from inference.link.engine_info import EngineStats
from inference.link.session import LOST_S
from inference.link.wire import MAX_FRAME_BYTES, Delta, Frame, Wait
from inference.operations.chat import CHAT
from tests.inference.limits import Counted
from tests.inference.rig import (
    HANGS_S,
    SECRET,
    SLOW,
    STALLED,
    WORKER_TOKEN,
    Rig,
    agent_on,
    chat,
    connected,
    gateway,
    rig,
    until,
)
from tests.inference.samples import MODEL

LONG = "Tell me everything that you know about parrots, and take your time."


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def slow(stack: Rig) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = SLOW


async def drained(stack: Rig) -> None:
    """Wait until the engine reports that nothing runs or waits."""
    await until(lambda: not stack.engine.stats().running and not stack.engine.stats().waiting)


async def lines(response: httpx.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line:
            payload = line.removeprefix("data: ")
            yield payload if payload == "[DONE]" else json.loads(payload)


async def test_the_sdk_chats_and_usage_is_recorded(stack: Rig) -> None:
    async with AsyncOpenAI(base_url=f"{stack.gateway.url}/v1", api_key="acme") as client:
        answer = await client.chat.completions.create(
            model=MODEL.name, messages=[{"role": "user", "content": LONG}], max_tokens=8
        )
        text = answer.choices[0].message.content
        streamed = ""
        final = None
        stream = await client.chat.completions.create(
            model=MODEL.name,
            messages=[{"role": "user", "content": LONG}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            streamed += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            final = chunk
        completion = await client.completions.create(model=MODEL.name, prompt=LONG, max_tokens=4)
        models = [model.id async for model in client.models.list()]
        assert (await client.models.retrieve(MODEL.name)).id == MODEL.name
    assert text and text == streamed
    assert answer.usage is not None and final is not None
    assert final.usage is not None
    assert final.usage.completion_tokens == answer.usage.completion_tokens == 8
    assert completion.choices[0].text
    assert models == [MODEL.name]
    records = await stack.gateway.ledger.settled(3)
    assert [record.usage.completion_tokens for record in records] == [8, 8, 4]
    assert answer.id == f"chatcmpl-{records[0].id}"
    assert records[0].usage.ttft_s is not None


async def test_each_chunk_may_say_how_many_tokens_there_are(stack: Rig) -> None:
    async with AsyncOpenAI(base_url=f"{stack.gateway.url}/v1", api_key="acme") as client:
        stream = await client.chat.completions.create(
            model=MODEL.name,
            messages=[{"role": "user", "content": LONG}],
            max_tokens=8,
            stream=True,
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        )
        usages = [chunk.usage async for chunk in stream]
    counts = [usage.completion_tokens for usage in usages if usage is not None]
    assert len(counts) == len(usages) and counts == sorted(counts)
    assert counts[0] == 0 and counts[-1] == 8
    assert len({usage.prompt_tokens for usage in usages if usage is not None}) == 1


async def test_every_answer_has_an_id_and_the_same_one_is_in_the_ledger(stack: Rig) -> None:
    async with stack.gateway.client() as client:
        good = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
        bad = await client.post("/v1/chat/completions", json={})
        lost = await client.get("/v1/nowhere")
        health = await client.get("/healthz")
    for answer in (good, bad, lost, health):
        assert answer.headers["x-request-id"].startswith("req_")
        assert int(answer.headers["openai-processing-ms"]) >= 0
    (record,) = await stack.gateway.ledger.settled()
    assert good.headers["x-request-id"] == f"req_{record.id}"


async def test_an_adapters_answers_name_the_version(stack: Rig) -> None:
    ref = stack.adapter("acme", "policy")
    body = chat(max_tokens=1) | {"model": "policy"}
    async with stack.gateway.client() as client:
        whole = await client.post("/v1/chat/completions", json=body)
        stream = await client.post("/v1/chat/completions", json=body | {"stream": True})
        base = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
    for answer in (whole, stream):
        assert answer.status_code == 200
        assert answer.headers["x-lorikeet-adapter"] == f"policy@{ref.digest}"
    assert "x-lorikeet-adapter" not in base.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/nothing", 404, "model_not_found"),
        ("GET", f"/v1/models/%25{ord(MODEL.name[0]):x}{MODEL.name[1:]}", 404, "model_not_found"),
        ("GET", "/v1/nowhere", 404, "not_found"),
    ],
)
async def test_wrong_addresses(stack: Rig, method: str, path: str, status: int, code: str) -> None:
    async with stack.gateway.client() as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        ("", 401, "invalid_api_key"),
        ("wrong", 401, "invalid_api_key"),
        ("acme:usage:read", 403, "insufficient_permissions"),
    ],
)
async def test_keys_that_see_no_models(stack: Rig, key: str, status: int, code: str) -> None:
    async with stack.gateway.client(key) as client:
        answer = await client.get("/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (json.dumps(chat(max_tokens="many")).encode(), 400, "max_tokens"),
        (json.dumps(chat(content="word " * 15_000)).encode(), 400, None),
        (b"x" * 100_001, 413, None),
    ],
)
async def test_bad_bodies_are_a_clear_4xx_and_cost_nothing(
    stack: Rig, body: bytes, status: int, param: str | None
) -> None:
    async with stack.gateway.client() as client:
        answer = await client.post("/v1/chat/completions", content=body)
        after = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert error["message"]
    assert after.status_code == 200
    ledger, last = stack.gateway.ledger.entries, after.headers["x-request-id"].removeprefix("req_")
    await until(lambda: last in ledger)
    assert sum(entry.usage.completion_tokens for entry in ledger.values()) == 1


async def test_a_half_sent_body_harms_nobody(stack: Rig) -> None:
    host, port = stack.gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\n"
        b'Content-Length: 1000\r\n\r\n{"model": '
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with stack.gateway.client() as client:
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=1))).is_success
    assert len(await stack.gateway.ledger.settled()) == 1


async def test_a_client_that_asks_first_is_told_that_its_body_is_too_large(stack: Rig) -> None:
    host, port = stack.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\n"
        b"Expect: 100-Continue\r\nContent-Length: 100001\r\n\r\n"
    )
    async with asyncio.timeout(HANGS_S):
        said = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert said.startswith(b"HTTP/1.1 413") and b"payload_too_large" in said
    assert b"connection: close" in said, "the body may come after all"


async def test_what_a_key_may_do_is_asked_again_when_its_body_has_come(stack: Rig) -> None:
    host, port = stack.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(chat(max_tokens=1)).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    async with asyncio.timeout(10):
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n"), "the key was found good"
        stack.gateway.keys.revoked.add("acme")
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 401")


async def test_key_and_model_are_looked_up_once_where_nothing_was_waited_for(stack: Rig) -> None:
    host, port = stack.gateway.url.removeprefix("http://").split(":")
    body = json.dumps(chat(max_tokens=1)).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    async with asyncio.timeout(HANGS_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()
    assert stack.gateway.keys.lookups == {"key": 1, "model": 1}


async def test_what_a_name_means_is_asked_again_when_reserving_took_time(stack: Rig) -> None:
    """A version that was promoted meanwhile answers."""
    stack.adapter("acme", "support", 1)

    class Slow(Counted):
        async def reserve(
            self, id: str, grant: Grant, target: ResolvedTarget, ask: ReservationRequest
        ) -> Reservation:
            await asyncio.sleep(0)
            stack.adapter("acme", "support", 2)
            return await super().reserve(id, grant, target, ask)

    keys = stack.gateway.keys
    dispatcher = Dispatcher(stack.gateway.hub, keys, Slow(), timeout_s=HANGS_S)
    call = CHAT.parse(json.dumps(chat("support", max_tokens=1)).encode())
    grant = await keys.authenticate("acme")
    async with dispatcher.generation(new_id(), grant, call) as stream:
        assert stream.request.target.adapter == keys.adapters["acme", "support"]
        while isinstance(await stream.read(), Delta):
            pass


async def test_a_body_that_never_ends_is_cut_off() -> None:
    async with gateway(body_timeout_s=0.1) as one:
        host, port = one.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\n"
            b'Content-Length: 1000\r\n\r\n{"model": '
        )
        async with asyncio.timeout(HANGS_S):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readuntil(b"}}")
        writer.close()
        await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body)["error"]["code"] == "request_timeout"


async def test_a_client_that_leaves_stops_the_engine_and_pays_what_was_made(stack: Rig) -> None:
    slow(stack)
    body = chat(max_tokens=1000, stream=True, ignore_eos=True)
    async with (
        stack.gateway.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        received = 0
        async for chunk in lines(response):
            received += bool(chunk["choices"][0]["delta"].get("content"))
            if received == 3:
                break
    (record,) = await stack.gateway.ledger.settled()
    await drained(stack)
    assert record.finish_reason == "cancelled"
    assert 3 <= record.usage.completion_tokens < 1000
    assert record.usage.completion_tokens == stack.engine.stats().completion_tokens


async def test_a_client_that_waits_for_a_whole_answer_and_leaves(stack: Rig) -> None:
    slow(stack)
    async with stack.gateway.client() as client:
        body = chat(max_tokens=2000, ignore_eos=True)
        request = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until(lambda: stack.engine.stats().running)
        request.cancel()
        await asyncio.wait([request])
    (record,) = await stack.gateway.ledger.settled()
    await drained(stack)
    assert record.finish_reason == "cancelled"


async def test_revoking_a_key_ends_its_streams_with_an_error_chunk(stack: Rig) -> None:
    slow(stack)
    body = chat(max_tokens=1000, stream=True, ignore_eos=True)
    seen: list[Any] = []
    async with (
        stack.gateway.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        async for chunk in lines(response):
            if not seen:
                stack.gateway.keys.revoke(len("acme"), ApiKeyRevoked())
            seen.append(chunk)
    assert seen[-1]["error"]["code"] == "api_key_revoked"
    assert "[DONE]" not in seen
    (record,) = await stack.gateway.ledger.settled()
    assert record.finish_reason == "api_key_revoked"
    await drained(stack)


async def test_an_agent_that_dies_gives_its_streams_an_error_and_the_next_one_serves(
    tmp_path: Path,
) -> None:
    async with gateway() as one:
        engine = SyntheticEngine(MODEL, SLOW)
        async with one.client() as client:
            async with agent_on(engine, tmp_path, [one]) as first:
                body = chat(max_tokens=1000, stream=True, ignore_eos=True)
                async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    seen: list[Any] = []
                    async for chunk in lines(response):
                        if not seen:
                            first.running.cancel()
                        seen.append(chunk)
            assert seen[-1]["error"]["code"] == "engine_lost"
            refused = await client.post("/v1/chat/completions", json=chat())
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.get("/fleetz")).status_code == 503
            assert (await client.get("/readyz")).status_code == 200
            async with agent_on(SyntheticEngine(MODEL), tmp_path, [one]):
                again = await client.post("/v1/chat/completions", json=chat(max_tokens=2))
                assert again.status_code == 200
                assert (await client.get("/fleetz")).json()["status"] == "ready"
                (lost, good) = await one.ledger.settled(2)
        assert (lost.finish_reason, good.finish_reason) == ("gateway_lost", "length")
        assert lost.usage.prompt_tokens > 0


async def test_a_gateway_that_dies_leaves_nothing_running_in_the_engine(tmp_path: Path) -> None:
    engine = SyntheticEngine(MODEL, SLOW)
    async with gateway() as survivor:
        async with gateway() as doomed:
            survivor.hub.gateways = [survivor.url, doomed.url]
            async with agent_on(engine, tmp_path, [survivor, doomed]) as made:
                async with doomed.client() as client:
                    body = chat(max_tokens=2000, ignore_eos=True)
                    request = asyncio.create_task(client.post("/v1/chat/completions", json=body))
                    await until(lambda: engine.stats().running)
                    for link in list(doomed.hub._links.values()):
                        link.break_off(EngineLost("killed"))
                    await drained(made)
                    request.cancel()
                    await asyncio.wait([request])
                    (lost,) = await survivor.ledger.settled()
                    assert (lost.finish_reason, doomed.ledger.entries) == ("gateway_lost", {})
                    assert lost.usage.completion_tokens == engine.stats().completion_tokens
                    await until(lambda: lost.id in survivor.limits.offered)
                async with survivor.client() as client:
                    answer = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
                    assert answer.status_code == 200


async def test_an_agent_dials_every_gateway_that_it_hears_of(tmp_path: Path) -> None:
    async with gateway() as first, gateway() as second:
        async with agent_on(SyntheticEngine(MODEL), tmp_path, [first]):
            assert second.hub.snapshot() == []
            first.hub.set_gateways([first.url, second.url])
            await connected(second)
            async with second.client() as client:
                assert (await client.post("/v1/chat/completions", json=chat())).is_success


async def test_a_link_that_a_defect_broke_is_made_again(
    stack: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = stack.agent.handle

    def fails_once(link: AgentLink, frame: Frame) -> None:
        monkeypatch.setattr(stack.agent, "handle", handle)
        raise RuntimeError("a defect")

    monkeypatch.setattr(stack.agent, "handle", fails_once)
    async with stack.gateway.client() as client:
        lost = await client.post("/v1/chat/completions", json=chat())
        assert lost.json()["error"]["code"] == "engine_lost"
        await connected(stack.gateway)
        assert (await client.post("/v1/chat/completions", json=chat())).is_success


async def test_a_machine_that_stood_still_lost_nobody(
    monkeypatch: pytest.MonkeyPatch, stack: Rig
) -> None:
    """As after a suspend: the frames that peers sent meanwhile are still unread."""
    links, clock = list(stack.gateway.hub._links.values()), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 2 * LOST_S)
    async with stack.gateway.client() as client:
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=chat(max_tokens=2))).is_success
    assert list(stack.gateway.hub._links.values()) == links


def _drains(one: Any) -> bool:
    return bool(one.hub.snapshot()[0]["draining"])


async def test_an_engine_drained_at_one_gateway_takes_nothing_new_from_any(tmp_path: Path) -> None:
    async with gateway() as first, gateway() as second:
        first.hub.gateways = [first.url, second.url]
        async with agent_on(SyntheticEngine(MODEL), tmp_path, [first, second]):
            first.hub.drain("engine-1")
            for one in (first, second):
                await until(partial(_drains, one))
                async with one.client() as client:
                    refused = await client.post("/v1/chat/completions", json=chat())
                assert refused.status_code == 503


async def test_a_request_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    async with gateway(timeout_s=0.2) as one:
        async with agent_on(SyntheticEngine(MODEL, SLOW), tmp_path, [one]) as made:
            async with one.client() as client:
                answer = await client.post(
                    "/v1/chat/completions", json=chat(max_tokens=2000, ignore_eos=True)
                )
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "generation_timeout"
            await drained(made)
            (record,) = await one.ledger.settled()
            assert record.usage.completion_tokens == made.engine.stats().completion_tokens


@pytest.mark.parametrize("bound", [{"max_queued": 1}, {"max_queued_bytes": 4 * 400}])
async def test_a_full_queue_is_503_with_retry_after(tmp_path: Path, bound: dict[str, Any]) -> None:
    async with rig(tmp_path, max_running=1, **bound) as stack:
        slow(stack)
        async with stack.gateway.client() as client:
            body = chat(max_tokens=2000, ignore_eos=True, user="x" * 200)
            waiting = [
                asyncio.create_task(client.post("/v1/chat/completions", json=body))
                for _ in range(2)
            ]
            await until(lambda: stack.agent.reports.stats().queued and stack.engine.stats().running)
            refused = await client.post("/v1/chat/completions", json=chat(user="x" * 200))
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_body_that_is_mostly_something_else_waits_for_no_empty_engine(stack: Rig) -> None:
    """Estimated by its bytes, its prompt would exceed the engine's whole KV cache."""
    stack.gateway.keys.max_model_len = MODEL.max_model_len
    assert isinstance(stack.engine, SyntheticEngine)
    stack.engine.behaviour = Behaviour(tokens_per_second=20)
    async with stack.gateway.client() as client:
        body = chat(max_tokens=2000, ignore_eos=True)
        before = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until(lambda: stack.engine.stats().running)
        body = chat(max_tokens=1, user="x" * 90_000)
        assert (await client.post("/v1/chat/completions", json=body)).is_success
        assert not before.done()
        before.cancel()
        await asyncio.wait([before])


async def test_requests_whose_adapter_is_on_its_way_are_bounded_as_well(tmp_path: Path) -> None:
    async with rig(tmp_path, max_queued=2) as stack:
        stack.adapter("acme", "support")
        stack.store.arrived.clear()
        async with stack.gateway.client() as client:
            body = chat("support", max_tokens=1)
            waiting = [
                asyncio.create_task(client.post("/v1/chat/completions", json=body))
                for _ in range(4)
            ]
            first = asyncio.as_completed(waiting)
            refused = [(await next(first)).status_code for _ in range(2)]
            stack.store.arrived.set()
            answers = await asyncio.gather(*waiting)
    assert refused == [503, 503]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503]


async def test_a_watched_request_is_told_its_place_and_its_phases(tmp_path: Path) -> None:
    engine = SyntheticEngine(MODEL, STALLED)
    async with rig(tmp_path, engine=engine, max_running=1) as stack:
        stack.adapter("acme", "support")
        first = watched(stack, MODEL.name)
        await until(lambda: first.heard)
        second = watched(stack, "support")
        await until(lambda: second.heard)
        third = watched(stack, MODEL.name)
        await until(lambda: third.heard)
        stack.store.arrived.clear()
        engine.behaviour = Behaviour()
        await until(lambda: ("loading", 0) in second.heard)
        engine.behaviour = STALLED
        stack.store.arrived.set()
        await until(lambda: ("prefill", 0) in second.heard)
        engine.behaviour = Behaviour()
        await asyncio.gather(first.done, second.done, third.done)
    assert first.heard == [("prefill", 0)]
    assert second.heard == [("queued", 1), ("loading", 0), ("prefill", 0)]
    assert third.heard[-1] == ("prefill", 0) and ("queued", 2) in third.heard


class Watched:
    """A request whose waits are recorded. `done` is the task that reads its answer."""

    def __init__(self, stack: Rig, body: bytes) -> None:
        self.heard: list[tuple[str, int]] = []
        self.done = asyncio.create_task(self._read(stack, body))

    async def _read(self, stack: Rig, body: bytes) -> None:
        dispatcher = Dispatcher(
            stack.gateway.hub, stack.gateway.keys, stack.gateway.limits, timeout_s=HANGS_S
        )
        grant = await stack.gateway.keys.authenticate("acme")
        call = CHAT.parse(body)

        def watch(wait: Wait) -> None:
            self.heard.append((wait.phase, wait.place))

        async with dispatcher.generation(new_id(), grant, call, watch) as stream:
            while isinstance(await stream.read(), Delta):
                pass


def watched(stack: Rig, model: str) -> Watched:
    body = chat(model, max_tokens=20, ignore_eos=True, stream=True)
    return Watched(stack, json.dumps(body).encode())


async def test_a_failed_load_fails_that_request_alone(stack: Rig) -> None:
    assert isinstance(stack.engine, SyntheticEngine)
    bad, good = stack.adapter("acme", "bad", 1), stack.adapter("acme", "good", 2)
    stack.engine.behaviour = replace(SLOW, fail_loads=frozenset({bad.name}))
    async with stack.gateway.client() as client:
        answers = await asyncio.gather(
            *(
                client.post("/v1/chat/completions", json=chat(name, max_tokens=20))
                for name in ("good", "bad", MODEL.name, "good")
            )
        )
    assert [answer.status_code for answer in answers] == [200, 503, 200, 200]
    assert answers[1].json()["error"]["code"] == "adapter_load_failed"
    assert stack.agent.reports.stats().resident == [good.name]


async def test_adapters_come_and_go_within_the_bound_and_pins_follow(tmp_path: Path) -> None:
    async with rig(tmp_path, max_resident=2) as stack:
        refs = [stack.adapter("acme", f"a{i}", i) for i in range(5)]
        async with stack.gateway.client() as client:
            for i in range(5):
                answer = await client.post("/v1/chat/completions", json=chat(f"a{i}", max_tokens=1))
                assert answer.is_success
            assert stack.agent.reports.stats().resident == [refs[3].name, refs[4].name]
            assert [ref.digest for ref in refs if stack.store.pins[ref.digest]] == [
                refs[3].digest,
                refs[4].digest,
            ]
            stack.gateway.hub.unload(refs[4].digest)
            async with asyncio.timeout(HANGS_S):
                while stack.store.pins[refs[4].digest]:
                    await client.get("/healthz")
        assert stack.agent.reports.stats().resident == [refs[3].name]


async def test_tenants_with_the_same_adapter_share_it_under_their_own_names(stack: Rig) -> None:
    refs = [stack.adapter(tenant, "support") for tenant in ("acme", "globex")]
    assert refs[0].digest == refs[1].digest
    for tenant in ("acme", "globex"):
        async with stack.gateway.client(tenant) as client:
            answer = await client.post("/v1/chat/completions", json=chat("support", max_tokens=1))
            assert answer.is_success
    assert stack.agent.reports.stats().resident == [ref.name for ref in refs]


async def test_many_tenants_and_adapters_at_once(stack: Rig) -> None:
    for i in range(6):
        stack.adapter("acme", f"a{i}", i)
    async with stack.gateway.client() as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    "/v1/chat/completions", json=chat(f"a{i % 6}", f"ask {i}", max_tokens=9)
                )
                for i in range(60)
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    alone = {}
    async with stack.gateway.client() as client:
        for i in range(60):
            body = chat(f"a{i % 6}", f"ask {i}", max_tokens=9)
            alone[i] = (await client.post("/v1/chat/completions", json=body)).json()
    for i, answer in enumerate(answers):
        assert answer.json()["choices"] == alone[i]["choices"]
    assert len(await stack.gateway.ledger.settled(120)) == 120


async def test_a_probe_through_the_gateway(stack: Rig) -> None:
    ref = stack.adapter("acme", "support")
    body = {"base_model": MODEL.name, "name": ref.name, "digest": ref.digest}
    async with stack.gateway.client(WORKER_TOKEN) as client:
        good = await client.post("/engine/probe", json=body)
        missing = await client.post("/engine/probe", json=body | {"base_model": "other"})
        malformed = await client.post("/engine/probe", json={})
        wrong_method = await client.get("/engine/probe")
    async with stack.gateway.client("acme") as client:
        stranger = await client.post("/engine/probe", json=body)
    async with stack.gateway.client(SECRET) as client:
        engine = await client.post("/engine/probe", json=body)
    assert good.json()["finite"] is True
    assert (missing.status_code, stranger.status_code, engine.status_code) == (503, 401, 401)
    assert (malformed.status_code, wrong_method.status_code) == (400, 405)
    assert wrong_method.headers["allow"] == "POST"


async def test_an_engine_says_why_it_did_not_start(stack: Rig) -> None:
    said = {"engine": "e9", "cause": "vLLM did not start: no weights"}
    hub = stack.gateway.hub
    for other in ("acme", WORKER_TOKEN):
        async with stack.gateway.client(other) as client:
            assert (await client.post("/engine/failed", json=said)).status_code == 401
    async with stack.gateway.client(SECRET) as client:
        assert (await client.get("/engine/failed")).status_code == 405
        assert (await client.post("/engine/failed", json={})).status_code == 400
        assert (await client.post("/engine/failed", json=said)).status_code == 200
    (failure,) = hub.start_failures.recent()
    assert (failure.engine, failure.cause) == ("e9", said["cause"])


async def test_draining_finishes_what_runs_and_refuses_what_comes(stack: Rig) -> None:
    slow(stack)
    async with stack.gateway.client() as client:
        running = asyncio.create_task(
            client.post("/v1/chat/completions", json=chat(max_tokens=40, ignore_eos=True))
        )
        await until(lambda: stack.engine.stats().running)
        await stack.agent.drain(10)
        assert (await running).json()["usage"]["completion_tokens"] == 40
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 503


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_an_engine_without_a_credential_is_turned_away(stack: Rig, token: str) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    url = stack.gateway.url.replace("http", "ws")
    headers = {"Authorization": f"Bearer {token}"}
    with pytest.raises(InvalidStatus, match="403"):
        await connect(f"{url}/ws/engine", additional_headers=headers)
    with pytest.raises(InvalidStatus, match="403"):
        await connect(
            f"{url}/ws/elsewhere", additional_headers={"Authorization": f"Bearer {SECRET}"}
        )


# --- limits, journal and ledger ------------------------------------------------------------------


async def test_every_answer_says_what_is_left_of_the_limits(stack: Rig) -> None:
    stack.gateway.limits.tokens_left = 1000
    async with stack.gateway.client() as client:
        good = await client.post("/v1/chat/completions", json=chat(max_tokens=10))
        bad = await client.post("/v1/chat/completions", json=chat("nothing"))
        models = await client.get("/v1/models")
        lost = await client.get("/v1/nowhere")
    assert good.headers["x-ratelimit-limit-requests"] == "100"
    assert good.headers["x-ratelimit-remaining-tokens"] == "990"
    assert good.headers["x-ratelimit-reset-tokens"] == "1m30s"
    for answer in (bad, models):
        assert answer.headers["x-ratelimit-remaining-tokens"] == "990"
    assert "x-ratelimit-limit-requests" not in lost.headers


async def test_a_limit_is_a_429_that_says_when_to_retry_and_starts_nothing(stack: Rig) -> None:
    stack.gateway.limits.tokens_left = 5
    async with stack.gateway.client() as client:
        refused = await client.post("/v1/chat/completions", json=chat(max_tokens=10))
        good = await client.post("/v1/chat/completions", json=chat(max_tokens=5))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert good.status_code == 200
    (entry,) = await stack.gateway.ledger.settled()
    assert good.headers["x-request-id"] == f"req_{entry.id}"


async def test_clients_are_told_not_to_try_again_what_cannot_help(stack: Rig) -> None:
    """OpenAI's SDKs would retry after any 409 or 429."""
    stack.gateway.limits.tokens_left = 5
    async with stack.gateway.client() as client:
        wait = await client.post("/v1/chat/completions", json=chat(max_tokens=10))
        stack.gateway.limits.refusal = InsufficientQuota("Budget exhausted for tests.")
        never = await client.post("/v1/chat/completions", json=chat(max_tokens=10))
    assert "x-should-retry" not in wait.headers
    assert never.headers["x-should-retry"] == "false"
    assert "retry-after" not in never.headers


async def test_what_could_not_be_started_is_given_back() -> None:
    async with gateway() as one, one.client() as client:
        refused = await client.post("/v1/chat/completions", json=chat())
        assert refused.status_code == 503
        assert len(one.limits.released) == 1
        assert not one.limits.open


async def test_limits_are_settled_with_what_was_used(stack: Rig) -> None:
    async with stack.gateway.client() as client:
        await client.post("/v1/chat/completions", json=chat(max_tokens=7))
    ((used),) = stack.gateway.limits.settled.values()
    (entry,) = await stack.gateway.ledger.settled()
    assert used == entry.usage
    assert not stack.gateway.limits.open


async def test_prompts_are_estimated_by_what_earlier_ones_had(stack: Rig) -> None:
    limits = stack.gateway.limits
    async with stack.gateway.client() as client:
        for _ in range(60):
            answer = await client.post(
                "/v1/chat/completions", json=chat(content=LONG, max_tokens=1)
            )
        slow(stack)
        body = chat(content=LONG, max_tokens=1000, ignore_eos=True)
        request = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until(lambda: limits.open)
        (ask,) = limits.open.values()
        request.cancel()
        await asyncio.wait([request])
    true = answer.json()["usage"]["prompt_tokens"]
    assert abs(ask.prompt_tokens - true) <= 0.25 * true
    await drained(stack)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_that_outgrows_its_limit_ends_as_too_long_and_is_billed(
    stack: Rig, n: int
) -> None:
    slow(stack)
    stack.gateway.limits.tokens_left = 40
    async with AsyncOpenAI(base_url=f"{stack.gateway.url}/v1", api_key="acme") as client:
        stream = await client.chat.completions.create(
            model=MODEL.name,
            messages=[{"role": "user", "content": LONG}],
            stream=True,
            n=n,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
    ends = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert [(end.index, end.finish_reason) for end in ends] == [(i, "length") for i in range(n)]
    for end in ends:
        details = end.model_extra["finish_details"]  # type: ignore[index]
        assert details["code"] == "rate_limit_exceeded"
    (entry,) = await stack.gateway.ledger.settled()
    assert entry.finish_reason == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert 40 <= usage.completion_tokens == entry.usage.completion_tokens
    assert entry.usage.completion_tokens == stack.engine.stats().completion_tokens


async def test_an_answer_that_does_not_stream_is_bounded_by_what_is_left(stack: Rig) -> None:
    stack.gateway.limits.tokens_left = 20
    async with stack.gateway.client() as client:
        body = chat(ignore_eos=True)
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["usage"]["completion_tokens"] == 20
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "20 tokens" in answer["choices"][0]["finish_details"]["message"]


async def test_each_choice_that_a_limit_ended_says_so(stack: Rig) -> None:
    stack.gateway.limits.tokens_left = 41
    async with stack.gateway.client() as client:
        body = chat(ignore_eos=True, n=2)
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["usage"]["completion_tokens"] == 40
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 2
    for choice in answer["choices"]:
        assert choice["finish_details"]["code"] == "rate_limit_exceeded"


class Verbose(SyntheticEngine):
    """Answers requests that do not stream with more bytes than a frame of the engine link may
    have."""

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        streams = work.body.get("stream")
        async with aclosing(super().generate(work)) as outputs:
            async for output in outputs:
                if not streams:
                    output = msgspec.structs.replace(output, response=bytes(MAX_FRAME_BYTES))
                yield output


async def test_an_answer_too_long_for_the_link_fails_alone(tmp_path: Path) -> None:
    engine = Verbose(MODEL, behaviour=SLOW)
    async with gateway() as one, agent_on(engine, tmp_path, [one]), one.client() as client:
        async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as other:
            chunks = lines(other)
            await anext(chunks)
            refused = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "stream"
            assert [chunk async for chunk in chunks][-1] == "[DONE]"
        entries = await one.ledger.settled(2)
    assert sorted(entry.usage.completion_tokens for entry in entries)[0] == 1, "it was generated"


async def test_a_refusal_tells_what_is_left_of_the_adapters_limits_too(stack: Rig) -> None:
    stack.adapter("acme", "support")
    one = stack.gateway
    one.keys.limits = (Limits("a1", "adapter `support`", {"tokens_per_minute": 5}),)
    one.limits.tokens_left = 0
    async with one.client() as client:
        refused = await client.post("/v1/chat/completions", json=chat("support", max_tokens=9))
        unknown = await client.post("/v1/chat/completions", json=chat("who", max_tokens=9))
    assert (refused.status_code, unknown.status_code) == (429, 404)
    assert one.limits.looked == [one.keys.limits, ()]
    assert {"x-ratelimit-remaining-tokens"} <= refused.headers.keys() & unknown.headers.keys()


async def test_an_answer_that_fills_the_context_was_ended_by_no_limit(stack: Rig) -> None:
    stack.gateway.limits.tokens_left = 100_000
    longest = MODEL.max_model_len
    async with stack.gateway.client() as client:
        body = chat(content="long" * (longest - 50), ignore_eos=True)
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert answer["usage"]["total_tokens"] == longest
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "finish_details" not in answer["choices"][0]


async def test_a_ledger_that_is_away_gets_everything_later(stack: Rig) -> None:
    stack.gateway.ledger.away = True
    async with stack.gateway.client() as client:
        for _ in range(5):
            await client.post("/v1/chat/completions", json=chat(max_tokens=1))
        await until(lambda: reported(stack).unbilled.requests == 5)
        stack.gateway.ledger.away = False
        for link in list(stack.gateway.hub._links.values()):
            link.break_off(EngineLost("as if the gateway had been restarted"))
        assert len(await stack.gateway.ledger.settled(5)) == 5
        await until(lambda: reported(stack).unbilled.requests == 0)
    totals = reported(stack)
    assert (totals.journaled.requests, totals.journaled.completion_tokens) == (5, 5)
    assert totals.unjournaled_tokens == 0


async def test_an_engine_with_too_much_unbilled_takes_no_more(tmp_path: Path) -> None:
    async with rig(tmp_path, max_unbilled=2) as stack:
        stack.gateway.ledger.away = True
        async with stack.gateway.client() as client:
            for _ in range(2):
                good = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
                assert good.status_code == 200
            refused = await client.post("/v1/chat/completions", json=chat(max_tokens=1))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "ledger" in refused.json()["error"]["message"]


def reported(stack: Rig) -> EngineStats:
    """The statistics that the agent reports once a second."""
    return stack.gateway.ledger.reported.get("engine-1", EngineStats())
