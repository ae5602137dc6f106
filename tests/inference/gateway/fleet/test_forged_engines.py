"""A lying engine with a valid credential: which of its claims the gateway accepts, and which of
them affect others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from inference.errors import EngineLost, NoEngine
from inference.gateway.fleet.intake import MAX_ENTRIES
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.stream import Stream
from inference.interfaces.credentials import EngineIdentity
from inference.interfaces.directory import ResolvedTarget
from inference.interfaces.limiter import Reservation, ReservationRequest
from inference.link import wire
from inference.link.accounts import NOBODY, Account, LedgerEntry, Totals, Usage
from inference.link.engine_info import EngineStats, ModelInfo, Suspect
from inference.link.wire import Done, UsageAck, UsageReport
from inference.link.workload import Workload
from tests.inference.played import Bench, Played, benched
from tests.inference.rig import until
from tests.inference.samples import BASE, GRANT, MODEL, REF

pytestmark = pytest.mark.pure

FORGER, FORGERS_SECRET = EngineIdentity(66, "forger"), "f" * 40


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with benched() as bench:
        bench.engines.known[FORGERS_SECRET] = FORGER
        yield bench


async def dispatched(
    bench: Bench, engine: Played, id: str = "r1", target: ResolvedTarget = BASE
) -> tuple[Stream, wire.Submit]:
    """Dispatch a request of at most 16 tokens; returns its stream and the `submit` that the engine
    got."""
    reservation = Reservation(id, 16)
    bench.limits.open[id] = ReservationRequest(1, 16, 16)
    order = AdmittedRequest(
        GRANT, target, reservation, "chat", b"{}", "batch", 9, Workload(max_tokens=16)
    )
    stream = bench.hub.submit(order)
    submitted = await engine.hear()
    assert isinstance(submitted, wire.Submit)
    return stream, submitted


def entry_of(submit: wire.Submit, usage: Usage, **fields: Any) -> LedgerEntry:
    """A ledger entry of a request, as the engine that received it could report it."""
    entry = LedgerEntry(submit.id, submit.account, submit.model, usage, "stop", submit.attempt)
    return msgspec.structs.replace(entry, **fields)


HONEST = Usage(5, 0, 2)


async def reported(bench: Bench, engine: Played, *entries: LedgerEntry) -> None:
    """Report these entries and wait until the gateway has billed or quarantined each."""
    kept = len(bench.ledger.quarantined) + sum(len(told[2]) for told in bench.ledger.told)
    engine.say(UsageReport("journal-1", list(entries)))

    def decided() -> bool:
        billed = sum(len(told[2]) for told in bench.ledger.told)
        return len(bench.ledger.quarantined) + billed == kept + len(entries)

    await until(decided)


async def ended_for_violation(engine: Played) -> None:
    """The gateway has ended the link because of what the engine said."""
    error = await engine.hear()
    assert isinstance(error, wire.Error) and error.fault.code == "protocol_violation"


async def test_what_was_dispatched_is_billed_and_nothing_else_of_the_same_report(
    bench: Bench,
) -> None:
    engine = await bench.join()
    stream, submit = await dispatched(bench, engine)
    engine.say(Done("r1", HONEST, "stop"))
    await stream.read()
    good = entry_of(submit, HONEST)
    bad = msgspec.structs.replace(good, id="r2")
    await reported(bench, engine, bad, good)
    ((_, _, billed, written),) = bench.ledger.told
    assert list(billed) == [good]
    ((source, suspect, reason),) = bench.ledger.quarantined
    assert (source.engine_id, source.credential, source.journal) == ("engine-1", 7, "journal-1")
    assert (suspect, reason, bench.hub.intake.quarantined) == (bad, "not_dispatched", 1)
    assert await engine.hear() == UsageAck([("r2", 1)]), "it is kept, so the engine forgets it"
    written([("r1", 1)])
    assert await engine.hear() == UsageAck([("r1", 1)])


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "10^9 tokens": ({"usage": Usage(5, 0, 10**9)}, "over_bounds"),
    "10^9 tokens of prompt": ({"usage": Usage(10**9, 0, 2)}, "over_bounds"),
    "a negative amount": ({"usage": Usage(5, 0, -1000)}, "malformed"),
    "a negative cost": ({"usage": Usage(5, 10**6, 2)}, "malformed"),
    "another request": ({"id": "r2"}, "not_dispatched"),
    "a higher attempt": ({"attempt": 2}, "not_dispatched"),
    "another model": ({"model": "dear"}, "not_dispatched"),
}


@pytest.mark.parametrize("what", LIES)
async def test_an_engine_bills_nothing_but_what_it_was_given(bench: Bench, what: str) -> None:
    engine = await bench.join()
    _, submit = await dispatched(bench, engine)
    fields, reason = LIES[what]
    await reported(bench, engine, msgspec.structs.replace(entry_of(submit, HONEST), **fields))
    assert [reason for _, _, reason in bench.ledger.quarantined] == [reason]
    assert bench.ledger.told == []


@pytest.mark.parametrize(
    "fields",
    [{"tenant_id": 2}, {"key_id": 2}, {"adapter_id": 9}, {"version_id": 9}, {"price": (9, 9, 9)}],
)
async def test_an_engine_bills_nobody_else(bench: Bench, fields: dict[str, Any]) -> None:
    engine = await bench.join()
    _, submit = await dispatched(bench, engine)
    account = msgspec.structs.replace(submit.account, **fields)
    await reported(bench, engine, entry_of(submit, HONEST, account=account))
    assert [reason for _, _, reason in bench.ledger.quarantined] == ["not_dispatched"]


async def test_an_engine_bills_nothing_that_another_one_was_given(bench: Bench) -> None:
    honest = await bench.join("honest")
    forger = await bench.join("forger", secret=FORGERS_SECRET)
    bench.hub.drain("forger")
    _, submit = await dispatched(bench, honest)
    await reported(bench, forger, entry_of(submit, HONEST))
    assert [reason for _, _, reason in bench.ledger.quarantined] == ["another_engine"]
    assert "r1" in bench.limits.open, "nobody else's reservation is settled by it"
    await reported(bench, honest, entry_of(submit, HONEST))
    assert len(bench.ledger.told) == 1


async def test_a_forged_entry_settles_no_reservation(bench: Bench) -> None:
    """A reservation of another gateway is settled by the gateway that hears of the request's
    end."""
    forger = await bench.join(secret=FORGERS_SECRET)
    bench.limits.open["theirs"] = ReservationRequest(1, 16, 16)
    account = Account(1, 1, 1.7e9, "base")
    lie = LedgerEntry("theirs", account, "base", Usage(1, 0, 10**9), "stop")
    await reported(bench, forger, lie)
    assert [reason for _, _, reason in bench.ledger.quarantined] == ["unsigned"]
    assert "theirs" in bench.limits.open and not bench.limits.settled


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        (Usage(5, 0, 10**9), (5, 0, 16 + 64)),
        (Usage(10**9, 10**9, 2), (2048, 2048, 2)),
        (Usage(-5, -5, -1000), (0, 0, 0)),
        (HONEST, (5, 0, 2)),
    ],
)
async def test_a_forged_done_cannot_use_up_a_tenants_limits(
    bench: Bench, said: Usage, believed: tuple[int, int, int]
) -> None:
    engine = await bench.join()
    stream, _ = await dispatched(bench, engine)
    engine.say(Done("r1", said, "stop"))
    done = await stream.read()
    assert isinstance(done, Done)
    settled = bench.limits.settled["r1"]
    for usage in (done.usage, settled):
        assert usage is not None
        found = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        assert found == believed


async def test_an_engine_that_leaves_cannot_use_up_a_tenants_limits(bench: Bench) -> None:
    engine = await bench.join()
    stream, _ = await dispatched(bench, engine)
    engine.say(wire.Step([wire.Delta("r1", "a", 10**9, prompt_tokens=10**9, cached_tokens=10**9)]))
    await stream.read()
    engine.hang_up()
    with pytest.raises(EngineLost):
        await stream.read()
    settled = bench.limits.settled["r1"]
    assert settled is not None
    found = (settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens)
    assert found == (2048, 2048, 16 + 64)


AMOUNTS: dict[str, Callable[[Any], wire.Frame]] = {
    "kv_usage": lambda number: wire.Stats(EngineStats(kv_usage=number)),
    "gained": lambda number: wire.Stats(EngineStats(), gained={"acme": number}),
    "deaths": lambda number: wire.SuspectList([Suspect("d", {"run": number})]),
    "ended_well_at": lambda number: wire.SuspectList([Suspect("d", ended_well_at=number)]),
    "retry_after_s": lambda number: Done(
        "r1", Usage(), fault=wire.Fault("overloaded", "", retry_after_s=number)
    ),
}
COUNTS: dict[str, Callable[[Any], wire.Frame]] = {
    "stats": lambda number: wire.Stats(EngineStats(queued_tokens=number)),
    "totals": lambda number: wire.Stats(EngineStats(journaled=Totals(number))),
    "delta": lambda number: wire.Step([wire.Delta("r1", tokens=number)]),
    "wait": lambda number: wire.Waits([wire.Wait("r1", "queued", number)]),
}
IMPOSSIBLE = {
    f"{name} {number}": frame(number)
    for frames, numbers in (
        (AMOUNTS, (-1, float("nan"), float("inf"), 1e300)),
        (COUNTS, (-1, 1 << 54)),
    )
    for name, frame in frames.items()
    for number in numbers
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
async def test_an_impossible_number_ends_the_link(bench: Bench, what: str) -> None:
    engine = await bench.join()
    await dispatched(bench, engine)
    engine.say(IMPOSSIBLE[what])
    await ended_for_violation(engine)


@pytest.mark.parametrize("field", ["max_model_len", "max_loras", "max_lora_rank", "kv_tokens"])
async def test_an_impossible_size_is_refused(bench: Bench, field: str) -> None:
    played = await bench.dial()
    model = msgspec.structs.replace(MODEL, **{field: -1})
    played.say(wire.Hello(1, wire.PROTOCOL_VERSION, "engine-1", model))
    await ended_for_violation(played)


async def test_duplicate_entries_are_left_to_the_ledger(bench: Bench) -> None:
    """The ledger records no entry twice, and repeating one is not a fault."""
    engine = await bench.join()
    _, submit = await dispatched(bench, engine)
    for _ in range(2):
        await reported(bench, engine, entry_of(submit, HONEST))
    assert len(bench.ledger.told) == 2 and not bench.ledger.quarantined


async def test_an_engine_serves_only_the_pools_of_its_credential(bench: Bench) -> None:
    bench.engines.known[FORGERS_SECRET] = replace(FORGER, pools=frozenset({"other"}))
    played, seen = await bench.dial(FORGERS_SECRET), list[ModelInfo]()
    bench.hub.on_model(seen.append)
    played.say(wire.Hello(1, wire.PROTOCOL_VERSION, "engine-1", MODEL))
    error = await played.hear()
    assert isinstance(error, wire.Error) and error.fault.code == "engine_refused"
    assert "`forger`" in error.fault.message and "`base`" in error.fault.message
    assert bench.hub.snapshot() == [] and seen == []
    named = msgspec.structs.replace(MODEL, name="other")
    await bench.join(secret=FORGERS_SECRET, model=named)
    assert [engine["credential"] for engine in bench.hub.snapshot()] == ["forger"]
    assert seen == [named]


async def test_a_revoked_engine_is_cut_off_and_its_neighbour_is_not(bench: Bench) -> None:
    honest = await bench.join("honest")
    bench.hub.drain("honest")
    forger = await bench.join("forger", secret=FORGERS_SECRET)
    stream, _ = await dispatched(bench, forger)
    del bench.engines.known[FORGERS_SECRET]
    bench.hub.check_credentials()
    with pytest.raises(EngineLost):
        await stream.read()
    assert [engine["id"] for engine in bench.hub.snapshot()] == ["honest"]
    await until(lambda: forger.closed_for)
    honest.say(wire.Heartbeat())
    await until(lambda: honest.all_read)
    assert honest.closed_for is None


async def test_a_credential_that_changes_ends_the_link_too(bench: Bench) -> None:
    """As when its secret was rotated or its pools were narrowed."""
    forger = await bench.join(secret=FORGERS_SECRET)
    bench.engines.known[FORGERS_SECRET] = replace(FORGER, prefix="new")
    bench.hub.check_credentials()
    await until(lambda: forger.closed_for)
    with pytest.raises(NoEngine):
        bench.submit()


async def test_an_engine_revoked_before_its_welcome_does_not_join(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inference.gateway import hub

    monkeypatch.setattr(hub, "RIVAL_SPEAKS_S", 0.01)
    await bench.join("e", run="first")
    forger = await bench.dial(FORGERS_SECRET)
    forger.say(wire.Hello(1, wire.PROTOCOL_VERSION, "e", MODEL, run="second"))
    await until(lambda: forger.all_read)
    del bench.engines.known[FORGERS_SECRET]
    error = await forger.hear()
    assert isinstance(error, wire.Error) and error.fault.code == "engine_refused"


@pytest.mark.parametrize("id", ["", "x" * 256, "a\0b", "a\nb"])
async def test_an_engine_has_an_id_that_the_ledger_can_hold(bench: Bench, id: str) -> None:
    played = await bench.dial()
    played.say(wire.Hello(1, wire.PROTOCOL_VERSION, id, MODEL))
    await ended_for_violation(played)


@pytest.mark.parametrize("journal", ["", "x" * 65, "a\0b", "a b"])
async def test_a_journal_has_a_name_that_the_ledger_can_hold(bench: Bench, journal: str) -> None:
    engine = await bench.join()
    engine.say(UsageReport(journal, []))
    await ended_for_violation(engine)


async def test_a_report_is_no_longer_than_agents_make_it(bench: Bench) -> None:
    engine = await bench.join()
    lie = LedgerEntry("r", NOBODY, "base", HONEST, "stop")
    engine.say(UsageReport("journal-1", [lie] * (MAX_ENTRIES + 1)))
    await ended_for_violation(engine)
    assert not bench.ledger.quarantined


async def test_every_way_to_an_adapter_brings_its_ticket(bench: Bench) -> None:
    engine = await bench.join(model=msgspec.structs.replace(MODEL, max_lora_rank=64))
    _, submit = await dispatched(bench, engine, target=ResolvedTarget("s", "base", REF, 1, 1))
    bench.hub.set_pins({"base": [REF]})
    pins = await engine.hear()
    probe = asyncio.create_task(bench.hub.probe("base", REF))
    load = await engine.hear()
    probe.cancel()
    assert isinstance(pins, wire.PinnedAdapters) and isinstance(load, wire.Load)
    tickets = {ref.ticket for ref in (submit.adapter, *pins.adapters, load.adapter) if ref}
    assert len(tickets) == 1 and "" not in tickets
    forger = await bench.join("forger", secret=FORGERS_SECRET)
    told = await forger.hear()
    assert isinstance(told, wire.PinnedAdapters) and told.adapters[0].ticket not in tickets
