"""Traces of requests, as a collector receives them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from inference import tracing
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.process.environ import BadSetting
from inference.tracing import Tracer, timed
from tests.inference.rig import SLOW, Rig, agent_on, chat, gateway, until
from tests.inference.samples import MODEL
from tests.otlp import Collected, Collector, collector

CHAT = "/v1/chat/completions"
SECRET = "what the weather is like in Cusco"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def started(service: str, instance: str = "i1") -> Tracer:
    tracer = tracing.start(service, instance)
    assert tracer is not None
    return tracer


@dataclass
class Traced:
    """A gateway and an engine with tracers, and the collector that receives their spans."""

    rig: Rig
    tracers: list[Tracer]
    found: Collector

    async def sent(self) -> Collector:
        """Wait until all requests have ended, close the tracers and return the collector. No span
        is made after that."""
        await until(lambda: not self.rig.gateway.hub.in_flight and not self.rig.agent._jobs)
        await self.close()
        return self.found

    async def close(self) -> None:
        while self.tracers:
            await asyncio.to_thread(self.tracers.pop().close)


@pytest.fixture
async def traced(tmp_path: Path, collected: Collector) -> AsyncIterator[Traced]:
    ours, engines = started("lorikeet-gateway", "g1"), started("lorikeet-engine", "engine-1")
    engine = SyntheticEngine(MODEL)
    async with (
        gateway(tracer=ours) as one,
        agent_on(engine, tmp_path, [one], tracer=engines) as made,
    ):
        traced = Traced(made, [ours, engines], collected)
        yield traced
        await traced.close()
    await engine.close()


def within(part: Collected, whole: Collected) -> bool:
    """Whether `part` lies within `whole`, to a millisecond, because each process has its own
    clock."""
    return whole.began - 10**6 <= part.began <= part.ended <= whole.ended + 10**6


async def test_a_request_is_one_trace_from_its_client_to_the_engine(traced: Traced) -> None:
    ref = traced.rig.adapter("acme", "support")
    async with traced.rig.gateway.client() as client:
        answer = await client.post(
            CHAT,
            json=chat("support", SECRET, max_tokens=5),
            headers={"traceparent": TRACEPARENT},
        )
    assert answer.status_code == 200
    found = await traced.sent()
    assert {span.trace for span in found.spans} == {TRACE}
    (root,) = found.named("chat support")
    assert (root.parent, root.service, root.instance) == (PARENT, "lorikeet-gateway", "g1")
    assert found.under(root) == ["authenticate", "read body", "limits", "attempt"]
    (entry,) = await traced.rig.gateway.ledger.settled()
    assert entry.account.trace_id == TRACE, "so that the request's page tells it"
    (attempt,) = found.named("attempt")
    assert found.under(attempt) == ["fetch adapter", "queue", "load adapter", "prefill", "decode"]
    for name in found.under(attempt):
        (part,) = found.named(name)
        assert (part.service, part.instance) == ("lorikeet-engine", "engine-1")
        assert within(part, attempt) and within(part, root)
    assert not any(span.is_error for span in found.spans)
    usage = answer.json()["usage"]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "lorikeet",
        "gen_ai.request.model": "support",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.model": "support",
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 5,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": CHAT,
        "lorikeet.surface": "api",
        "lorikeet.tenant": "acme",
        "lorikeet.key": "of-acme",
        "lorikeet.base_model": MODEL.name,
        "lorikeet.adapter_version": ref.digest[:12],
        "lorikeet.engine": "engine-1",
        "lorikeet.attempts": 1,
        "lorikeet.outcome": "completed",
    }
    id = root.attributes.pop("lorikeet.request_id")
    assert root.attributes == expected
    assert attempt.attributes == {"lorikeet.engine": "engine-1", "lorikeet.attempt": 1}
    assert found.named("decode")[0].attributes == {
        "lorikeet.request_id": id,
        "lorikeet.attempt": 1,
    }


async def test_no_span_has_content(traced: Traced) -> None:
    async with traced.rig.gateway.client() as client:
        for fields in ({}, {"stream": True}, {"temperature": SECRET}):
            await client.post(CHAT, json=chat(content=SECRET, max_tokens=4) | fields)
        await client.post(
            "/v1/completions", json={"model": MODEL.name, "prompt": SECRET, "max_tokens": 4}
        )
    found = await traced.sent()
    assert len({span.trace for span in found.spans}) == 4
    assert found.raw and b"Cusco" not in found.raw
    assert found.named("text_completion base")


async def test_a_refused_request_says_where_it_ended(traced: Traced) -> None:
    async with traced.rig.gateway.client("nobody") as client:
        await client.post(CHAT, json=chat())
    found = await traced.sent()
    (root,) = found.named("chat")
    assert root.is_error and root.parent == "" and found.under(root) == ["authenticate"]
    assert root.attributes["error.type"] == "invalid_api_key"
    (part,) = found.named("authenticate")
    assert part.is_error and part.attributes["error.type"] == "invalid_api_key"


async def test_a_client_that_goes_away_leaves_a_whole_trace(traced: Traced) -> None:
    traced.rig.engine.behaviour = SLOW  # type: ignore[attr-defined]
    async with traced.rig.gateway.client() as client:
        async with client.stream("POST", CHAT, json=chat(max_tokens=500, stream=True)) as answer:
            async for _ in answer.aiter_lines():
                break
    found = await traced.sent()
    (root,) = found.named("chat base")
    assert root.attributes["lorikeet.outcome"] == "cancelled"
    assert root.attributes["gen_ai.usage.output_tokens"] > 0
    (attempt,) = found.named("attempt")
    assert found.under(attempt) == ["queue", "prefill", "decode"]


async def test_a_client_may_say_that_it_traces_nothing(traced: Traced) -> None:
    async with traced.rig.gateway.client() as client:
        header = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        await client.post(CHAT, json=chat(max_tokens=2), headers=header)
        await client.post(CHAT, json=chat(max_tokens=2), headers={"traceparent": "nonsense"})
    found = await traced.sent()
    assert {span.trace for span in found.spans}.isdisjoint({TRACE})
    assert len(found.named("chat base")) == 1


async def test_a_traced_request_is_an_example_in_the_metrics(traced: Traced) -> None:
    async with traced.rig.gateway.client() as client:
        header = {"traceparent": TRACEPARENT}
        await client.post(CHAT, json=chat(max_tokens=2), headers=header)
    on = traced.rig.gateway.hub.measures.engines[MODEL.name, "engine-1"]
    examples = [one for _, _, one in on.end_to_end_seconds.buckets() if one is not None]
    assert [one.trace_id for one in examples] == [TRACE]


# --- settings ------------------------------------------------------------------------------------


def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing.start("lorikeet-gateway", "g1") is None
    for name, value in (("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")):
        with monkeypatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            patch.setenv(name, value)
            assert tracing.start("lorikeet-gateway", "g1") is None


def test_nothing_of_the_library_is_imported_while_it_is_off() -> None:
    code = (
        "import sys, inference.agent.__main__, inference.gateway.http;"
        "from inference import tracing; assert tracing.start('a', 'b') is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
    ],
)
def test_unsupported_settings_fail_at_start(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    with pytest.raises(BadSetting, match="OTEL_"):
        tracing.start("lorikeet-gateway", "g1")


def test_opentelemetrys_own_settings_hold(
    collected: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collected.url}/v1/traces")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    tracer = started("lorikeet-gateway")
    tracer.note(TRACEPARENT, "queue", 1.0, 3.5, {"lorikeet.attempt": 1})
    tracer.close()
    (span,) = collected.spans
    assert (span.service, span.parent, span.ended - span.began) == ("ours", PARENT, 2.5e9)
    assert collected.headers[0]["authorization"] == "Bearer secret"


def test_an_unresponsive_collector_delays_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
    monkeypatch.setattr(tracing, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracer = started("lorikeet-gateway")
        tracer.note(TRACEPARENT, "queue", 1.0, 2.0, {})
        tracer.close()
        sending = [one for one in threading.enumerate() if one.name.startswith("OtelBatch")]
    assert sending, "it still waits, and nobody waits for it"
    for thread in sending:
        thread.join()


def test_a_part_has_the_code_of_what_ended_it(collected: Collector) -> None:
    tracer = started("lorikeet-gateway")
    root = tracer.begin("chat", "", 0.0)
    assert root is not None
    with pytest.raises(ZeroDivisionError), timed(root, "limits"):
        raise ZeroDivisionError
    root.end()
    tracer.close()
    assert collected.named("limits")[0].attributes == {"error.type": "ZeroDivisionError"}
