"""What a gateway measures of its requests."""

from __future__ import annotations

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inference.errors import (
    BY_CODE,
    ClientDisconnected,
    EngineLost,
    GenerationTimeout,
    InferenceError,
    InvalidRequest,
    NoEngine,
    RateLimitExceeded,
)
from inference.gateway.measuring.busiest import MAX_SEEN, PERIOD_S, Busiest
from inference.gateway.measuring.histogram import Histogram, HistogramExample
from inference.gateway.measuring.measures import (
    FORGET_S,
    MAX_ENGINES,
    OF_ENGINES,
    OTHER,
    EndedRequest,
    Measures,
    code_of,
    outcome_of,
)
from inference.gateway.requests.held import Holding
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.wire import Delta, Done, Fault
from inference.operations.structure import StructureOutcome
from inference.tracing import Tracer
from tests.inference.played import benched
from tests.inference.rig import until
from tests.inference.samples import BASE

pytestmark = pytest.mark.pure

USAGE = Usage(7, 3, 5, queue_s=0.3, load_s=0.2, ttft_s=0.6, total_s=2.0)
DONE = EndedRequest(USAGE, reported=True, has_adapter=True, completed=True, ttft_s=0.7, total_s=2.1)


def counted(histogram: Histogram) -> float:
    return histogram.buckets()[-1][1]


def totals(measures: Measures) -> dict[str, tuple[float, float]]:
    """By histogram of the only engine: the number of values and their sum."""
    return {
        name: (counted(one), one.total)
        for name in OF_ENGINES
        for _, _, one in measures.histograms(name)
    }


def test_a_request_that_ended_is_measured_once_by_each_histogram() -> None:
    measures = Measures()
    measures.ended(measures.engine("base", "e1"), DONE)
    assert totals(measures) == {
        "queue_seconds": (1, 0.3),
        "adapter_load_seconds": (1, 0.2),
        "time_to_first_token_seconds": (1, 0.7),
        "inter_token_seconds": (0, 0),
        "end_to_end_seconds": (1, 2.1),
        "prompt_tokens": (1, 7),
        "output_tokens": (1, 5),
    }


def test_figures_that_were_not_reported_are_not_measured() -> None:
    measures = Measures()
    lost = msgspec.structs.replace(
        DONE, usage=Usage(), reported=False, completed=False, ttft_s=None
    )
    measures.ended(measures.engine("base", "e1"), lost)
    assert set(totals(measures).values()) == {(0, 0)}


def test_a_request_without_an_adapter_waited_for_none() -> None:
    measures = Measures()
    plain = msgspec.structs.replace(DONE, has_adapter=False, completed=False)
    measures.ended(measures.engine("base", "e1"), plain)
    found = totals(measures)
    assert found["adapter_load_seconds"] == found["end_to_end_seconds"] == (0, 0)
    assert found["queue_seconds"] == (1, 0.3)


def test_a_traced_request_is_an_example() -> None:
    measures = Measures()
    traced = msgspec.structs.replace(DONE, trace_id="t")
    on = measures.engine("base", "e1")
    measures.ended(on, traced)
    (example,) = [one for _, _, one in on.time_to_first_token_seconds.buckets() if one]
    assert isinstance(example, HistogramExample) and (example.trace_id, example.value) == ("t", 0.7)


def test_engines_beyond_the_bound_share_one_series() -> None:
    measures = Measures()
    for number in range(MAX_ENGINES + 5):
        measures.ended(measures.engine("base", f"e{number}"), DONE)
    assert len(measures.engines) == MAX_ENGINES + 1
    assert counted(measures.engines["base", OTHER].queue_seconds) == 5
    measures.counted("base", f"e{MAX_ENGINES + 1}", "completed", "stop")
    assert measures.requests["base", OTHER, "completed", "stop"] == 1


def test_the_figures_of_an_engine_outlive_it_by_some_scrapes() -> None:
    measures = Measures()
    for id in ("stays", "leaves"):
        measures.engine("base", id)
        measures.counted("base", id, "completed", "stop")
    measures.counted("", "", "refused", "invalid_request")
    there = {("base", "stays"), ("base", "leaves")}
    measures.forget(there, 1.0)
    measures.forget({("base", "stays")}, FORGET_S)
    assert set(measures.engines) == there
    measures.forget({("base", "stays")}, FORGET_S + 2)
    assert set(measures.engines) == {("base", "stays")}
    assert {key[1] for key in measures.requests} == {"stays", ""}


def test_the_figures_of_a_base_model_outlive_its_engines() -> None:
    measures = Measures()
    for base_model in ("stays", "leaves"):
        measures.engine(base_model, "e")
        measures.engines_lost[base_model] += 1
        measures.held(base_model, 1.0)
    measures.held("never there", 1.0)
    there = {("stays", "e")}
    measures.forget(there, 1.0)
    measures.forget(there, FORGET_S)
    assert set(measures.hold_seconds) == {"stays", "leaves", "never there"}
    measures.forget(there, FORGET_S + 2)
    assert set(measures.hold_seconds) == set(measures.engines_lost) == {"stays", "leaves"}
    measures.forget(there, 2 * FORGET_S + 1)
    assert set(measures.hold_seconds) == set(measures.engines_lost) == {"stays"}
    measures.held("leaves", 1.0)
    measures.forget(there, 2 * FORGET_S + 2)
    assert set(measures.hold_seconds) == {"stays", "leaves"}


def test_an_engine_that_was_never_seen_by_a_scrape_stays_as_long() -> None:
    measures = Measures()
    measures.engine("base", "brief")
    measures.forget((), 5.0)
    measures.forget((), FORGET_S)
    assert measures.engines
    measures.forget((), FORGET_S + 6)
    assert not measures.engines


def test_rare_outcomes_are_exported_as_zero() -> None:
    measures = Measures()
    measures.engine("base", "e1")
    assert measures.requests["base", "e1", "failed", "engine_lost"] == 0
    assert ("base", "e1", "failed", "engine_lost") in measures.requests
    assert ("", "", "refused", "no_engine_available") in measures.requests
    assert "base" in measures.engines_lost
    measures.counted("base", "e1", "failed", "engine_lost")
    measures.engine("base", "e1")
    assert measures.requests["base", "e1", "failed", "engine_lost"] == 1


@pytest.mark.parametrize(
    ("error", "reason", "begun", "outcome", "code"),
    [
        (None, "stop", True, "completed", "stop"),
        (None, "length", True, "completed", "length"),
        (None, "whatever an engine makes up", True, "completed", "other"),
        (None, "cancelled", True, "cancelled", "cancelled"),
        (ClientDisconnected(), "cancelled", True, "cancelled", "cancelled"),
        (InvalidRequest(), None, True, "refused", "invalid_request"),
        (RateLimitExceeded(), None, False, "refused", "rate_limit_exceeded"),
        (NoEngine(), None, False, "refused", "no_engine_available"),
        (NoEngine(), None, True, "failed", "no_engine_available"),
        (EngineLost(), None, True, "failed", "engine_lost"),
        (GenerationTimeout(), None, False, "failed", "generation_timeout"),
        (InferenceError(), None, True, "failed", "internal_error"),
    ],
)
def test_how_a_request_ended(
    error: InferenceError | None, reason: str | None, begun: bool, outcome: str, code: str
) -> None:
    assert outcome_of(error, reason, begun=begun) == outcome
    assert code_of(error, reason) == code


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_error_is_an_outcome(code: str) -> None:
    outcome = outcome_of(BY_CODE[code]("no"), None, begun=False)
    assert outcome in ("cancelled", "refused", "failed")


def test_limits_are_told_apart_by_kind_and_scope() -> None:
    measures = Measures()
    error = RateLimitExceeded()
    measures.refused(error)
    error.limit_kind, error.limit_scope = "requests_per_minute", "key"
    measures.refused(error)
    assert measures.refusals == {("requests_per_minute", "key"): 1}


# --- on the way of a request ---------------------------------------------------------------------


async def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    async with benched() as bench:
        engine = await bench.join()
        stream = bench.submit()
        await engine.asked()
        on = bench.hub.measures.engines["base", "engine-1"]
        engine.say(wire.Step([Delta("r1", "a", 1, [], 7, 3)]))
        await stream.read()
        assert counted(on.inter_token_seconds) == 0, "the first has no token before it"
        engine.say(wire.Step([Delta("r1", "bcd", 3)]))
        await stream.read()
        assert counted(on.inter_token_seconds) == 3
        engine.say(Done("r1", Usage(7, 3, 4, queue_s=0.1), "stop"))
        await stream.read()
    found = totals(bench.hub.measures)
    assert found["queue_seconds"] == (1, 0.1)
    assert found["output_tokens"] == (1, 4)
    assert found["time_to_first_token_seconds"][0] == found["end_to_end_seconds"][0] == 1
    assert found["adapter_load_seconds"][0] == 0


async def test_streams_that_go_on_with_each_frame_are_measured_like_others() -> None:
    async with benched() as bench:
        engine = await bench.join()
        streams = [bench.submit(id) for id in ("r1", "r2", "r3")]
        for _ in streams:
            await engine.asked()
        came = list[float]()
        for frame in (["r1", "r2", "r3"], ["r1", "r2"], ["r1", "r3"]):
            engine.say(wire.Step([Delta(id, "a", 1) for id in frame]))
            await streams[0].read()
            assert streams[0].attempt is not None
            came.append(streams[0].attempt.last_output_at)
        first, second, third = came
        on = bench.hub.measures.engines["base", "engine-1"].inter_token_seconds
        assert counted(on) == 4
        gaps = (second - first, second - first, third - second, third - first)
        assert on.total == pytest.approx(sum(gaps))


async def test_a_held_request_says_how_long_it_was_held() -> None:
    async with benched(holding=Holding(60.0)) as bench:
        stream = bench.submit()
        assert bench.hub.held and not bench.hub.measures.hold_seconds
        engine = await bench.join()
        await engine.asked()
        assert counted(bench.hub.measures.hold_seconds["base"]) == 1
        assert not bench.hub.held and stream.request.held_s > 0
        bench.submit("r2", target=BASE)
        assert counted(bench.hub.measures.hold_seconds["base"]) == 1, "it was not held"


async def test_a_request_that_is_given_up_was_held_too() -> None:
    async with benched(holding=Holding(60.0)) as bench:
        stream = bench.submit()
        stream.cancel("cancelled")
        assert counted(bench.hub.measures.hold_seconds["base"]) == 1
        assert not bench.hub.measures.engines


async def test_a_request_is_told_once_when_its_figures_are_final() -> None:
    async with benched() as bench:
        engine = await bench.join()
        stream, told = bench.submit(), list[str]()
        await engine.asked()
        stream.on_settled(lambda: told.append("then"))
        engine.say(Done("r1", Usage(7, 3, 4), fault=Fault.of(InvalidRequest("no"))))
        await until(lambda: stream.done)
        stream.on_settled(lambda: told.append("later"))
    assert told == ["then", "later"]


async def test_an_engine_that_said_that_it_ends_is_not_lost() -> None:
    async with benched() as bench:
        for id in ("ends", "dies"):
            engine = await bench.join(id)
            if id == "ends":
                engine.say(wire.Drain())
            engine.hang_up()
            await bench.end()
        assert bench.hub.measures.engines_lost == {"base": 1}
        assert len(bench.hub.stopped) == 1


async def test_holding_and_each_attempt_are_parts_of_its_trace() -> None:
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    root = Tracer(provider).begin("chat", "", 0.0)
    assert root is not None
    async with benched(holding=Holding(60.0)) as bench:
        stream = bench.submit(trace=root)
        first = await bench.join("a", run="a")
        asked = await first.asked()
        assert asked.trace.startswith(f"00-{root.trace_id}-")
        first.say(wire.Step([Delta("r1", "Hi", 1, [], 7, 3, ids={0: [1]})]))
        await stream.read()
        second = await bench.join("b", run="b")
        first.hang_up()
        again = await second.asked()
        assert again.attempt == 2 and again.trace != asked.trace
        second.say(Done("r1", Usage(7, 3, 2), "stop", attempt=2))
        await stream.read()
        on = bench.hub.measures.engines["base", "b"]
    spans = kept.get_finished_spans()
    assert [span.name for span in spans] == ["hold", "attempt", "attempt"]
    attributes = [dict(span.attributes or {}) for span in spans[1:]]
    assert attributes == [
        {"lorikeet.engine": "a", "lorikeet.attempt": 1, "error.type": "lost"},
        {"lorikeet.engine": "b", "lorikeet.attempt": 2},
    ]
    ids = {span.parent.span_id for span in spans if span.parent}
    assert {f"{id:016x}" for id in ids} == {root.traceparent.split("-")[2]}
    examples = [one for _, _, one in on.end_to_end_seconds.buckets() if one]
    assert [one.trace_id for one in examples] == [root.trace_id]


# --- the busiest ---------------------------------------------------------------------------------


def test_tenants_are_named_only_if_configured() -> None:
    busiest = Busiest(0)
    busiest.note("acme", "completed", 5, 6, 0.0)
    assert not busiest.requests and not busiest.tokens


def test_structured_answers_are_counted_from_zero_until_their_base_model_is_gone() -> None:
    measures = Measures()
    measures.engine("base", "engine-1")
    measures.checked("base", StructureOutcome.MALFORMED)
    assert measures.structures == {
        ("base", StructureOutcome.CONFORMED): 0,
        ("base", StructureOutcome.MALFORMED): 1,
        ("base", StructureOutcome.UNCHECKED): 0,
    }
    for now in (1.0, FORGET_S + 2, FORGET_S + 3, 2 * FORGET_S + 5):
        measures.forget([], now)
    assert not measures.structures


def test_the_first_are_named_until_others_are_busier() -> None:
    busiest = Busiest(1)
    busiest.note("acme", "completed", 5, 6, 1.0)
    busiest.note("globex", "completed", 50, 60, 2.0)
    assert busiest.tokens == {
        ("acme", "prompt"): 5, ("acme", "output"): 6, ("other", "prompt"): 50,
        ("other", "output"): 60,
    }  # fmt: skip
    busiest.note("globex", "completed", 1, 1, PERIOD_S + 1)
    assert busiest.requests == {("globex", "completed"): 1, ("other", "completed"): 1}
    assert busiest.tokens["other", "output"] == 60, "counters never sink"


def test_a_named_tenant_stays_while_there_is_room() -> None:
    busiest = Busiest(2)
    busiest.note("acme", "completed", 5, 6, 1.0)
    busiest.note("globex", "completed", 5, 6, PERIOD_S + 1)
    busiest.note("globex", "refused", 0, 0, 2 * PERIOD_S + 1)
    assert busiest.requests == {
        ("acme", "completed"): 1, ("globex", "completed"): 1, ("globex", "refused"): 1,
    }  # fmt: skip


def test_memory_for_tenants_is_bounded() -> None:
    busiest = Busiest(1)
    for number in range(MAX_SEEN + 5):
        busiest.note(f"t{number}", "completed", 1, 1, 1.0)
    assert len(busiest.requests) == 2
    assert busiest.requests["other", "completed"] == MAX_SEEN + 4
