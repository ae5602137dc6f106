"""Requests that move from one engine to another, against engines that the test plays frame by
frame."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from inference.errors import (
    ApiKeyRevoked,
    EngineFailed,
    EngineLost,
    GenerationTimeout,
    InferenceError,
    NoEngine,
    Overloaded,
    RequestQuarantined,
)
from inference.gateway.requests import placing, request, settling
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import MoveReason, MoveResult
from inference.gateway.requests.request import RequestState
from inference.gateway.requests.stream import Stream
from inference.link import wire
from inference.link.accounts import LedgerEntry, Usage, first_attempt, reservation_id, turn_of
from inference.link.engine_info import ModelInfo
from inference.link.wire import Delta, Done, Fault, UsageReport, Wait
from inference.link.workload import Workload
from tests.inference.played import Bench, Played, benched, entry
from tests.inference.rig import until
from tests.inference.samples import GRANT, MODEL, OLDER

pytestmark = pytest.mark.pure

HOLDING = Holding(60.0)
FIRST = Delta("r1", "Hel", 2, [], 7, 3, ids={0: [11, 12]})
"""What the first engine has sent of an answer when it is lost."""
REST = Delta("r1", "lo", 1, attempt=2, ids={0: [13]})
WHOLE = Usage(7, 3, 3)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched(holding=HOLDING) as bench:
        yield bench


async def engines(bench: Bench, *ids: str, **hello: Any) -> list[Played]:
    return [await bench.join(id, **({"run": f"run-{id}"} | hello)) for id in ids]


async def begun(bench: Bench, first: Played, **options: Any) -> Stream:
    """A request whose reader has received what the first engine sent."""
    stream = bench.submit(**options)
    await first.asked()
    first.say(wire.Step([FIRST]))
    await stream.read()
    return stream


async def read_to_end(stream: Stream) -> tuple[str, Done]:
    text = ""
    while isinstance(news := await stream.read(), Delta):
        text += news.text
    return text, news


async def gone(link: Played, how: str) -> None:
    """Make the engine give up its request, in one of three ways."""
    if how == "lost":
        link.hang_up()
    elif how == "failed":
        link.say(Done("r1", Usage(7, 3, 4), fault=Fault.of(EngineFailed("died"))))
    else:
        link.say(wire.Drain())
        link.say(Done("r1", Usage(7, 3, 4), "moved"))


@pytest.mark.parametrize("how", ["lost", "failed", "drained"])
async def test_another_engine_continues_where_the_reader_is(bench: Bench, how: str) -> None:
    first, second = await engines(bench, "a", "b")
    stream = bench.submit()
    asked = await first.asked()
    assert (asked.attempt, asked.ids, asked.resume) == (1, True, None)
    first.say(wire.Step([FIRST]))
    delta = await stream.read()
    assert isinstance(delta, Delta) and (delta.text, delta.ids) == ("Hel", {})
    await gone(first, how)
    asked = await second.asked()
    assert (asked.id, asked.attempt, asked.ids, asked.body) == ("r1", 2, True, b"{}")
    assert asked.resume is not None and asked.resume.ids == {0: [11, 12]}
    usage = asked.resume.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (7, 3, 2)
    assert usage.ttft_s is not None and asked.timeout_s < 9
    second.say(wire.Step([REST]))
    second.say(Done("r1", WHOLE, "stop", attempt=2))
    assert await read_to_end(stream) == ("lo", Done("r1", WHOLE, "stop", attempt=2))
    assert bench.limits.settled == {"r1": WHOLE}
    assert bench.hub.moves == {(MoveReason(how), MoveResult.RESUMED): 1}
    assert bench.hub.gaps.buckets()[-1] == ("+Inf", 1.0, None)
    assert not bench.hub.in_flight


async def test_the_bounds_of_the_second_attempt_fit_its_usage(
    bench: Bench,
) -> None:
    first, second = await engines(bench, "a", "b")
    await begun(bench, first, workload=Workload(max_tokens=3))
    first.hang_up()
    asked = await second.asked()
    reported = LedgerEntry("r1", asked.account, "base", WHOLE, "stop", 2, 2)
    second.say(Done("r1", WHOLE, "length", attempt=2))
    second.say(UsageReport("journal", [reported]))
    await until(lambda: bench.ledger.told)
    assert bench.ledger.told[0][2] == [reported] and not bench.ledger.quarantined


async def test_unread_output_is_not_lost_in_a_move(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    stream = bench.submit()
    first.say(wire.Step([FIRST]))
    first.hang_up()
    await second.asked()
    second.say(wire.Step([REST]))
    second.say(Done("r1", WHOLE, "stop", attempt=2))
    assert (await read_to_end(stream))[0] == "Hello"


async def test_chunks_of_several_choices_are_continued(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    stream = bench.submit(workload=Workload(choices=2))
    await first.asked()
    first.say(wire.Step([Delta("r1", tokens=2, chunks=[b"{}"], ids={0: [1], 1: [2]})]))
    first.say(wire.Step([Delta("r1", tokens=1, ids={1: [3]})]))
    first.hang_up()
    asked = await second.asked()
    assert asked.resume is not None and asked.resume.ids == {0: [1], 1: [2, 3]}
    assert asked.resume.usage.completion_tokens == 3
    stream.cancel("cancelled")


async def test_tokens_that_were_counted_and_not_given_are_generated_again(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    bench.limits.tokens_left = 10_000
    stream = await begun(bench, first, output_tokens=1000, grows=True)
    first.say(wire.Step([Delta("r1", tokens=500)]))
    first.hang_up()
    asked = await second.asked()
    assert asked.resume is not None and asked.resume.usage.completion_tokens == 2
    second.say(wire.Step([Delta("r1", "x", 500, attempt=2, ids={0: [1] * 500})]))
    second.say(Done("r1", Usage(7, 3, 502), "stop", attempt=2))
    await read_to_end(stream)
    assert bench.limits.extensions == [], "they count once"


@pytest.mark.parametrize("other", [OLDER, msgspec.structs.replace(MODEL, resumes=False)])
async def test_only_an_engine_of_the_same_revision_that_can_continues(
    bench: Bench, other: ModelInfo
) -> None:
    (first,) = await engines(bench, "a")
    stream = await begun(bench, first)
    (second,) = await engines(bench, "b", model=other)
    first.hang_up()
    await until(lambda: bench.hub.held == {"base": 1})
    assert second.all_heard
    (third,) = await engines(bench, "c")
    assert (await third.asked()).resume
    stream.cancel("cancelled")


async def test_an_answer_without_output_restarts_on_any_engine(bench: Bench) -> None:
    (first,) = await engines(bench, "a")
    stream = bench.submit()
    await first.asked()
    first.say(wire.Step([Delta("r1", tokens=4, prompt_tokens=7)]))  # a whole answer's progress
    (second,) = await engines(bench, "b", model=OLDER)
    first.hang_up()
    asked = await second.asked()
    assert (asked.attempt, asked.resume) == (2, None)
    second.say(Done("r1", Usage(7, 0, 5), "stop", response=b"{}", attempt=2))
    assert isinstance(await stream.read(), Delta)
    assert isinstance(await stream.read(), Done)
    assert bench.limits.settled == {"r1": Usage(7, 0, 5)}
    assert bench.hub.moves == {(MoveReason.LOST, MoveResult.BEGUN_ANEW): 1}


async def test_a_whole_answer_with_log_probabilities_restarts(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    bench.submit(workload=Workload(logprobs=5))
    first.say(wire.Step([Delta("r1", tokens=4, prompt_tokens=7, ids={0: [1, 2, 3, 4]})]))
    first.hang_up()
    assert (await second.asked()).resume is None


async def test_a_whole_answer_with_tools_is_continued(bench: Bench) -> None:
    """The engine reports the ids of tokens whose text has not been sent yet."""
    first, second = await engines(bench, "a", "b")
    bench.submit()
    first.say(wire.Step([Delta("r1", tokens=4, prompt_tokens=7, ids={0: [1, 2, 3, 4]})]))
    first.hang_up()
    asked = await second.asked()
    assert asked.resume is not None and asked.resume.ids == {0: [1, 2, 3, 4]}


async def test_a_request_moves_twice_at_most(bench: Bench) -> None:
    played = await engines(bench, "a", "b", "c", "d")
    stream = await begun(bench, played[0])
    for attempt, (old, new) in enumerate(pairwise(played[:3]), start=1):
        old.say(wire.Drain())
        old.say(Done("r1", Usage(7, 3, 1 + attempt), "moved", attempt=attempt))
        asked = await new.asked()
        assert (asked.attempt, asked.ids) == (attempt + 1, attempt == 1)
        assert asked.resume is not None and len(asked.resume.ids[0]) == attempt + 1
        said = {0: [20]} if asked.ids else {}
        new.say(wire.Step([Delta("r1", "x", 1, attempt=asked.attempt, ids=said)]))
        await stream.read()
    played[2].hang_up()
    with pytest.raises(EngineLost, match="`c`"):
        await stream.read()
    assert played[3].all_heard
    assert bench.hub.moves == {(MoveReason.DRAINED, MoveResult.RESUMED): 2}


async def test_a_request_that_no_engine_of_a_rollout_begins_has_not_moved(bench: Bench) -> None:
    """Its submit crosses the drain of each engine in turn."""
    stream = bench.submit()
    for number in range(5):
        (engine,) = await engines(bench, f"e{number}")
        asked = await engine.asked()
        assert (asked.attempt, asked.ids, asked.resume) == (number + 1, True, None)
        engine.say(wire.Drain())
        engine.say(Done("r1", Usage(), "moved", attempt=asked.attempt))
    (last,) = await engines(bench, "last")
    asked = await last.asked()
    last.say(Done("r1", Usage(7, 0, 1), "stop", attempt=asked.attempt))
    assert isinstance(await stream.read(), Done)
    assert bench.limits.settled == {"r1": Usage(7, 0, 1)}


async def test_a_request_that_was_on_two_engines_when_they_died_is_quarantined(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "RETURNS_S", 0.3)  # longer than it takes to notice both losses
    first, second, third = await engines(bench, "a", "b", "c")
    stream = await begun(bench, first)
    first.hang_up()
    await second.asked()
    second.say(Done("r1", Usage(7, 3, 2), fault=Fault.of(EngineFailed("died")), attempt=2))
    second.hang_up()
    with pytest.raises(RequestQuarantined):
        await stream.read()
    assert third.all_heard
    assert bench.hub.moves[MoveReason.FAILED, MoveResult.QUARANTINED] == 1
    seen = bench.limits.settled["r1"]
    assert seen is not None and (seen.prompt_tokens, seen.completion_tokens) == (7, 2)


async def test_an_engine_that_reconnects_did_not_die(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "RETURNS_S", 0.01)
    first, second, third = await engines(bench, "a", "b", "c")
    stream = await begun(bench, first)
    first.hang_up()
    await second.asked()
    await engines(bench, "a", model=OLDER)  # it cannot continue the request, but it is alive
    second.hang_up()
    asked = await third.asked()
    assert asked.attempt == 3 and asked.resume is not None
    stream.cancel("cancelled")


async def test_a_cleared_request_waits_for_another_engine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "RETURNS_S", 0.01)
    first, second = await engines(bench, "a", "b")
    stream = await begun(bench, first)
    first.hang_up()
    await second.asked()
    await engines(bench, "a", model=OLDER)  # it cannot continue the request, but it is alive
    second.hang_up()
    await until(lambda: bench.hub.held)
    await until(lambda: stream.request.state is RequestState.MOVING)
    (third,) = await engines(bench, "c")
    assert (await third.asked()).attempt == 3
    stream.cancel("cancelled")


async def test_a_suspected_request_waits_until_its_engines_return(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    stream = await begun(bench, first)
    first.hang_up()
    await second.asked()
    second.hang_up()
    await until(lambda: bench.hub.held)
    (third,) = await engines(bench, "c")
    bench.submit("r2")
    assert (await third.asked()).id == "r2"
    assert bench.hub.held == {"base": 1} and third.all_heard
    stream.cancel("cancelled")


async def test_only_so_many_settled_requests_are_remembered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "MAX_UNREPORTED", 1)
    (engine,) = await engines(bench, "a")
    for id in ("r1", "r2"):
        bench.submit(id)
        engine.say(Done(id, WHOLE, "stop"))
        await bench.hub.drained()
    engine.say(UsageReport("j", [entry("r1"), entry("r2")]))
    await until(lambda: bench.ledger.told)
    assert bench.limits.offered == ["r1", "r2", "r1"], "which changes nothing"


async def test_each_turn_of_a_batch_line_settles_its_own_reservation(bench: Bench) -> None:
    (engine,) = await engines(bench, "a")
    lost, present = 2048, 3072
    stream = bench.submit(reservation_id("r1", present), id="r1", turn=present)
    submitted = await engine.asked()
    assert turn_of(submitted.attempt) == present
    engine.say(UsageReport("j", [entry("r1", attempt=first_attempt(lost))]))
    await until(lambda: bench.limits.offered)
    assert bench.limits.offered == ["r1.2048"], "its gateway may have died"
    engine.say(Done("r1", WHOLE, "stop", attempt=submitted.attempt))
    assert isinstance(await stream.read(), Done)
    engine.say(UsageReport("j", [entry("r1", attempt=submitted.attempt)]))
    await until(lambda: len(bench.ledger.told) == 2)
    assert bench.limits.offered == ["r1.2048", "r1.3072"]


async def test_an_engine_that_reconnects_may_get_its_own_request_again(bench: Bench) -> None:
    (old,) = await engines(bench, "a")
    stream = await begun(bench, old)
    old.hang_up()
    await until(lambda: bench.hub.held == {"base": 1})
    (new,) = await engines(bench, "a")
    asked = await new.asked()
    assert asked.attempt == 2 and asked.resume is not None
    stream.cancel("cancelled")


async def test_moving_requests_wait_and_go_before_held_ones(bench: Bench) -> None:
    heard: list[Wait] = []
    (first,) = await engines(bench, "a")
    moving = await begun(bench, first, watch=heard.append)
    first.hang_up()
    await until(lambda: bench.hub.held)
    bench.submit("r2", watch=heard.append)
    assert bench.hub.held == {"base": 2}
    assert heard == [Wait("r1", "moving"), Wait("r2", "held")]
    (second,) = await engines(bench, "b")
    asked = [await second.asked(), await second.asked()]
    assert [(one.id, one.attempt) for one in asked] == [("r1", 2), ("r2", 1)]
    assert bench.hub.held == {}
    second.say(wire.Waits([Wait("r1", "prefill", attempt=2)]))
    second.say(wire.Step([REST]))
    second.say(wire.Waits([Wait("r1", "queued", attempt=2)]))  # too late, so it is ignored
    await moving.read()
    await until(lambda: second.all_read)
    assert heard[2:] == [Wait("r1", "prefill", attempt=2)]


async def test_without_an_engine_in_time_it_ends_as_engines_that_are_lost(
    bench: Bench,
) -> None:
    async with benched(holding=Holding(0.01)) as bench:
        (first,) = await engines(bench, "a")
        stream = await begun(bench, first)
        first.hang_up()
        with pytest.raises(EngineLost, match="`a`"):
            await stream.read()
        assert bench.hub.moves == {(MoveReason.LOST, MoveResult.NO_ENGINE): 1}
        assert not bench.hub.in_flight


@pytest.mark.parametrize(
    ("how", "error"), [("lost", EngineLost), ("failed", EngineFailed), ("drained", EngineLost)]
)
async def test_without_holding_a_moving_request_ends_at_once(
    how: str, error: type[InferenceError]
) -> None:
    async with benched() as bench:
        (first,) = await engines(bench, "a")
        stream = await begun(bench, first)
        await gone(first, how)
        with pytest.raises(error):
            await stream.read()
        assert not bench.hub.in_flight and bench.hub.held == {}


async def lonely(bench: Bench, **options: Any) -> Stream:
    """A held request whose engine is gone while there is no other."""
    (first,) = await engines(bench, "a")
    stream = await begun(bench, first, **options)
    first.hang_up()
    await until(lambda: bench.hub.held)
    return stream


async def test_a_client_that_leaves_during_a_move_pays_what_was_seen(bench: Bench) -> None:
    stream = await lonely(bench)
    stream.cancel("cancelled")
    assert bench.hub.held == {} and not bench.hub.in_flight
    seen = bench.limits.settled["r1"]
    assert seen is not None and (seen.prompt_tokens, seen.completion_tokens) == (7, 2)
    assert bench.hub.moves == {(MoveReason.LOST, MoveResult.STOPPED): 1}
    last = await stream.read()
    assert isinstance(last, Done) and last.finish_reason == "cancelled"
    (late,) = await engines(bench, "b")
    await until(lambda: late.all_read)
    assert late.all_heard


async def test_a_key_that_is_revoked_meanwhile_ends_it(bench: Bench) -> None:
    stream = await lonely(bench)
    bench.hub.end_streams(GRANT.key_id, ApiKeyRevoked())
    with pytest.raises(ApiKeyRevoked):
        await stream.read()
    assert not bench.hub.in_flight


async def test_limits_that_are_used_up_meanwhile_end_it_as_too_long(bench: Bench) -> None:
    (first,) = await engines(bench, "a")
    bench.limits.tokens_left = 0
    bench.limits.answers.clear()
    stream = await begun(bench, first, output_tokens=2, grows=True)
    first.hang_up()
    await until(lambda: bench.hub.held)
    bench.limits.answers.set()
    done = await stream.read()
    assert isinstance(done, Done) and done.finish_reason == "length"
    assert stream.request.limited is not None and not bench.hub.in_flight


async def test_an_extended_reservation_survives_a_move(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    bench.limits.tokens_left = 1000
    bench.limits.answers.clear()
    stream = await begun(bench, first, output_tokens=2, grows=True)
    first.hang_up()
    await second.asked()
    bench.limits.answers.set()
    await until(lambda: bench.limits.extensions)
    second.say(wire.Step([REST]))
    second.say(Done("r1", WHOLE, "stop", attempt=2))
    assert (await read_to_end(stream))[1].finish_reason == "stop"
    assert bench.limits.extensions == [1000] and stream.request.limited is None


async def test_what_was_cancelled_does_not_move(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    stream = await begun(bench, first)
    stream.cancel("cancelled")
    first.say(Done("r1", Usage(7, 3, 2), "moved"))
    await bench.hub.drained()
    assert bench.limits.settled == {"r1": Usage(7, 3, 2)} and second.all_heard
    assert stream.done is not None and stream.done.finish_reason == "cancelled"


async def test_a_closing_gateway_lets_moving_requests_continue(bench: Bench) -> None:
    stream = await lonely(bench)
    held = bench.submit("r2")
    bench.hub.close()
    with pytest.raises(Overloaded, match="shutting down"):
        await held.read()
    assert bench.limits.released == ["r2"]
    (second,) = await engines(bench, "b")
    await second.asked()
    second.say(wire.Step([REST]))
    second.say(Done("r1", WHOLE, "stop", attempt=2))
    assert (await read_to_end(stream))[0] == "lo"
    await bench.hub.drained()


async def test_the_timeout_counts_over_all_attempts(bench: Bench) -> None:
    stream = await lonely(bench, timeout_s=0.01)
    with pytest.raises((GenerationTimeout, EngineLost)):
        await stream.read()
    assert not bench.hub.in_flight


@pytest.mark.parametrize("order", [(1, 2), (2, 1), (2,), (1,), ()])
async def test_entries_of_attempts_settle_nothing_whenever_they_come(
    bench: Bench, order: tuple[int, ...]
) -> None:
    first, second = await engines(bench, "a", "b")
    stream = await begun(bench, first)
    first.hang_up()
    await second.asked()
    if 1 in order[:1]:
        second.say(UsageReport("j", [entry("r1", 9)]))
        await until(lambda: bench.ledger.told)
        assert bench.hub.in_flight and not bench.limits.settled
    second.say(Done("r1", WHOLE, "stop", attempt=2))
    assert isinstance(await stream.read(), Done)
    assert bench.limits.settled == {"r1": WHOLE}
    for attempt in order:
        second.say(UsageReport("j", [entry("r1", 9, attempt=attempt)]))
    await until(lambda: second.all_read)
    assert bench.limits.settled == {"r1": WHOLE}
    assert bench.limits.offered == ["r1"] * (1 + (order == (2, 1))), "which changes nothing"


async def test_an_entry_of_a_moved_request_settles_nothing_while_it_waits(bench: Bench) -> None:
    await lonely(bench)
    (other,) = await engines(bench, "old", model=OLDER)
    other.say(UsageReport("j", [entry("r1", 2)]))
    await until(lambda: bench.ledger.told)
    assert bench.hub.in_flight and not bench.limits.settled


async def test_bodies_are_kept_within_bounds(bench: Bench) -> None:
    async with benched(holding=HOLDING, kept_bytes=40) as bench:
        first, second = await engines(bench, "a", "b")
        kept = bench.submit("r1", body=b"x" * 8)
        assert (await first.asked()).ids
        large = bench.submit("r2", body=b"x" * 8)
        assert not (await second.asked()).ids
        second.hang_up()
        with pytest.raises(EngineLost):
            await large.read()
        first.say(Done("r1", WHOLE, "stop"))
        await kept.read()
        bench.submit("r3", body=b"x" * 8)
        assert (await first.asked()).ids, "there is room again"


@pytest.mark.parametrize("ids", [{0: [1] * 2000}, {5: [1]}, {0: [-1]}, {0: [1 << 32]}])
async def test_too_many_token_ids_prevent_a_move(bench: Bench, ids: dict[int, list[int]]) -> None:
    first, second = await engines(bench, "a", "b")
    stream = bench.submit(workload=Workload(max_tokens=16))
    await first.asked()
    first.say(wire.Step([Delta("r1", "x", 1, ids=ids)]))
    await stream.read()
    first.hang_up()
    with pytest.raises(EngineLost):
        await stream.read()
    assert second.all_heard


async def test_a_request_refused_by_a_full_engine_goes_to_another(bench: Bench) -> None:
    first, second = await engines(bench, "a", "b")
    stream = bench.submit()
    await first.asked()
    first.say(Done("r1", Usage(), fault=Fault.of(Overloaded("full", retry_after_s=2))))
    asked = await second.asked()
    assert (asked.attempt, asked.resume) == (2, None)
    full = Fault.of(Overloaded("as full", retry_after_s=2))
    second.say(Done("r1", Usage(), fault=full, attempt=2))
    with pytest.raises(Overloaded, match="as full"):
        await stream.read()
    assert (bench.limits.released, bench.limits.settled) == (["r1"], {})
    assert bench.hub.moves == {(MoveReason.REFUSED, MoveResult.BEGUN_ANEW): 1}


async def test_a_request_refused_by_a_draining_engine_waits_for_another(bench: Bench) -> None:
    (first,) = await engines(bench, "a")
    bench.submit()
    await first.asked()
    first.say(wire.Drain())
    first.say(Done("r1", Usage(), fault=Fault.of(Overloaded("The engine is shutting down."))))
    await until(lambda: bench.hub.held == {"base": 1})
    (second,) = await engines(bench, "b")
    assert (await second.asked()).attempt == 2


async def test_many_moving_requests_are_paced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "TAKEN_UP", 4)
    (first,) = await engines(bench, "a")
    streams = [bench.submit(f"r{i}") for i in range(10)]
    first.say(wire.Step([Delta(f"r{i}", "x", 1, ids={0: [i]}) for i in range(10)]))
    for stream in streams:
        await stream.read()
    (second,) = await engines(bench, "b")
    first.hang_up()
    asked = [await second.asked() for _ in range(4)]
    assert [one.id for one in asked] == ["r0", "r1", "r2", "r3"]
    assert bench.hub.held == {"base": 6}
    second.say(wire.Step([Delta(f"r{i}", "y", 1, attempt=2, ids={0: [i]}) for i in range(2)]))
    asked = [await second.asked() for _ in range(2)]
    assert [one.id for one in asked] == ["r4", "r5"] and bench.hub.held == {"base": 4}


async def test_a_moved_request_does_not_affect_others_on_its_new_engine(bench: Bench) -> None:
    """Moving one request affects no other request on the link that it moves to."""
    first, second = await engines(bench, "a", "b")
    moved, stays = await begun(bench, first), bench.submit("r2")
    asked = await second.asked()
    assert asked.id == "r2"
    first.hang_up()
    assert (await second.asked()).id == "r1"
    second.say(wire.Step([Delta("r2", "mine", 1, ids={0: [5]}), REST]))
    got, rest = await stays.read(), await moved.read()
    assert isinstance(got, Delta) and got.text == "mine"
    assert isinstance(rest, Delta) and rest.text == "lo"


async def test_late_output_of_the_first_attempt_never_reaches_the_reader(
    bench: Bench,
) -> None:
    """The agent cancelled that attempt with its link; an agent that still sends of it is
    disconnected."""
    (first,) = await engines(bench, "a")
    stream = await begun(bench, first)
    first.hang_up()
    await until(lambda: bench.hub.held)
    (again, second) = await engines(bench, "a", "b")
    await again.asked()
    again.say(wire.Step([Delta("r1", "late", 1, ids={0: [99]})]))
    asked = await second.asked()
    assert asked.attempt == 3 and asked.resume is not None and asked.resume.ids == {0: [11, 12]}
    stream.cancel("cancelled")


async def test_no_engine_at_all_is_refused_where_nothing_is_held() -> None:
    async with benched() as bench:
        with pytest.raises(NoEngine):
            bench.submit()
