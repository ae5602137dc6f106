"""Which revision of a pool a tenant's requests are sent to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from inference.errors import ApiKeyRevoked, NoEngine
from inference.gateway.dispatcher import with_defaults
from inference.gateway.requests.held import Holding
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.engines import Engines
from inference.interfaces.directory import Grant, ResolvedTarget
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import ModelInfo
from inference.link.wire import Delta, Done
from inference.operations.chat import CHAT
from inference.pools import PARTS, Pool, PoolRollout, draw
from tests.inference.played import Bench, Played, benched
from tests.inference.samples import BASE, GRANT, MODEL, REF

pytestmark = pytest.mark.pure

NEW_MODEL = msgspec.structs.replace(MODEL, engine_version="2")
OLD, NEW, THIRD = MODEL.pool_digest(), NEW_MODEL.pool_digest(), "third"
SERVING, ROLLED, OTHER = (frozenset([one]) for one in (OLD, NEW, THIRD))
TENANTS = [f"tenant-{i}" for i in range(10_000)]


def rolling(weight: int, **who: frozenset[str]) -> Pool:
    return Pool(SERVING, frozenset([NEW, THIRD]), PoolRollout(7, NEW, weight, **who))


def test_without_a_rollout_serving_revisions_come_first() -> None:
    pool = Pool(SERVING, frozenset([NEW]))
    assert pool.tiers("acme") == (SERVING, ROLLED)
    assert pool.tiers("acme", tried=frozenset([NEW])) == (ROLLED,)
    assert pool.tiers("acme", tried=frozenset()) == ()


@pytest.mark.parametrize("weight", [0, 1, 5, 50, 99, 100])
def test_as_many_tenants_move_as_the_weight_says(weight: int) -> None:
    moved = [one for one in TENANTS if PoolRollout(7, NEW, weight).takes(one)]
    assert abs(len(moved) - 100 * weight) < 200
    assert weight not in (0, 100) or len(moved) == 100 * weight


def test_a_tenant_that_moved_stays_moved_at_higher_weights() -> None:
    moved: set[str] = set()
    for weight in range(101):
        now = {one for one in TENANTS[:500] if PoolRollout(7, NEW, weight).takes(one)}
        assert moved <= now
        moved = now


def test_rollouts_draw_each_for_itself() -> None:
    first, second = ([draw(id, one) for one in TENANTS] for id in (1, 2))
    assert first == [draw(1, one) for one in TENANTS] and max(first) < PARTS
    early = [one for one, other in zip(first, second, strict=True) if one < 1000 and other < 1000]
    assert 50 < len(early) < 150, "a tenth of a tenth"


def test_a_tenant_moves_first_or_last_where_an_operator_says_so() -> None:
    who = {"first": frozenset(["acme"]), "last": frozenset(["globex"])}
    assert rolling(0, **who).tiers("acme")[0] == {NEW}
    assert rolling(0, **who).tiers("initech")[0] == {OLD}
    assert rolling(100, **who).tiers("initech")[0] == {NEW}
    assert rolling(100, **who).tiers("globex")[0] == {OLD}


def test_a_tenant_moves_when_all_its_live_adapters_passed() -> None:
    pool, both = rolling(100), frozenset([OLD, NEW])
    assert pool.tiers("acme", tried=both, ready=both) == (ROLLED, SERVING)
    assert pool.tiers("acme", ready=SERVING)[0] == {OLD}, "its base model stays as well"
    assert pool.tiers("acme", tried=both, ready=SERVING) == (SERVING, ROLLED)
    assert pool.tiers("acme", tried=SERVING, ready=both) == (SERVING,), "an older version of one"
    assert pool.tiers("acme") == (ROLLED, SERVING, OTHER)


# --- among engines -------------------------------------------------------------------------------


def engine(id: str, model: ModelInfo, *, draining: bool = False) -> EngineState:
    return EngineState(id, model, draining=draining)


def test_another_tier_is_for_where_the_first_has_no_engine_that_can() -> None:
    tiers = (frozenset([NEW]), SERVING)
    needs = Needs("base", tiers=tiers)
    old, new = engine("a", MODEL), engine("b", NEW_MODEL)
    assert Engines([old, new]).revisions(needs) == frozenset([NEW])
    assert Engines([old]).revisions(needs) == frozenset([OLD])
    assert Engines([old, engine("b", NEW_MODEL, draining=True)]).revisions(needs) == frozenset(
        [OLD]
    )
    able = msgspec.structs.replace(MODEL, operations=["chat", "embedding"])
    new = engine("b", msgspec.structs.replace(NEW_MODEL, operations=["chat"]))
    tiers = (frozenset([new.pool]), frozenset([able.pool_digest()]))
    only_old = msgspec.structs.replace(needs, operation="embedding", tiers=tiers)
    both = Engines([engine("a", able), new])
    assert both.revisions(only_old) == frozenset([able.pool_digest()])
    nobody = msgspec.structs.replace(only_old, operation="song")
    assert Engines([engine("a", able), new]).revisions(nobody) == frozenset([new.pool]), (
        "whose error says what lacks"
    )


def test_where_no_tier_has_an_engine_it_is_said_why() -> None:
    new = engine("b", NEW_MODEL)
    with pytest.raises(NoEngine, match="No engine that serves `base`"):
        Engines([]).revisions(Needs("base", REF, tiers=(SERVING,)))
    with pytest.raises(NoEngine, match="No engine that serves `base`"):
        Engines([new]).revisions(Needs("base", tiers=(SERVING,)))
    with pytest.raises(NoEngine, match="has not yet been tested"):
        Engines([new]).revisions(Needs("base", REF, tiers=(SERVING,)))
    with pytest.raises(NoEngine, match="has not yet been tested"):
        Engines([new]).revisions(Needs("base", REF, tiers=()))


# --- through a hub -------------------------------------------------------------------------------


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched(holding=Holding(60.0)) as bench:
        yield bench


async def both(bench: Bench) -> tuple[Played, Played]:
    return await bench.join("old"), await bench.join("new", model=NEW_MODEL)


async def test_requests_go_where_the_rollout_has_their_tenant(bench: Bench) -> None:
    old, new = await both(bench)
    bench.hub.set_pools({"base": rolling(0)})
    bench.submit("r1")
    assert (await old.asked()).id == "r1"
    bench.hub.set_pools({"base": rolling(100)})
    bench.submit("r2")
    assert (await new.asked()).id == "r2"
    new.hang_up()
    assert (await old.asked()).id == "r2", "which had not begun"
    bench.submit("r3")
    assert (await old.asked()).id == "r3"


async def test_a_revision_that_nobody_knows_gets_nothing(bench: Bench) -> None:
    bench.hub.set_pools({"base": Pool(SERVING)})
    new = await bench.join("new", model=NEW_MODEL)
    bench.submit("r1")
    assert bench.hub.held == {"base": 1}
    bench.hub.set_pools({"base": Pool(SERVING, frozenset([NEW]))})
    assert (await new.asked()).id == "r1", "it waits, and takes over"


async def test_an_adapter_goes_only_where_it_passed(bench: Bench) -> None:
    old, new = await both(bench)
    bench.hub.set_pools({"base": Pool(SERVING, frozenset([NEW]))})
    tried = msgspec.structs.replace(BASE, adapter=REF, tried=SERVING, ready=SERVING)
    bench.submit("r1", target=tried)
    assert (await old.asked()).id == "r1"
    old.hang_up()
    await bench.links[0]
    bench.submit("r2", target=tried)
    bench.submit("r3")
    assert (await new.asked()).id == "r3", "who waits for another revision holds up nobody"
    assert bench.hub.held == {"base": 2}


class Known:
    """A directory that knows on which revisions one adapter has been probed."""

    def __init__(self, target: ResolvedTarget) -> None:
        self.target = target

    async def resolve(self, grant: Grant, name: str) -> ResolvedTarget:
        if grant.tenant != "acme":
            raise ApiKeyRevoked
        return self.target


async def test_a_request_that_waits_for_a_trial_continues_when_it_passed(bench: Bench) -> None:
    new = await bench.join("new", model=NEW_MODEL)
    bench.hub.set_pools({"base": Pool(SERVING, ROLLED)})
    untried = msgspec.structs.replace(BASE, adapter=REF, version_id=5, tried=SERVING, ready=SERVING)
    globex = replace(GRANT, tenant="globex", tenant_id=2, key_id=2)
    theirs, older = (
        msgspec.structs.replace(REF, name=f"{name}@{'b' * 64}") for name in ("globex/x", "acme/x")
    )
    bench.submit("r0", target=msgspec.structs.replace(untried, adapter=theirs), grant=globex)
    bench.submit("r1", target=untried)
    bench.submit("r2", target=msgspec.structs.replace(untried, adapter=older, version_id=4))
    tried = msgspec.structs.replace(untried, tried=frozenset([OLD, NEW]))
    await bench.hub.refresh_targets(3, cast(Any, Known(tried)))
    assert new.all_heard
    await bench.hub.refresh_targets(None, cast(Any, Known(tried)))
    assert (await new.asked()).id == "r1"
    assert bench.hub.held == {"base": 2}, "another version, and whom nobody resolves"


async def test_a_full_revision_does_not_spill_to_another(bench: Bench) -> None:
    old, new = await both(bench)
    bench.hub.set_pools({"base": Pool(SERVING, frozenset([NEW]))})
    for i in range(200):
        bench.submit(f"r{i}")
        assert (await old.asked()).id == f"r{i}"
    assert new.all_heard


async def test_a_begun_answer_continues_on_its_own_revision() -> None:
    async with benched(holding=Holding(60.0)) as bench:
        newer = msgspec.structs.replace(MODEL, engine_version="2")
        first = await bench.join("a", run="1")
        digest, other = MODEL.pool_digest(), newer.pool_digest()
        bench.hub.set_pools({"base": Pool(frozenset([digest]))})
        stream = bench.submit("r1")
        await first.asked()
        first.say(wire.Step([Delta("r1", "Hel", 1, ids={0: [5]})]))
        await stream.read()
        new = await bench.join("n", model=newer, run="2")
        second = await bench.join("b", run="3")
        bench.hub.set_pools({"base": Pool(frozenset([other]))})
        first.hang_up()
        moved = await second.asked()
        assert (moved.id, moved.attempt) == ("r1", 2) and new.all_heard


async def test_a_probe_goes_to_the_revision_that_it_is_for(bench: Bench) -> None:
    _, new = await both(bench)
    bench.hub.set_pools({"base": Pool(SERVING)})
    with pytest.raises(NoEngine):
        await bench.hub.probe("base", REF, "nobody's")
    asked = asyncio.create_task(bench.hub.probe("base", REF, NEW))
    load = await new.hear()
    assert isinstance(load, wire.Load) and load.probe
    new.say(wire.Loaded(load.id, {"finite": True}))
    assert await asked == {"finite": True}


async def test_pinned_adapters_are_loaded_where_they_passed(bench: Bench) -> None:
    bench.hub.set_pins({"base": [REF]}, {REF.digest: SERVING})
    old, new = await both(bench)
    pins, none = await old.hear(), await new.hear()
    assert isinstance(pins, wire.PinnedAdapters) and [one.name for one in pins.adapters] == [
        REF.name
    ]
    assert isinstance(none, wire.PinnedAdapters) and none.adapters == []
    bench.hub.set_pins({"base": [REF]}, {REF.digest: frozenset([OLD, NEW])})
    now = await new.hear()
    assert isinstance(now, wire.PinnedAdapters) and len(now.adapters) == 1


async def test_attempts_and_errors_are_counted_by_revision() -> None:
    async with benched(uncounted=frozenset(["globex"])) as bench:
        old, new = await both(bench)
        bench.hub.set_pools({"base": rolling(100)})
        assert bench.hub.revisions == {OLD: 1, NEW: 1}
        bench.submit("r1")
        await new.asked()
        new.say(wire.Step([Delta("r1", "x", 1)]))
        new.say(Done("r1", Usage(5, 0, 1), "stop"))
        refused = bench.submit("r2")
        await new.asked()
        new.say(Done("r2", Usage(), fault=wire.Fault("invalid_request", "no")))
        failed = bench.submit("r3")
        await new.asked()
        new.say(Done("r3", Usage(), fault=wire.Fault("internal_error", "broken")))
        bench.submit("r4", grant=replace(GRANT, tenant="globex"))
        await new.asked()
        new.say(wire.Step([Delta("r4", "x", 1)]))
        new.say(Done("r4", Usage(5, 0, 1), "stop"))
        bench.submit("r5")
        await new.asked()
        for stream in (refused, failed):
            with pytest.raises(Exception, match=r"no|broken"):
                await stream.read()
        new.hang_up()
        assert (await old.asked()).id == "r5"
        counted = bench.hub.traffic.take()[NEW]
        assert (counted.requests, counted.errors, sum(counted.first_tokens)) == (4, 2, 1)
        bench.hub.traffic.give_back({NEW: counted}.items())
        assert bench.hub.traffic.take() == {NEW: counted}


# --- defaults ------------------------------------------------------------------------------------


def test_defaults_are_for_what_a_body_lacks() -> None:
    body = b' {"model": "m", "messages": [{"role": "user", "content": "{hi}"}], "temperature": 1}'
    whole = with_defaults(body, b'"temperature":0.2,"max_tokens":7,')
    fields = CHAT.read(whole, None)
    assert (fields["temperature"], fields["max_tokens"], fields["model"]) == (1, 7, "m")
    assert CHAT.parse(whole).workload.max_tokens == 7
    assert CHAT.parse(with_defaults(body[:-1] + b', "max_tokens": 3}', b'"max_tokens":7,')
                      ).workload.max_tokens == 3  # fmt: skip
