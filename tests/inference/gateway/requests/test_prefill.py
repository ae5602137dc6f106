"""Which requests go to prefill engines first, and what comes of it, against engines that the test
plays."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from inference.errors import EngineFailed, InferenceError, Overloaded
from inference.gateway.requests.held import Holding
from inference.gateway.requests.stream import Stream
from inference.gateway.routing.engine_state import EngineState
from inference.gateway.routing.prefill import HANDED_OVER, KeptPrompt, PrefillPolicy
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import DECODE, PREFILL, EngineStats
from inference.link.prefixes import Prefix, hashes_of
from inference.link.wire import (
    MOVED,
    PREFILLED,
    RECALLED,
    Cancel,
    Delta,
    Done,
    Fault,
    Handover,
    Retention,
)
from inference.link.workload import Workload
from tests.inference.played import Bench, Played, benched
from tests.inference.rig import until
from tests.inference.samples import MODEL

pytestmark = pytest.mark.pure

PREFILLS = msgspec.structs.replace(MODEL, role=PREFILL)
DECODES = msgspec.structs.replace(MODEL, role=DECODE)
LONG, SHORT = Workload(prompt_tokens=100), Workload(prompt_tokens=99)
HANDOVER = Handover(b"blocks", 60.0)
COMPUTED = Done("r1", Usage(90, 32, 1, queue_s=1.0), PREFILLED, handover=HANDOVER)
FIRST = Delta("r1", "Hel", 2, [], 90, 32, ids={0: [11, 12]}, attempt=2)
ENDED = Done("r1", Usage(90, 32, 2), "stop", attempt=2)


def bench(wait_s: float = 60.0, **options: Any) -> Any:
    prefill = PrefillPolicy(LONG.prompt_tokens, wait_s)
    return benched(**({"prefill": prefill, "holding": Holding(60.0)} | options))


def ask(made: Bench, id: str = "r1", **options: Any) -> Stream:
    given: dict[str, Any] = {"workload": LONG, "lane": "interactive"}
    return made.submit(id, **(given | options))


async def both(made: Bench, **decode: Any) -> tuple[Played, Played]:
    """A prefill and a decode engine."""
    hello: dict[str, Any] = {"model": DECODES, "run": "d"} | decode
    return await made.join("p", model=PREFILLS, run="p"), await made.join("d", **hello)


async def handed_over(made: Bench) -> tuple[Played, Played, wire.Submit]:
    """Both engines, and what the second is asked after the first has computed the prompt."""
    prefill, decode = await both(made)
    ask(made)
    await prefill.asked()
    prefill.say(COMPUTED)
    return prefill, decode, await decode.asked()


async def test_the_prompt_is_computed_first_then_the_answer_and_all_of_it_counts_once() -> None:
    async with bench() as made:
        prefill, decode = await both(made)
        stream = ask(made, retention=Retention(30.0))
        first = await prefill.asked()
        assert first.prefill and first.attempt == 1 and first.ids and not first.handover
        assert first.retention == wire.NOT_KEPT, "it has no answer that could be adopted"
        prefill.say(wire.Step([Delta("r1", "never shown", 1, [], 90)]))
        prefill.say(COMPUTED)
        second = await decode.asked()
        assert (second.prefill, second.attempt, second.resume) == (False, 2, None)
        assert second.retention == Retention(30.0) and second.body == first.body
        given = second.handover
        assert given is not None and given.params == HANDOVER.params
        assert 0 < given.valid_s < HANDOVER.valid_s, "its time runs since the prompt was sent"
        assert given.usage == Usage(90, 32, 0, queue_s=1.0), "and no output was of the prompt's"
        decode.say(wire.Step([FIRST]))
        delta = await stream.read()
        assert isinstance(delta, Delta) and delta.text == "Hel"
        decode.say(ENDED)
        assert await stream.read() == ENDED
        assert made.limits.settled == {"r1": ENDED.usage}
        assert made.hub.prefill.prompts == {("base", HANDED_OVER): 1}
        assert not made.hub.moves, "it left no engine that should have answered it"
        assert not made.hub.gaps.total


@pytest.mark.parametrize(
    "options",
    [
        {"workload": SHORT},
        {"workload": msgspec.structs.replace(LONG, choices=2)},
        {"workload": msgspec.structs.replace(LONG, prompts=2)},
        {"body": b""},
    ],
    ids=["short", "choices", "prompts", "its body is not kept"],
)
async def test_what_goes_to_the_decode_engine_at_once(options: dict[str, Any]) -> None:
    async with bench() as made:
        prefill, decode = await both(made)
        ask(made, **options)
        assert not (await decode.asked()).prefill
        assert prefill.all_heard


async def test_only_the_part_of_a_prompt_that_is_not_in_the_cache_counts() -> None:
    prefix = Prefix.of([1, 2], [50, 100])
    async with bench() as made:
        prefill, decode = await both(made, warm=hashes_of([1]))
        ask(made, prefix=prefix)
        assert not (await decode.asked()).prefill
        assert prefill.all_heard


@pytest.mark.parametrize(
    "hello",
    [
        {"model": MODEL},
        {"model": msgspec.structs.replace(DECODES, revision="another")},
    ],
    ids=["no decode engine", "another revision"],
)
async def test_both_engines_must_fit_together(hello: dict[str, Any]) -> None:
    async with bench() as made:
        prefill, other = await both(made, **hello)
        ask(made)
        assert not (await other.asked()).prefill
        assert prefill.all_heard


async def test_a_busy_prefill_engine_is_no_help() -> None:
    async with bench(wait_s=9.0) as made:
        prefill = await made.join("p", model=PREFILLS, stats=EngineStats(wait_s=10.0))
        decode = await made.join("d", model=DECODES)
        ask(made)
        assert not (await decode.asked()).prefill
        assert prefill.all_heard


async def test_a_prefill_engine_alone_gets_nothing_and_its_pool_is_not_served() -> None:
    async with bench() as made:
        known: list[Any] = []
        made.hub.on_model(known.append)
        prefill = await made.join("p", model=PREFILLS)
        stream = ask(made)
        assert made.hub.held == {"base": 1} and not made.hub.revisions and known == []
        assert made.hub.demand()["base"].engines == 0
        assert prefill.all_heard
        stream.cancel("cancelled")


@pytest.mark.parametrize(
    ("done", "outcome"),
    [
        (None, "lost"),
        (Done("r1", Usage(), fault=Fault.of(EngineFailed())), "failed"),
        (Done("r1", Usage(), fault=Fault.of(Overloaded("full"))), "refused"),
        (Done("r1", Usage(), MOVED), "drained"),
        (Done("r1", Usage(90), PREFILLED), "not_kept"),
        (Done("r1", Usage(90, 0, 1), "length"), "not_kept"),
    ],
)
async def test_without_a_handover_the_decode_engine_computes_the_prompt(
    done: Done | None, outcome: str
) -> None:
    async with bench() as made:
        prefill, decode = await both(made)
        stream = ask(made)
        await prefill.asked()
        if done is None:
            prefill.hang_up()
        else:
            prefill.say(done)
        second = await decode.asked()
        assert (second.prefill, second.handover, second.attempt) == (False, None, 2)
        decode.say(wire.Step([FIRST]))
        decode.say(ENDED)
        assert isinstance(await stream.read(), Delta)
        assert made.hub.prefill.prompts == {("base", outcome): 1}


async def test_a_refusal_waits_for_the_decode_engine_as_if_it_were_the_first() -> None:
    async with bench() as made:
        prefill, decode = await both(made)
        ask(made)
        await prefill.asked()
        decode.say(wire.Drain())
        await until(lambda: not made.hub.revisions)
        prefill.say(Done("r1", Usage(), fault=Fault.of(Overloaded("full"))))
        await until(lambda: made.hub.prefill.prompts)
        assert made.hub.in_flight == 1
        later = await made.join("d2", model=DECODES)
        assert (await later.asked()).attempt == 2


async def test_a_prompt_that_takes_too_long_is_taken_back() -> None:
    async with bench(wait_s=0.01) as made:
        prefill, decode = await both(made)
        ask(made)
        await prefill.asked()
        assert await prefill.hear() == Cancel("r1", RECALLED, 1)
        prefill.say(Done("r1", Usage(), MOVED))
        assert (await decode.asked()).handover is None
        assert made.hub.prefill.prompts == {("base", "recalled"): 1}


async def test_what_the_client_did_wrong_ends_it() -> None:
    wrong = Fault("invalid_request", "`x` is wrong.", "x")
    async with bench() as made:
        prefill, decode = await both(made)
        stream = ask(made)
        await prefill.asked()
        prefill.say(Done("r1", Usage(), fault=wrong))
        with pytest.raises(InferenceError, match="`x` is wrong"):
            await stream.read()
        assert decode.all_heard


async def test_a_cancel_reaches_the_engine_that_has_it() -> None:
    async with bench() as made:
        prefill, decode = await both(made)
        stream = ask(made)
        await prefill.asked()
        stream.cancel("cancelled")
        assert await prefill.hear() == Cancel("r1", "cancelled", 1)
        prefill.say(COMPUTED)  # it was on its way
        await until(lambda: made.hub.in_flight == 0)
        assert stream.done is not None and stream.done.finish_reason == "cancelled"
        assert decode.all_heard

        stream = ask(made, "r2")
        await prefill.asked()
        prefill.say(msgspec.structs.replace(COMPUTED, id="r2"))
        await decode.asked()
        stream.cancel("cancelled")
        assert await decode.hear() == Cancel("r2", "cancelled", 2)
        assert prefill.all_heard


async def test_a_handover_is_used_once() -> None:
    async with bench() as made:
        _, decode, _ = await handed_over(made)
        decode.say(Done("r1", Usage(), fault=Fault.of(EngineFailed()), attempt=2))
        other = await made.join("d2", model=DECODES)
        third = await other.asked()
        assert (third.attempt, third.handover, third.prefill) == (3, None, False)


async def test_only_a_decode_engine_of_the_same_revision_gets_it() -> None:
    async with bench() as made:
        prefill, decode = await both(made)
        ask(made)
        await prefill.asked()
        plain = await made.join("plain")
        decode.say(wire.Drain())
        await until(lambda: made.hub.revisions.total() == 1)
        prefill.say(COMPUTED)
        assert (await plain.asked()).handover is None


async def test_the_decode_engine_is_preferred_to_a_plain_one_with_less_to_do() -> None:
    async with bench() as made:
        prefill, decode = await both(made)
        ask(made)
        await prefill.asked()
        plain = await made.join("plain")
        decode.say(wire.Stats(EngineStats(queued_tokens=1 << 20)))
        await until(lambda: decode.all_read)
        await asyncio.sleep(0)
        prefill.say(COMPUTED)
        assert (await decode.asked()).handover is not None
        assert plain.all_heard


def test_it_is_not_handed_over_once_the_prefill_engine_may_have_freed_it() -> None:
    prefills, decodes = EngineState("p", PREFILLS), EngineState("d", DECODES)
    kept = KeptPrompt.of(HANDOVER, Usage(7, 3, 1), prefills, sent_at=100.0)
    assert kept.given(decodes, 110.0) == Handover(b"blocks", 50.0, Usage(7, 3, 0))
    assert kept.given(decodes, 160.0) is None
    assert kept.given(EngineState("plain", MODEL), 110.0) is None
