"""Answers without a gateway: which of them a gateway accepts, and how it adopts them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from inference.errors import EngineLost, Overloaded, Unavailable
from inference.gateway.fleet import orphans as module
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.held import Holding
from inference.gateway.requests.stream import AnswerMissing, Stream
from inference.interfaces.credentials import EngineIdentity
from inference.interfaces.limiter import Reservation
from inference.link import wire
from inference.link.accounts import Account, LedgerEntry, Usage, first_attempt
from inference.link.wire import NOT_KEPT, Cancel, Delta, Done, Orphan, Retention
from tests.inference.played import DISPATCHES, MOST, Bench, Played, benched
from tests.inference.rig import ENGINE, until
from tests.inference.samples import BASE, GRANT

pytestmark = pytest.mark.pure

BEGAN = 1_700_000_000.5
ACCOUNT = Account(GRANT.tenant_id, GRANT.key_id, BEGAN, "base")
ALL = Delta("r1", "Hel", 2, [], 7, 3, attempt=1001, ids={0: [11, 12]})
"""The part of the answer that the engine has."""


def orphan(
    id: str = "r1",
    attempt: int = 1,
    *,
    credential: int = ENGINE.id,
    label: str = "",
    **account: Any,
) -> Orphan:
    """An orphan as a gateway dispatched it."""
    whose = msgspec.structs.replace(ACCOUNT, **account)
    signed = DISPATCHES.signed(whose, (id, attempt), "m", credential=credential, most=MOST)
    return Orphan(id, attempt, signed, "m", label)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched(holding=Holding(60.0)) as bench:
        yield bench


async def told(bench: Bench, *some: Orphan, withdrawn: Any = (), engine: str = "a") -> Played:
    """Join an engine and let it announce these orphans."""
    link = await bench.join(engine, run=f"run-{engine}")
    link.say(wire.OrphanList(list(some), list(withdrawn)))
    await until(lambda: link.all_read)
    return link


KEPT = Retention(30.0)


async def adopted(bench: Bench, link: Played, turn: int = 2, **fields: Any) -> Stream:
    """Adopt `r1`; returns its stream."""
    found = bench.hub.orphans.find(GRANT.key_id, "r1")
    assert found is not None and bench.hub.orphans.take(found)
    given: dict[str, Any] = {"kind": "chat", "body": b"{}", "lane": "batch", "timeout_s": 9}
    given |= {"grant": GRANT, "target": BASE, "reservation": Reservation("r1")}
    given |= {"started_at": time.time() - 2, "retention": KEPT} | fields
    await bench.limits.take_over("r1", GRANT, BASE)
    return bench.hub.adopt(AdmittedRequest(**given), found, turn)


async def read_all(stream: Stream) -> tuple[str, Done]:
    text = ""
    while isinstance(news := await stream.read(), Delta):
        text += news.text
    return text, news


# --- which ones count ----------------------------------------------------------------------------


async def test_what_was_dispatched_to_that_engine_is_known_by_its_key(bench: Bench) -> None:
    await told(bench, orphan(), orphan("r2", 1001), orphan("r3", key_id=9))
    assert bench.hub.orphans.turns(GRANT.key_id) == {"r1": 1, "r2": 2}
    assert bench.hub.orphans.turns(9) == {"r3": 1}


@pytest.mark.parametrize(
    "forged",
    [
        Orphan("r1", 1, ACCOUNT, "m"),
        msgspec.structs.replace(orphan(), attempt=2),
        msgspec.structs.replace(orphan(), id="r2"),
        msgspec.structs.replace(orphan(), model="another"),
        orphan(credential=ENGINE.id + 1),
        msgspec.structs.replace(
            orphan(), account=msgspec.structs.replace(orphan().account, key_id=9)
        ),
        orphan(attempt=first_attempt(module.MAX_TURNS)),
    ],
)
async def test_an_orphan_that_was_not_dispatched_to_that_engine_is_ignored(
    bench: Bench, forged: Orphan
) -> None:
    await told(bench, forged)
    for key_id in (GRANT.key_id, 9):
        assert bench.hub.orphans.turns(key_id) == {}
        assert bench.hub.orphans.find(key_id, "r1") is None


async def test_what_is_gone_or_whose_engine_is_lost_is_forgotten(bench: Bench) -> None:
    link = await told(bench, orphan(), orphan("r2"))
    link.say(wire.OrphanList(withdrawn=[("r2", 1), ("r9", 1)]))
    await until(lambda: bench.hub.orphans.turns(GRANT.key_id) == {"r1": 1})
    link.hang_up()
    await bench.end()
    assert bench.hub.orphans.turns(GRANT.key_id) == {}


async def test_an_orphan_that_is_announced_again_is_one(bench: Bench) -> None:
    link = await told(bench, orphan())
    link.say(wire.OrphanList([orphan(label="mine")]))
    await until(lambda: link.all_read)
    found = await bench.hub.orphans.labelled(GRANT.key_id, "mine", 0.0)
    assert found is not None and bench.hub.orphans.take(found)
    assert bench.hub.orphans.turns(GRANT.key_id) == {}


async def test_the_orphans_of_an_engine_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OF_AN_ENGINE", 2)
    await told(bench, *(orphan(f"r{i}") for i in range(5)))
    assert len(bench.hub.orphans.turns(GRANT.key_id)) == 2


async def test_of_several_attempts_the_highest_is_taken(bench: Bench) -> None:
    await told(bench, orphan(), engine="a")
    await told(bench, orphan(attempt=2), engine="b")
    found = bench.hub.orphans.find(GRANT.key_id, "r1")
    assert found is not None and (found.orphan.attempt, found.link.engine.id) == (2, "b")
    assert bench.hub.orphans.take(found) and not bench.hub.orphans.take(found), "once"
    assert bench.hub.orphans.turns(GRANT.key_id) == {"r1": 1}, "the other one is there still"


async def test_one_with_a_label_is_waited_for(bench: Bench) -> None:
    find = bench.hub.orphans.labelled
    assert await find(GRANT.key_id, "mine", 0.0) is None
    waiting = asyncio.create_task(find(GRANT.key_id, "mine", 60.0))
    await told(bench, orphan("r1", label="another"), orphan("r2", key_id=9, label="mine"))
    assert not waiting.done()
    await told(bench, orphan("r3", label="mine"), engine="b")
    found = await waiting
    assert found is not None and found.orphan.id == "r3"
    assert bench.hub.orphans.take(found)
    assert await find(GRANT.key_id, "mine", 0.0) is None


# --- going on with one ---------------------------------------------------------------------------


async def test_the_answer_comes_from_its_beginning_and_its_highest_attempt_bills(
    bench: Bench,
) -> None:
    link = await told(bench, orphan(started_at=time.time() - 2))
    stream = await adopted(bench, link)
    asked = await link.hear()
    assert isinstance(asked, wire.Adopt)
    assert (asked.id, asked.attempt, asked.of, asked.watched) == ("r1", 1001, 1, False)
    link.say(wire.Step([ALL]))
    link.say(wire.Step([Delta("r1", "lo", 1, attempt=1001, ids={0: [13]})]))
    link.say(Done("r1", Usage(7, 3, 3), "stop", attempt=1001))
    assert await read_all(stream) == ("Hello", Done("r1", Usage(7, 3, 3), "stop", attempt=1001))
    assert bench.limits.settled == {"r1": Usage(7, 3, 3)}
    entry = LedgerEntry("r1", asked.account, "m", Usage(7, 3, 3), "stop", 1001, 2)
    link.say(wire.UsageReport("journal", [entry]))
    await until(lambda: bench.ledger.told)
    assert not bench.ledger.quarantined and not bench.hub.in_flight


async def test_adopting_a_missing_answer_raises_gone_and_keeps_its_reservation(
    bench: Bench,
) -> None:
    link = await told(bench, orphan())
    stream = await adopted(bench, link)
    link.say(Done("r1", Usage(), wire.GONE, attempt=1001))
    with pytest.raises(AnswerMissing):
        await stream.read()
    assert bench.limits.settled == {"r1": None}


async def test_it_moves_on_when_its_engine_dies(bench: Bench) -> None:
    first, second = await told(bench, orphan(started_at=1.0)), await told(bench, engine="b")
    stream = await adopted(bench, first)
    first.say(wire.Step([ALL]))
    await stream.read()
    first.hang_up()
    asked = await second.asked()
    assert (asked.attempt, asked.account.started_at) == (1002, stream.request.started_at)
    assert asked.resume is not None and asked.resume.ids == {0: [11, 12]}
    assert (asked.resume.text, asked.retention.grace_s) == ("Hel", 30.0), (
        "that it can be adopted again"
    )
    assert asked.timeout_s < 7.1, "of the time that it had, other gateways used some"


async def test_without_a_body_it_ends_with_its_engine(bench: Bench) -> None:
    first = await told(bench, orphan())
    await told(bench, engine="b")
    stream = await adopted(bench, first, body=b"")
    first.say(wire.Step([ALL]))
    await stream.read()
    first.hang_up()
    with pytest.raises(EngineLost):
        await stream.read()


async def test_a_gateway_that_ends_adopts_nothing(bench: Bench) -> None:
    link = await told(bench, orphan())
    bench.hub.close()
    assert bench.hub.closed.is_set()
    with pytest.raises(Overloaded):
        await adopted(bench, link)


# --- the gateway that had it ---------------------------------------------------------------------


async def test_a_request_with_a_grace_is_left_to_its_engine(bench: Bench) -> None:
    link = await bench.join("a")
    stream = bench.submit("r1", retention=Retention(30.0, "mine"))
    asked = await link.asked()
    assert asked.retention == Retention(30.0, "mine")
    stream.leave(Unavailable("ends"))
    assert await link.hear() == Cancel("r1", wire.LEFT, 1)
    link.say(Done("r1", Usage(7, 0, 1), wire.LEFT))
    with pytest.raises(Unavailable, match="ends"):
        await stream.read()
    await until(lambda: not bench.hub.in_flight)
    assert bench.limits.handed_over == ["r1"] and not bench.limits.settled


async def test_a_request_that_its_engine_does_not_keep_is_not_left(bench: Bench) -> None:
    link = await bench.join("a")
    stream = bench.submit("r1", retention=NOT_KEPT)
    await link.asked()
    bench.hub.leave()
    assert not stream.request.handed_over and stream.request.is_wanted


async def test_a_request_without_an_engine_is_not_left(bench: Bench) -> None:
    stream = bench.submit("r1", retention=KEPT)
    bench.hub.leave()
    assert not stream.request.handed_over


async def test_a_gateway_that_was_cut_off_cancels_what_it_has_elsewhere(bench: Bench) -> None:
    first = await bench.join("a", run="run-a")
    second = await bench.join("b", run="run-b")
    stream = bench.submit("r1", retention=KEPT)
    await first.asked()
    first.say(wire.Step([Delta("r1", "Hel", 2, [], 7, 3, ids={0: [11, 12]})]))
    await stream.read()
    first.hang_up()
    asked = await second.asked()
    assert asked.resume is not None and asked.resume.text == "Hel"
    back = await told(bench, orphan("r1", 1))
    assert await back.hear() == Cancel("r1", "moved", 1)
    assert bench.hub.orphans.turns(GRANT.key_id) == {}


async def test_a_request_adopted_elsewhere_is_not_settled_here(bench: Bench) -> None:
    link = await bench.join("a")
    stream = bench.submit("r1", retention=KEPT)
    await link.asked()
    stream.end(Unavailable("it is elsewhere"), handed_over=True)
    assert await link.hear() == Cancel("r1", "service_unavailable", 1)
    link.say(Done("r1", Usage(7, 0, 1), "cancelled"))
    with pytest.raises(Unavailable, match="elsewhere"):
        await stream.read()
    await until(lambda: not bench.hub.in_flight)
    assert bench.limits.handed_over == ["r1"] and not bench.limits.settled


def test_the_credential_of_an_engine_is_in_what_it_hands_back() -> None:
    one = orphan()
    attempt = one.id, one.attempt
    assert DISPATCHES.is_of(one.account, attempt, "m", ENGINE.id)
    other = EngineIdentity(ENGINE.id + 1, "other")
    assert not DISPATCHES.is_of(one.account, attempt, "m", other.id)
    assert not DISPATCHES.is_of(ACCOUNT, attempt, "m", ENGINE.id)
