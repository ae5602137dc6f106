"""The gateway's end of the link, against an engine that the test plays frame by frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from inference.errors import (
    AdapterLoadFailed,
    ApiKeyRevoked,
    EngineLost,
    InferenceError,
    InvalidRequest,
    NoEngine,
    Overloaded,
    RateLimitExceeded,
)
from inference.gateway import hub
from inference.gateway.fleet.engine_link import SILENT_S
from inference.gateway.measuring.content import RequestContents
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.stream import Stream
from inference.gateway.routing.engine_state import Needs
from inference.gateway.structures.recording import StructureRecording
from inference.interfaces.directory import TokenPrice
from inference.interfaces.limiter import Reservation, ReservationRequest
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import EngineStats, ModelInfo
from inference.link.prefixes import Prefix
from inference.link.wire import Delta, Done, Fault, Frame, UsageAck, UsageReport
from inference.operations.structure import StructureOutcome
from tests.inference.gateway.structures.test_recording import FORMAT, Noted
from tests.inference.played import Bench, benched, entry, given
from tests.inference.rig import until
from tests.inference.samples import BASE, GRANT, MODEL, REF

pytestmark = pytest.mark.pure

NEWER = wire.PROTOCOL_VERSION + 1


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched() as bench:
        yield bench


@asynccontextmanager
async def reading(stream: Stream) -> AsyncIterator[asyncio.Task[Delta | Done]]:
    task = asyncio.create_task(stream.read())
    yield task
    task.cancel()


async def test_a_request_from_submit_to_its_end(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    submitted = await engine.hear()
    assert isinstance(submitted, wire.Submit)
    assert (submitted.tenant, submitted.salt, submitted.model) == ("acme", "salt", "base")
    engine.say(wire.Step([Delta("r1", "Hel", 1, [], 7, 2)]))
    assert await stream.read() == Delta("r1", "Hel", 1, [], 7, 2)
    usage = Usage(prompt_tokens=7, cached_tokens=2, completion_tokens=2)
    engine.say(wire.Step([Delta("r1", "lo", 1)]))
    engine.say(Done("r1", usage, "stop"))
    assert await stream.read() == Delta("r1", "lo", 1)
    assert await stream.read() == Done("r1", usage, "stop")
    assert bench.limits.settled == {"r1": usage}
    assert (submitted.account.tenant_id, submitted.account.key_id) == (1, 1)
    assert (submitted.account.base_model, submitted.lane) == ("base", "batch")
    await bench.hub.drained()


async def test_who_watches_a_request_hears_what_it_waits_for(bench: Bench) -> None:
    engine = await bench.join()
    heard: list[object] = []
    watched, plain = bench.submit("r1", watch=heard.append), bench.submit("r2")
    asked = [await engine.hear(), await engine.hear()]
    assert [one.watched for one in asked if isinstance(one, wire.Submit)] == [True, False]
    queued, prefill = wire.Wait("r1", "queued", 3), wire.Wait("r1", "prefill")
    engine.say(wire.Waits([queued, wire.Wait("r2", "queued", 4), wire.Wait("gone", "queued", 1)]))
    engine.say(wire.Waits([prefill]))
    engine.say(wire.Step([Delta("r1", "Hi", 1), Delta("r2", "Hi", 1)]))
    engine.say(wire.Waits([queued]))  # too late, so it is ignored
    engine.say(Done("r1", Usage()))
    assert await watched.read() == Delta("r1", "Hi", 1)
    assert await watched.read() == Done("r1", Usage())
    assert await plain.read() == Delta("r2", "Hi", 1)
    assert heard == [queued, prefill]


async def test_a_slow_reader_gets_merged_deltas_and_holds_nobody_up(bench: Bench) -> None:
    engine = await bench.join()
    slow, fast = bench.submit("slow"), bench.submit("fast")
    for i in range(50):
        engine.say(wire.Step([Delta("slow", f"{i},", 1), Delta("fast", "x", 1)]))
        assert await fast.read() == Delta("fast", "x", 1)
    assert await slow.read() == Delta("slow", "".join(f"{i}," for i in range(50)), 50)


async def test_what_is_said_is_taken_up_from_its_beginning_to_its_end(bench: Bench) -> None:
    contents, keeps = RequestContents(), replace(GRANT, keeps_content=True)
    engine = await bench.join()
    stream = bench.submit(grant=keeps)
    stream.attach_capture(contents.begin("r1", keeps, "chat", b"{}"))
    engine.say(wire.Step([Delta("r1", "Hello", 1), Delta("r1", " there", 1)]))
    engine.say(Done("r1", Usage(3, 0, 2), "stop"))
    while isinstance(await stream.read(), Delta):
        pass
    (taken,) = contents.take(10, 1 << 20)
    assert taken.id == "r1" and b"Hello there" in taken.text


async def test_nothing_is_recorded_of_tenants_that_keep_no_content(bench: Bench) -> None:
    contents = RequestContents()
    engine = await bench.join()
    stream = bench.submit()
    stream.attach_capture(contents.begin("r1", GRANT, "chat", b"{}"))
    engine.say(wire.Step([Delta("r1", "Hello", 1)]))
    engine.say(Done("r1", Usage(3, 0, 1), "stop"))
    while isinstance(await stream.read(), Delta):
        pass
    assert contents.take(10, 1 << 20) == []


async def test_what_another_gateway_goes_on_with_is_taken_up_there(bench: Bench) -> None:
    contents, keeps = RequestContents(), replace(GRANT, keeps_content=True)
    engine = await bench.join()
    stream = bench.submit(grant=keeps)
    stream.attach_capture(contents.begin("r1", keeps, "chat", b"{}"))
    stream.end(Overloaded("elsewhere"), handed_over=True)
    engine.say(Done("r1", Usage(), "abort"))
    await until(lambda: stream.done)
    assert (contents.take(10, 1 << 20), contents.space.total) == ([], 0)


async def test_only_a_finished_answer_is_checked(bench: Bench) -> None:
    engine, checks = await bench.join(), Noted()
    for number, (done, checked) in enumerate([
        (Done("r", Usage(), "stop"), True), (Done("r", Usage(), "invalid_api_key"), False),
        (Done("r", Usage(), fault=Fault.of(InvalidRequest("bad"))), False),
    ]):  # fmt: skip
        id, found = f"r{number}", list[StructureOutcome | None]()
        stream = bench.submit(id)
        stream.attach_structure(None)
        stream.attach_structure(StructureRecording(checks, 1, FORMAT))
        engine.say(wire.Step([Delta(id, "Hello", 1)]))
        engine.say(msgspec.structs.replace(done, id=id))
        assert stream.structure is not None
        stream.structure.on_outcome(found.append)
        await until(found.__len__)
        assert found == [StructureOutcome.CONFORMED if checked else None]
    assert [one.text for one in checks.answers] == ["Hello"] and checks.room.total == 0


async def test_a_request_that_fails_raises_what_the_engine_said(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    engine.say(Done("r1", Usage(), fault=Fault.of(InvalidRequest("bad", param="n"))))
    with pytest.raises(InvalidRequest) as refused:
        await stream.read()
    assert refused.value.param == "n"
    assert bench.limits.settled == {"r1": Usage()}


async def test_a_request_that_the_engine_had_no_room_for_costs_nothing(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    engine.say(Done("r1", Usage(), fault=Fault.of(Overloaded("full", retry_after_s=2))))
    with pytest.raises(Overloaded):
        await stream.read()
    assert (bench.limits.released, bench.limits.settled) == (["r1"], {})


async def test_a_client_that_leaves_is_counted_what_the_engine_says(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    await engine.hear()
    engine.say(wire.Step([Delta("r1", "a", 1, [], 5, 0)]))
    await stream.read()
    stream.cancel("cancelled")
    stream.cancel("cancelled")
    assert await engine.hear() == wire.Cancel("r1", "cancelled")
    assert bench.limits.settled == {}
    engine.say(wire.Step([Delta("r1", "b", 1)]))
    engine.say(Done("r1", Usage(5, 0, 2), "cancelled"))
    await bench.hub.drained()
    assert bench.limits.settled == {"r1": Usage(5, 0, 2)}


async def test_cancelling_what_has_ended_says_nothing(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    await engine.hear()
    engine.say(Done("r1", Usage(), "stop"))
    await stream.read()
    stream.cancel("cancelled")
    stream.end(ApiKeyRevoked())
    bench.submit("r2")
    assert isinstance(await engine.hear(), wire.Submit)


async def test_an_engine_lost_in_mid_stream_counts_what_was_seen(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    engine.say(wire.Step([Delta("r1", "a", 3, [], 5, 4)]))
    await stream.read()
    engine.hang_up()
    with pytest.raises(EngineLost, match="engine-1"):
        await stream.read()
    seen = bench.limits.settled["r1"]
    assert seen is not None
    assert (seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens) == (5, 4, 3)
    with pytest.raises(NoEngine):
        bench.submit("r2")


async def test_an_engine_lost_before_its_first_word_leaves_the_estimate(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    engine.hang_up()
    with pytest.raises(EngineLost):
        await stream.read()
    assert bench.limits.settled == {"r1": None}


async def test_entries_are_acknowledged_when_the_ledger_has_them(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    await engine.hear()
    engine.say(Done("r1", Usage(5, 0, 2), "stop"))
    engine.say(UsageReport("journal-1", [entry()]))
    engine.say(wire.Drain())
    await stream.read()
    await until(lambda: bench.ledger.told)
    ((engine_id, journal, entries, written),) = bench.ledger.told
    assert (engine_id, journal, list(entries)) == ("engine-1", "journal-1", [entry()])
    written([("r1", 1)])
    assert await engine.hear() == UsageAck([("r1", 1)])


async def test_what_another_gateway_took_is_settled_by_who_hears_of_its_end(bench: Bench) -> None:
    engine = await bench.join()
    mine = bench.submit("mine")
    engine.say(Done("mine", Usage(5, 0, 1), "stop"))
    await mine.read()
    bench.limits.open["mine"] = bench.limits.open["theirs"] = ReservationRequest(1, 1, 1)
    engine.say(UsageReport("journal-1", [entry("mine"), entry("theirs", 3)]))
    await until(lambda: bench.ledger.told)
    assert "mine" in bench.limits.open
    assert bench.limits.settled["theirs"] == Usage(5, 0, 3)


async def test_the_price_that_was_reserved_travels_with_the_request(bench: Bench) -> None:
    engine = await bench.join()
    target = msgspec.structs.replace(BASE, price=TokenPrice(3, 2, 7))
    bench.hub.submit(
        AdmittedRequest(GRANT, target, Reservation("r1", None), "chat", b"{}", "batch", 9)
    )
    submitted = await engine.hear()
    assert isinstance(submitted, wire.Submit) and submitted.account.price == (3, 2, 7)


async def test_engines_are_told_what_to_keep_loaded(bench: Bench) -> None:
    early = await bench.join("early")
    bench.hub.set_pins({"base": [REF]})
    bench.hub.set_pins({"base": [REF], "other": [REF]})
    bench.hub.set_pins({})
    assert await early.hear() == wire.PinnedAdapters([given(REF)])
    assert await early.hear() == wire.PinnedAdapters([])
    bench.hub.set_pins({"base": [REF]})
    late = await bench.join("late")
    assert await late.hear() == wire.PinnedAdapters([given(REF)])


async def test_an_engine_hears_that_nothing_is_pinned_any_more_however_late(bench: Bench) -> None:
    """An earlier gateway, or this one before the link broke, may have told it otherwise."""
    early = await bench.join("early")
    bench.hub.set_pins({})
    assert await early.hear() == wire.PinnedAdapters([])
    late = await bench.join("late")
    assert await late.hear() == wire.PinnedAdapters([])


async def test_a_stream_asks_for_more_before_it_runs_out(bench: Bench) -> None:
    engine = await bench.join()
    bench.limits.tokens_left = 1000
    stream = bench.submit(output_tokens=200, grows=True)
    await engine.hear()
    engine.say(wire.Step([Delta("r1", "a", 150)]))
    await stream.read()
    await until(lambda: bench.limits.extensions)
    engine.say(wire.Step([Delta("r1", "b", 500)]))
    assert await stream.read() == Delta("r1", "b", 500)
    engine.say(Done("r1", Usage(5, 0, 650), "stop"))
    assert (await stream.read()).finish_reason == "stop"  # type: ignore[union-attr]
    assert stream.request.limited is None
    assert bench.limits.extensions == [1000]


async def test_a_stream_that_outgrows_its_limits_ends_as_too_long(bench: Bench) -> None:
    engine = await bench.join()
    bench.limits.tokens_left = 0
    stream = bench.submit(output_tokens=200, grows=True)
    await engine.hear()
    engine.say(wire.Step([Delta("r1", "a", 150)]))
    assert isinstance(await stream.read(), Delta)
    engine.say(wire.Step([Delta("r1", "b", 60)]))
    assert await stream.read() == Delta("r1", "b", 60)
    assert await engine.hear() == wire.Cancel("r1", "length")
    engine.say(wire.Step([Delta("r1", "never shown", 2)]))
    engine.say(Done("r1", Usage(5, 0, 212), "cancelled"))
    assert await stream.read() == Done("r1", Usage(5, 0, 212), "length")
    assert isinstance(stream.request.limited, RateLimitExceeded)
    assert bench.limits.settled["r1"] == Usage(5, 0, 212)


async def test_a_refusal_that_comes_after_the_client_left_changes_nothing(bench: Bench) -> None:
    engine = await bench.join()
    bench.limits.tokens_left = 0
    stream = bench.submit(output_tokens=200, grows=True)
    await engine.hear()
    stream.push(Delta("r1", "a", 210))
    stream.cancel("cancelled")
    assert await engine.hear() == wire.Cancel("r1", "cancelled")
    engine.say(Done("r1", Usage(5, 0, 210), "cancelled"))
    await bench.hub.drained()
    assert stream.request.limited is None
    assert bench.limits.settled["r1"] == Usage(5, 0, 210)


async def test_a_stream_goes_on_while_nobody_can_be_asked(bench: Bench) -> None:
    engine = await bench.join()
    bench.limits.away = True
    stream = bench.submit(output_tokens=200, grows=True)
    await engine.hear()
    for _ in range(3):
        engine.say(wire.Step([Delta("r1", "a", 100)]))
        assert isinstance(await stream.read(), Delta)
        await asyncio.sleep(0)
    engine.say(Done("r1", Usage(5, 0, 300), "stop"))
    assert (await stream.read()).finish_reason == "stop"  # type: ignore[union-attr]


async def test_an_answer_that_cannot_grow_says_what_bounded_it(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit(output_tokens=30, max_tokens=30)
    submitted = await engine.hear()
    assert isinstance(submitted, wire.Submit) and submitted.max_tokens == 30
    engine.say(Done("r1", Usage(5, 0, 30), "length"))
    assert (await stream.read()).finish_reason == "length"  # type: ignore[union-attr]
    assert stream.request.limited is not None and "30 tokens" in stream.request.limited.message


async def test_revoking_a_key_ends_its_streams_at_once_and_in_the_engine(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    await engine.hear()
    async with reading(stream) as read:
        bench.hub.end_streams(99, ApiKeyRevoked())
        bench.hub.end_streams(GRANT.key_id, ApiKeyRevoked())
        with pytest.raises(ApiKeyRevoked):
            await read
    assert await engine.hear() == wire.Cancel("r1", "api_key_revoked")
    engine.say(Done("r1", Usage(5, 0, 2), "cancelled"))
    await bench.hub.drained()
    assert bench.limits.settled == {"r1": Usage(5, 0, 2)}


@pytest.mark.parametrize(
    "message",
    [
        b"garbage",
        wire.encode(wire.Welcome(1, "x")),
        wire.encode(wire.Step([Delta("never submitted", "x", 1)])),
        wire.encode(Done("never submitted", Usage())),
    ],
)
async def test_a_violation_closes_the_link_with_a_reason_and_nothing_else(
    bench: Bench, message: bytes
) -> None:
    good, bad = await bench.join("good"), await bench.join("bad")
    bad.say_bytes(message)
    answer = await bad.hear()
    await bench.end()
    assert isinstance(answer, wire.Error)
    assert answer.fault.code == "protocol_violation"
    assert bad.closed_for == answer.fault.message
    stream = bench.submit()
    good.say(Done("r1", Usage(), "stop"))
    assert isinstance(await stream.read(), Done)


@pytest.mark.parametrize("frame", [wire.Heartbeat(), wire.Hello(NEWER, NEWER, "e", MODEL)])
async def test_an_engine_that_cannot_be_greeted_is_refused(bench: Bench, frame: Frame) -> None:
    engine = await bench.dial()
    engine.say(frame)
    assert isinstance(await engine.hear(), wire.Error)
    await bench.end()
    assert bench.hub.snapshot() == []


async def test_nobody_waits_for_a_broken_engine_that_does_not_hear_why(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    await engine.hear()
    engine.writable.clear()
    engine.say_bytes(b"nonsense")
    with pytest.raises(EngineLost):
        await stream.read()
    assert not bench.links[-1].done(), "it is being told"
    with pytest.raises(NoEngine):
        bench.submit("r2")


async def test_hanging_up_before_hello_harms_nobody(bench: Bench) -> None:
    engine = await bench.dial()
    engine.hang_up()
    await bench.end()


async def test_a_draining_engine_gets_nothing_new_and_finishes_the_old(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    engine.say(wire.Drain())
    engine.say(wire.Step([Delta("r1", "x", 1)]))
    await stream.read()
    with pytest.raises(NoEngine):
        bench.submit("r2")
    engine.say(Done("r1", Usage(), "stop"))
    assert isinstance(await stream.read(), Done)


async def test_an_engine_that_is_drained_hears_of_it_and_gets_nothing_new(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    assert isinstance(await engine.hear(), wire.Submit)
    bench.hub.drain("another")
    bench.hub.drain(bench.hub.snapshot()[0]["id"])
    assert isinstance(await engine.hear(), wire.Drain)
    assert bench.hub.snapshot()[0]["draining"]
    with pytest.raises(NoEngine):
        bench.submit("r2")
    engine.say(Done("r1", Usage(), "stop"))
    assert isinstance(await stream.read(), Done)


async def test_an_engine_that_does_not_read_is_given_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await bench.join_unread(monkeypatch)
    with pytest.raises(Overloaded) as refused:
        bench.submit("one too many")
    assert refused.value.retry_after_s
    engine.writable.set()
    while (await engine.asked()).id != "r32":
        pass
    bench.submit("it reads again")
    assert (await engine.asked()).id == "it reads again"


async def test_a_gateway_that_closes_takes_nothing_new(bench: Bench) -> None:
    await bench.join()
    bench.hub.close()
    with pytest.raises(Overloaded, match="shutting down"):
        bench.submit()


async def test_an_engine_that_comes_back_replaces_its_dead_link(bench: Bench) -> None:
    old = await bench.join("e")
    stream = bench.submit()
    new = await bench.join("e")
    old.hang_up()
    again = await new.asked()
    assert (again.id, again.attempt) == ("r1", 2)
    bench.submit("r2")
    assert (await new.asked()).id == "r2"
    assert len(bench.hub.snapshot()) == 1 and stream.request.attempts == 2


async def test_an_engine_that_comes_by_two_ways_stays_while_one_of_them_does(bench: Bench) -> None:
    """As when agents find the gateways through a load balancer, and then dial each by its own
    URL."""
    direct, balanced = await bench.join(), await bench.join()
    direct.say(wire.Stats(EngineStats(), gained={"acme": 12.5}))
    await until(lambda: bench.ledger.reported)
    bench.submit()
    submitted = await balanced.hear()
    assert isinstance(submitted, wire.Submit), "it does not hear of itself"
    balanced.hang_up()
    await bench.end()
    assert [engine["id"] for engine in bench.hub.snapshot()] == ["engine-1"]
    bench.submit("r2")
    assert isinstance(await direct.hear(), wire.Submit)
    direct.hang_up()
    await bench.links[0]
    assert bench.hub.snapshot() == []


async def test_a_revoked_keys_streams_end_on_whichever_link_they_run(bench: Bench) -> None:
    older = await bench.join()
    stream = bench.submit()
    await older.hear()
    await bench.join()
    bench.hub.end_streams(GRANT.key_id, ApiKeyRevoked())
    with pytest.raises(ApiKeyRevoked):
        await stream.read()
    assert await older.hear() == wire.Cancel("r1", "api_key_revoked")


async def test_a_probe_returns_the_engines_report_or_its_refusal(bench: Bench) -> None:
    engine = await bench.join()
    probe = asyncio.create_task(bench.hub.probe("base", REF))
    load = await engine.hear()
    assert isinstance(load, wire.Load) and load.probe and load.adapter.digest == REF.digest
    engine.say(wire.Loaded(load.id, {"finite": True}))
    assert await probe == {"finite": True}

    probe = asyncio.create_task(bench.hub.probe("base", REF))
    load = await engine.hear()
    assert isinstance(load, wire.Load)
    engine.say(wire.Loaded(load.id, {}, Fault.of(AdapterLoadFailed("rank"))))
    with pytest.raises(AdapterLoadFailed, match="rank"):
        await probe

    probe = asyncio.create_task(bench.hub.probe("base", REF))
    await engine.hear()
    engine.hang_up()
    with pytest.raises(EngineLost):
        await probe


async def test_engines_hear_of_gateways_and_archived_adapters(bench: Bench) -> None:
    engine = await bench.join()
    bench.hub.set_gateways(["http://gateway", "http://other"])
    bench.hub.set_gateways(["http://gateway", "http://other"])
    bench.hub.unload("d" * 64)
    assert await engine.hear() == wire.Gateways(["http://gateway", "http://other"])
    assert await engine.hear() == wire.Unload("d" * 64)


async def test_the_base_model_and_statistics_of_an_engine_are_known(bench: Bench) -> None:
    seen: list[ModelInfo] = []
    bench.hub.on_model(seen.append)
    engine = await bench.join()
    stream = bench.submit()
    engine.say(wire.Stats(EngineStats(running=3), loaded=[REF.name]))
    engine.say(wire.Step([Delta("r1", "x", 1)]))
    await stream.read()
    assert seen == [MODEL]
    (shown,) = bench.hub.snapshot()
    assert (shown["running"], shown["resident_adapters"]) == (3, [REF.name])


async def test_a_kind_of_engine_is_noted_when_it_joins_and_once_a_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ModelInfo] = []
    bench.hub.on_model(seen.append)
    first, second = await bench.join("first"), await bench.join("second")

    async def say_stats() -> None:
        told = len(bench.ledger.reported)
        first.say(wire.Stats(EngineStats()))
        second.say(wire.Stats(EngineStats()))
        await until(lambda: len(bench.ledger.reported) == told + 2)

    await say_stats()
    assert seen == [MODEL] * 2
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + hub.NOTE_POOL_EVERY_S)
    await say_stats()
    assert seen == [MODEL] * 3, "both are of one kind"


RANK_16 = msgspec.structs.replace(MODEL, max_lora_rank=16)
RANK_64 = msgspec.structs.replace(MODEL, max_lora_rank=64)
HIGH = msgspec.structs.replace(REF, rank=64, modules=("q_proj",))


async def test_an_unknown_frame_is_counted_and_harms_nobody(bench: Bench) -> None:
    engine = await bench.join()
    stream = bench.submit()
    engine.say_bytes(b"\x92\xa5hullo\x01")
    engine.say(Done("r1", Usage(), "stop"))
    assert isinstance(await stream.read(), Done)
    assert bench.hub.unknown_frames == 1


async def test_during_a_rollout_an_adapter_goes_only_to_an_engine_that_can_load_it(
    bench: Bench,
) -> None:
    low = await bench.join("low", model=RANK_16)
    target = msgspec.structs.replace(BASE, adapter=HIGH)
    with pytest.raises(NoEngine, match=r"rank 64 \(the engine's maximum is 16\)"):
        bench.submit("early", target=target)
    with pytest.raises(NoEngine, match="rank 64"):
        await bench.hub.probe("base", HIGH)
    high = await bench.join("high", model=RANK_64)
    for i in range(20):  # however much busier it becomes
        bench.submit(f"r{i}", target=target)
        asked = await high.hear()
        assert isinstance(asked, wire.Submit) and asked.adapter == given(HIGH)
    bench.submit("small")
    asked = await low.hear()
    assert isinstance(asked, wire.Submit) and asked.id == "small"


async def test_engines_are_told_to_keep_only_what_they_can_load(bench: Bench) -> None:
    low, high = await bench.join("low", model=RANK_16), await bench.join("high", model=RANK_64)
    bench.hub.set_pins({"base": [REF]})
    bench.hub.set_pins({"base": [REF, HIGH]})
    bench.hub.unload("d" * 64)
    assert [await low.hear(), await low.hear()] == [
        wire.PinnedAdapters([given(REF)]),
        wire.Unload("d" * 64),
    ]
    assert [await high.hear(), await high.hear()] == [
        wire.PinnedAdapters([given(REF)]),
        wire.PinnedAdapters([given(REF), given(HIGH)]),
    ]


async def test_a_second_engine_of_the_same_id_is_refused_while_the_first_lives(
    bench: Bench,
) -> None:
    first = await bench.join("e", run="first")
    second = await bench.dial()
    second.say(wire.Hello(1, wire.PROTOCOL_VERSION, "e", MODEL, run="second"))
    await until(lambda: second.all_read)
    first.say(wire.Heartbeat())
    refused = await second.hear()
    assert isinstance(refused, wire.Error)
    assert refused.fault.code == "engine_id_in_use" and "`e`" in refused.fault.message
    await bench.end()
    assert second.closed_for == refused.fault.message
    bench.submit()
    assert isinstance(await first.hear(), wire.Submit)


async def test_the_same_engine_may_come_by_two_ways(bench: Bench) -> None:
    await bench.join("e", run="first")
    again = await bench.join("e", run="first")
    bench.submit()
    assert isinstance(await again.hear(), wire.Submit)


async def test_an_engine_that_started_again_replaces_its_silent_link(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host died: the old link was never closed, but is silent."""
    monkeypatch.setattr(hub, "RIVAL_SPEAKS_S", 0.01)
    old = await bench.join("e", run="first")
    stream = bench.submit()
    new = await bench.join("e", run="second")
    with pytest.raises(EngineLost):
        await stream.read()
    bench.submit("r2")
    submitted = await new.hear()
    assert isinstance(submitted, wire.Submit) and submitted.id == "r2"
    assert len(bench.hub.snapshot()) == 1
    await until(lambda: old.closed_for)


async def test_an_engine_whose_old_link_closes_meanwhile_joins_at_once(bench: Bench) -> None:
    old = await bench.join("e", run="first")
    new = await bench.dial()
    new.say(wire.Hello(1, wire.PROTOCOL_VERSION, "e", MODEL, run="second"))
    await until(lambda: new.all_read)
    old.hang_up()
    assert isinstance(await new.hear(), wire.Welcome)


async def test_a_request_that_cannot_be_started_takes_no_other_with_it(bench: Bench) -> None:
    engine = await bench.join()
    failed = bench.submit("r0", prefix=Prefix(bytes(8), bytes(4)))  # no operation makes it
    with pytest.raises(InferenceError, match="error while processing"):
        await failed.read()
    stream = bench.submit()
    assert (await engine.asked()).id == "r1"
    engine.say(Done("r1", Usage(1, 0, 1), "stop", attempt=1))
    assert isinstance(await stream.read(), Done)


async def test_an_engine_that_asks_hears_what_the_others_served(bench: Bench) -> None:
    first, second = await bench.join("first"), await bench.join("second")
    first.say(wire.Stats(EngineStats(), asks=True))
    assert await first.hear() == wire.Others(2)
    second.say(wire.Stats(EngineStats(), gained={"acme": 12.5}, asks=False))
    assert await second.hear() == wire.Others(2)
    service = bench.hub._service["base"]
    service._close(0.0)
    first.say(wire.Stats(EngineStats(), gained={"acme": 1.0}, asks=True))
    assert await first.hear() == wire.Others(2, {"acme": 12.5})
    second.hang_up()
    await bench.end()
    first.say(wire.Stats(EngineStats(), asks=True))
    assert await first.hear() == wire.Others(1)


async def test_an_engine_that_is_silent_gets_what_no_other_one_can_take(bench: Bench) -> None:
    """It may have stopped, but it is certainly lost only after `LOST_S`."""
    await bench.join("a")
    await bench.join("b")
    links = bench.hub._links
    received_at = {id: link._session.received_at for id, link in links.items()}
    assert received_at["a"] < received_at["b"]
    needs, choose = Needs("base"), bench.hub._candidates.choose
    both_speak, a_is_silent = (received_at[id] + SILENT_S - 1e-9 for id in "ab")
    assert choose(needs, now=both_speak).engine.id == "a"
    assert choose(needs, now=a_is_silent).engine.id == "b"
    assert choose(needs, now=a_is_silent + 60).engine.id == "a", "both are"
    only = choose(needs, lambda link: link.engine.id == "a", now=a_is_silent)
    assert only.engine.id == "a"
    links["a"]._session.received_at = received_at["b"]
    assert choose(needs, now=a_is_silent).engine.id == "a", "it speaks again"
    with pytest.raises(NoEngine):
        choose(Needs("another"), now=a_is_silent)
