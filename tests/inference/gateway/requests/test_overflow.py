"""Which requests go to overflow engines, and when, against engines that the test plays."""

from __future__ import annotations

import time
from dataclasses import astuple, replace
from typing import Any

import msgspec
import pytest

from inference.errors import EngineLost, NoEngine, Overloaded
from inference.gateway.requests.held import Holding
from inference.gateway.requests.journey import MoveReason, MoveResult
from inference.gateway.requests.placing import TAKEN_UP
from inference.gateway.routing.overflow import Overflow
from inference.interfaces.directory import TokenPrice
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import EngineStats
from inference.link.wire import MOVED, RECALLED, Cancel, Delta, Done, Fault
from inference.link.workload import Workload
from tests.inference.played import Bench, Played, benched
from tests.inference.rig import until
from tests.inference.samples import BASE, GRANT, MODEL, REF

pytestmark = pytest.mark.pure

OUTSIDE = msgspec.structs.replace(MODEL, overflow=True)
CONSENTS = replace(GRANT, overflows=True)
ADAPTER = msgspec.structs.replace(BASE, adapter=REF, version_id=3)
CHEAP, DEAR = TokenPrice(1, 1, 1), TokenPrice(3, 3, 3)
AT_ONCE, SOON, LATE = 0.0, 0.02, 60.0
"""Seconds after which requests overflow."""
FIRST = Delta("r1", "Hel", 2, [], 7, 3, ids={0: [11, 12]})
FULL = Fault.of(Overloaded("full", retry_after_s=2))


def bench(wait_s: float, left_tokens: int = 100_000, **options: Any) -> Any:
    """A bench whose overflow engines may get so many tokens."""
    overflow = Overflow(wait_s)
    overflow.note_left(left_tokens, time.monotonic())
    return benched(**({"overflow": overflow, "holding": Holding(60.0)} | options))


def ask(bench: Bench, id: str = "r1", **options: Any) -> Any:
    """Submit a request that may overflow, unless the options change that."""
    given: dict[str, Any] = {"grant": CONSENTS, "lane": "interactive"}
    return bench.submit(id, **(given | options))


async def own_and_outside(bench: Bench, **own: Any) -> tuple[Played, Played]:
    return (
        await bench.join("own", **({"run": "own"} | own)),
        await bench.join("outside", model=OUTSIDE, run="outside"),
    )


async def test_it_goes_there_and_the_signed_account_says_so() -> None:
    async with bench(AT_ONCE) as made:
        own, outside = await own_and_outside(made)
        ask(made)
        account = (await outside.asked()).account
        assert account.dispatch is not None
        assert account.overflow and own.all_heard
        assert made.hub.overflow.requests == {"base": 1}
        forged = msgspec.structs.replace(account, overflow=False)
        dispatches, credential = made.hub._dispatches, account.dispatch.credential
        assert dispatches.is_of(account, ("r1", 1), "base", credential)
        assert not dispatches.is_of(forged, ("r1", 1), "base", credential)


@pytest.mark.parametrize(("overflow_price", "billed"), [(DEAR, DEAR), (None, CHEAP)])
async def test_its_price_is_that_of_the_engine_that_answers(
    overflow_price: TokenPrice | None, billed: TokenPrice
) -> None:
    priced = msgspec.structs.replace(BASE, price=CHEAP, overflow_price=overflow_price)
    usage = Usage(prompt_tokens=10, completion_tokens=5)
    async with bench(LATE) as made:
        own, outside = await own_and_outside(made)
        ask(made, target=priced)
        assert (await own.asked()).account.price == (1, 1, 1)
        own.say(Done("r1", Usage(), fault=FULL))
        submit = await outside.asked()
        assert submit.account.price == astuple(billed)
        outside.say(Done("r1", usage, "stop", attempt=2))
        await until(lambda: made.hub.in_flight == 0)
        assert made.limits.settled == {"r1": usage} and made.limits.prices == {"r1": billed}


@pytest.mark.parametrize(
    "options",
    [
        {"grant": GRANT},
        {"lane": "batch"},
        {"target": ADAPTER},
        {"target": msgspec.structs.replace(ADAPTER, adapter=None)},
    ],
    ids=["no consent", "batch", "adapter", "an operation on an adapter that does not use it"],
)
async def test_what_never_leaves(options: dict[str, Any]) -> None:
    async with bench(AT_ONCE) as made:
        own, outside = await own_and_outside(made, stats=EngineStats(wait_s=3600.0))
        ask(made, **options)
        assert not (await own.asked()).account.overflow
        own.say(Done("r1", Usage(), fault=FULL))
        await until(lambda: made.hub.in_flight == 0)
        assert outside.all_heard


@pytest.mark.parametrize(("wait_s", "overflows"), [(59.0, False), (61.0, True)])
async def test_the_expected_wait_decides(wait_s: float, overflows: bool) -> None:
    async with bench(LATE) as made:
        own, outside = await own_and_outside(made, stats=EngineStats(wait_s=wait_s))
        ask(made)
        await (outside if overflows else own).asked()
        assert (own if overflows else outside).all_heard


async def test_one_own_engine_with_time_is_enough() -> None:
    async with bench(LATE) as made:
        busy, outside = await own_and_outside(made, stats=EngineStats(wait_s=3600.0))
        free = await made.join("free")
        ask(made)
        await until(lambda: not (busy.all_heard and free.all_heard))
        assert outside.all_heard


async def test_a_full_engine_is_busy() -> None:
    async with bench(LATE) as made:
        own, outside = await own_and_outside(made)
        stream = ask(made)
        await own.asked()
        own.say(Done("r1", Usage(), fault=FULL))
        assert (await outside.asked()).attempt == 2
        outside.say(Done("r1", Usage(), fault=FULL, attempt=2))
        with pytest.raises(Overloaded, match="full"):
            await stream.read()


async def test_without_an_own_engine_it_is_held_first() -> None:
    async with bench(SOON) as made:
        outside = await made.join("outside", model=OUTSIDE)
        ask(made, "here", grant=GRANT)
        ask(made)
        assert made.hub.held == {"base": 2}
        assert (await outside.asked()).id == "r1"
        assert made.hub.held == {"base": 1}
        assert made.hub.demand()["base"].engines == 0, "nothing to scale"


async def test_one_that_waited_goes_to_an_overflow_engine_that_joins() -> None:
    async with bench(AT_ONCE) as made:
        ask(made)
        assert made.hub.held == {"base": 1}
        outside = await made.join("outside", model=OUTSIDE)
        await outside.asked()


async def recalled(own: Played) -> None:
    """Wait until the gateway takes its request back."""
    await own.asked()
    assert await own.hear() == Cancel("r1", RECALLED, 1)


async def test_it_is_taken_back_from_a_queue() -> None:
    async with bench(SOON) as made:
        own, outside = await own_and_outside(made)
        stream = ask(made)
        await recalled(own)
        own.say(Done("r1", Usage(), MOVED))
        assert (await outside.asked()).attempt == 2
        assert made.hub.moves == {(MoveReason.RECALLED, MoveResult.BEGUN_ANEW): 1}
        outside.say(Done("r1", Usage(5, 0, 1), "stop", attempt=2))
        assert isinstance(await stream.read(), Done)


async def test_one_that_has_begun_stays() -> None:
    async with bench(SOON) as made:
        own, outside = await own_and_outside(made)
        stream = ask(made)
        await recalled(own)
        own.say(wire.Step([FIRST]))
        own.say(Done("r1", Usage(7, 3, 2), "stop"))
        assert isinstance(await stream.read(), Delta) and isinstance(await stream.read(), Done)
        assert outside.all_heard and made.hub.moves == {}


async def test_one_that_has_begun_before_is_not_taken_back() -> None:
    async with bench(SOON) as made:
        own, outside = await own_and_outside(made)
        stream = ask(made)
        await own.asked()
        own.say(wire.Step([FIRST]))
        timer = stream.overflow_timer
        await until(lambda: time.monotonic() > stream.request.began + 2 * SOON)
        assert timer is not None and own.all_heard and outside.all_heard


async def test_if_nothing_is_left_meanwhile_it_goes_back() -> None:
    async with bench(SOON) as made:
        own, outside = await own_and_outside(made)
        ask(made)
        await recalled(own)
        made.hub.overflow.note_left(0, time.monotonic())
        own.say(Done("r1", Usage(), MOVED))
        assert (await own.asked()).attempt == 2 and outside.all_heard


async def test_it_stays_in_the_queue_if_nothing_is_left() -> None:
    async with bench(SOON, left_tokens=0) as made:
        own, outside = await own_and_outside(made)
        stream = ask(made)
        await own.asked()
        await until(lambda: time.monotonic() > stream.request.began + 2 * SOON)
        assert own.all_heard and outside.all_heard


async def test_what_overflowed_is_not_taken_back() -> None:
    async with bench(SOON) as made:
        _, outside = await own_and_outside(made, stats=EngineStats(wait_s=3600.0))
        stream = ask(made)
        await outside.asked()
        await until(lambda: time.monotonic() > stream.request.began + 2 * SOON)
        assert outside.all_heard


async def test_an_overflow_engine_that_refuses_leaves_it_to_the_own_ones() -> None:
    async with bench(AT_ONCE) as made:
        own, outside = await own_and_outside(made)
        ask(made)
        await outside.asked()
        outside.say(Done("r1", Usage(), fault=FULL))
        assert (await own.asked()).attempt == 2
        assert not made.hub.overflow._open


async def test_what_an_own_engine_has_begun_never_overflows() -> None:
    async with bench(LATE) as made:
        first, outside = await own_and_outside(made)
        stream = ask(made)
        await first.asked()
        first.say(wire.Step([FIRST]))
        await stream.read()
        made.hub.overflow.wait_s = AT_ONCE
        first.hang_up()
        await until(lambda: made.hub.held == {"base": 1})
        second = await made.join("second", run="second")
        resume = (await second.asked()).resume
        assert resume is not None and resume.ids == {0: [11, 12]} and outside.all_heard


async def test_what_an_overflow_engine_has_begun_ends_with_it() -> None:
    async with bench(AT_ONCE, holding=Holding(SOON)) as made:
        own, outside = await own_and_outside(made)
        stream = ask(made)
        await outside.asked()
        outside.say(wire.Step([FIRST]))
        await stream.read()
        outside.hang_up()
        with pytest.raises(EngineLost):
            await stream.read()
        assert own.all_heard


async def test_the_day_has_an_end() -> None:
    work = Workload(prompt_tokens=60, max_tokens=0)
    async with bench(AT_ONCE, left_tokens=100) as made:
        own, outside = await own_and_outside(made)
        ask(made, workload=work)
        await outside.asked()
        ask(made, "r2", workload=work)
        assert (await own.asked()).id == "r2"
        outside.say(Done("r1", Usage(60), "stop"))
        await until(lambda: not made.hub.overflow._open)
        ask(made, "r3", workload=work)
        assert (await outside.asked()).id == "r3"
        outside.hang_up()
        await until(lambda: not made.hub.overflow._open)


@pytest.mark.parametrize(
    "hello",
    [
        {"model": msgspec.structs.replace(OUTSIDE, name="other")},
        {"model": msgspec.structs.replace(OUTSIDE, operations=["completion"])},
        {"model": msgspec.structs.replace(OUTSIDE, max_model_len=10)},
        {"model": OUTSIDE, "stats": EngineStats(wait_s=3600.0)},
    ],
    ids=["another model", "another operation", "a short context", "busy itself"],
)
async def test_an_overflow_engine_gets_only_what_it_can_do_soon(hello: dict[str, Any]) -> None:
    async with bench(SOON) as made:
        own = await made.join("own", stats=EngineStats(wait_s=3600.0))
        outside = await made.join("outside", **hello)
        ask(made, workload=Workload(prompt_tokens=20))
        await own.asked()
        assert outside.all_heard


async def test_a_draining_one_gets_nothing_and_others_no_more_than_they_begin() -> None:
    async with bench(AT_ONCE) as made:
        own, outside = await own_and_outside(made)
        draining = await made.join("draining", model=OUTSIDE)
        draining.say(wire.Drain())
        await until(lambda: any(one.draining for one in made.hub.engines()))
        for i in range(TAKEN_UP):
            ask(made, f"r{i}")
            assert (await outside.asked()).id == f"r{i}"
        ask(made, "more")
        assert (await own.asked()).id == "more"
        assert draining.all_heard


async def test_it_is_no_engine_for_anything_else() -> None:
    known: list[str] = []
    async with bench(AT_ONCE) as made:
        made.hub.on_model(lambda info: known.append(info.name))
        made.hub.set_pins({"base": [REF]})
        outside = await made.join("outside", model=OUTSIDE)
        assert made.hub.has_overflow and not made.hub.revisions and known == []
        with pytest.raises(NoEngine):
            await made.hub.probe("base", REF)
        assert made.hub.demand()["base"].unmet == 1 and outside.all_heard
        await made.join("own")
        assert known == ["base"] and made.hub.revisions.total() == 1
    assert OUTSIDE.pool_digest() != MODEL.pool_digest()
