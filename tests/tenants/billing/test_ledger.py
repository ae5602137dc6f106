"""Each entry is billed once, at its price, despite failures and concurrency; the sums add up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from asgiref.sync import sync_to_async
from structlog.testing import capture_logs

from inference.interfaces.directory import TokenPrice as Prices
from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.billing.insertion import insert
from tenants.billing.ledger import BATCH, connect
from tenants.billing.lines import Connection, StatementLine, as_json
from tenants.billing.statements import write
from tenants.models import EngineJournal, UsageEvent, UsageRollup
from tenants.models.usage.sums import FIGURES
from tests.tenants.billing.test_sums import moment, months, months_of_hours, usage_of
from tests.tenants.making import make_adapter, make_key, make_tenant
from tests.tenants.spending import patient_ledger

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
USAGE = Usage(100, 40, 7, 2, 0.1, 0.2, 0.3, 0.9)


@dataclass(frozen=True)
class Customer:
    """The ids of a tenant, a key and an adapter, as an account names them."""

    tenant_id: int
    key_id: int
    adapter_id: int

    def entry(
        self,
        id: str,
        at: datetime = NOON,
        *,
        model: str = "base",
        usage: Usage = USAGE,
        finish_reason: str = "stop",
        **account: Any,
    ) -> LedgerEntry:
        adapter_id = None if model == "base" else self.adapter_id
        named: dict[str, Any] = {
            "tenant_id": self.tenant_id,
            "key_id": self.key_id,
            "started_at": at.timestamp(),
            "base_model": "base",
            "adapter_id": adapter_id,
        }
        billed = Account(**(named | account))
        return LedgerEntry(id, billed, model, usage, finish_reason)


def make_customer(slug: str = "") -> Customer:
    tenant = make_tenant(slug)
    return Customer(tenant.pk, make_key(tenant)[0].pk, make_adapter(tenant).pk)


@pytest.fixture
async def acme(async_db: None) -> Customer:
    return await sync_to_async(make_customer)("acme")


@pytest.fixture
async def pg(async_db: None) -> AsyncIterator[Connection]:
    async with await connect() as made:
        yield made


@dataclass
class Told:
    """A `written` callback that records its calls."""

    ids: list[str] = field(default_factory=list)
    calls: int = 0
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, attempts: Sequence[tuple[str, int]]) -> None:
        self.calls += 1
        self.ids += [id for id, _ in attempts]
        self.happened.set()


def lines(*entries: LedgerEntry, journal: str = "j1") -> list[StatementLine]:
    return [StatementLine("e1", journal, entry) for entry in entries]


@sync_to_async
def events() -> list[UsageEvent]:
    return list(UsageEvent.objects.order_by("id"))


@sync_to_async
def ids() -> list[str]:
    return sorted(UsageEvent.objects.values_list("id", flat=True))


@sync_to_async
def rollups() -> dict[tuple[Any, ...], tuple[int, ...]]:
    """FIGURES by (hour, key, adapter, model)."""
    return {
        (row.hour, row.key_id, row.adapter, row.model): tuple(
            int(getattr(row, name)) for name in FIGURES
        )
        for row in UsageRollup.objects.all()
    }


@sync_to_async
def journal(name: str = "j1") -> EngineJournal:
    return EngineJournal.objects.get(journal=name)


def of_ledger(row: EngineJournal) -> tuple[int, ...]:
    return (
        row.ledger_requests, row.ledger_prompt_tokens, row.ledger_cached_tokens,
        row.ledger_completion_tokens,
    )  # fmt: skip


# --- The statement -------------------------------------------------------------------------------


async def test_every_figure_arrives(acme: Customer, pg: Connection) -> None:
    await write(pg, lines(acme.entry("a", model="support@2", version_id=77)))
    (event,) = await events()
    assert (event.id, event.started_at, event.finish_reason) == ("a", NOON, "stop")
    assert (event.tenant_id, event.key_id, event.version_id) == (acme.tenant_id, acme.key_id, 77)
    assert (event.adapter, event.model, event.base_model) == ("support", "support@2", "base")
    assert (event.engine_id, event.journal) == ("e1", "j1")
    assert (event.prompt_tokens, event.cached_tokens) == (100, 40)
    assert (event.completion_tokens, event.reasoning_tokens) == (7, 2)
    assert (event.queue_s, event.load_s, event.ttft_s, event.total_s) == (0.1, 0.2, 0.3, 0.9)
    assert event.cost == 0 and not event.overflow


async def test_an_event_says_whether_an_overflow_engine_ran_it(
    acme: Customer, pg: Connection
) -> None:
    await write(pg, lines(acme.entry("a", overflow=True), acme.entry("b")))
    assert [event.overflow for event in await events()] == [True, False]
    again = msgspec.structs.replace(acme.entry("b", overflow=True), attempt=2)
    await write(pg, lines(again))
    assert [event.overflow for event in await events()] == [True, True]


async def test_an_event_names_the_route_that_chose_its_model(
    acme: Customer, pg: Connection
) -> None:
    await write(pg, lines(acme.entry("a", route="auto"), acme.entry("b")))
    assert [event.route for event in await events()] == ["auto", ""]


async def test_an_estimate_is_marked(acme: Customer, pg: Connection) -> None:
    """By the attempt that is billed, and never in entries of engines that do not know the mark."""
    guessed = Usage(100, 0, 7, is_estimated=True)
    first, second = acme.entry("a", usage=guessed), acme.entry("b", usage=Usage(100, 0, 7))
    await write(pg, lines(first, second))
    assert [one.is_estimated for one in await events()] == [True, False]
    higher = [
        msgspec.structs.replace(first, attempt=2, usage=second.usage),
        msgspec.structs.replace(second, attempt=2, usage=guessed),
    ]
    await write(pg, lines(*higher))
    assert [one.is_estimated for one in await events()] == [False, True]
    older = msgspec.to_builtins(acme.entry("c"))
    older[3] = older[3][:8]
    await insert(pg, as_json([["e1", "j1", older]]))
    assert [one.is_estimated for one in await events()] == [False, True, False]


async def test_sums_are_kept_by_hour_key_and_model(acme: Customer, pg: Connection) -> None:
    await write(pg, lines(
        acme.entry("a"), acme.entry("b", NOON + timedelta(minutes=59, seconds=59)),
        acme.entry("c", NOON + timedelta(hours=1)), acme.entry("d", model="support"),
        acme.entry("e", key_id=acme.key_id + 1),
    ))  # fmt: skip
    await write(pg, lines(acme.entry("f")))
    one = (1, 100, 40, 7, 2, 0)
    assert await rollups() == {
        (NOON, acme.key_id, "", "base"): tuple(3 * n for n in one),
        (NOON + timedelta(hours=1), acme.key_id, "", "base"): one,
        (NOON, acme.key_id, "support", "support"): one,
        (NOON, acme.key_id + 1, "", "base"): one,
    }
    assert of_ledger(await journal()) == (6, 600, 240, 42)


async def test_the_same_again_is_not_billed_again(acme: Customer, pg: Connection) -> None:
    await write(pg, lines(acme.entry("a"), acme.entry("b")))
    before = await rollups()
    await write(pg, lines(acme.entry("b", finish_reason="length"), acme.entry("a")))
    assert await rollups() == before
    assert [event.finish_reason for event in await events()] == ["stop", "stop"]
    assert of_ledger(await journal()) == (2, 200, 80, 14)


async def test_only_new_entries_of_a_batch_are_added(acme: Customer, pg: Connection) -> None:
    await write(pg, lines(acme.entry("a"), acme.entry("b")))
    await write(pg, lines(acme.entry("b"), acme.entry("c"), acme.entry("c")))
    assert await ids() == ["a", "b", "c"]
    assert [sums[0] for sums in (await rollups()).values()] == [3]
    assert of_ledger(await journal())[0] == 3


async def test_journals_are_summed_apart(acme: Customer, pg: Connection) -> None:
    await write(pg, lines(acme.entry("a")) + lines(acme.entry("b"), journal="j2"))
    assert of_ledger(await journal("j1")) == of_ledger(await journal("j2")) == (1, 100, 40, 7)


async def test_a_statement_that_is_rolled_back_leaves_nothing(
    acme: Customer, pg: Connection
) -> None:
    await write(pg, lines(acme.entry("old")))
    before = await rollups(), of_ledger(await journal())
    with pytest.raises(ZeroDivisionError):
        async with pg.transaction():
            await write(pg, lines(acme.entry("a")))
            raise ZeroDivisionError
    assert (await rollups(), of_ledger(await journal())) == before
    assert await ids() == ["old"]


async def test_a_failure_late_in_the_statement_leaves_nothing(
    acme: Customer, pg: Connection
) -> None:
    """One tenant does not exist: the events are already inserted when the sums are refused."""
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await write(pg, lines(acme.entry("a"), acme.entry("b", tenant_id=0)))
    assert await ids() == [] and await rollups() == {}


async def test_each_month_has_its_partition(acme: Customer, pg: Connection) -> None:
    months = [datetime(2031, 12, 31, 23, 59, tzinfo=UTC), datetime(2032, 1, 1, tzinfo=UTC)]
    await write(pg, lines(*(acme.entry(str(at), at) for at in [NOON, *months])))
    cursor = await pg.execute("SELECT tableoid::regclass::text FROM tenants_usageevent ORDER BY 1")
    names = [name for (name,) in await cursor.fetchall()]
    assert names == [f"tenants_usageevent_{month}" for month in ("2026_05", "2031_12", "2032_01")]


async def test_a_months_first_request_waits_for_nobody_who_reads_or_writes_others(
    acme: Customer, pg: Connection
) -> None:
    """A dump or `reconcile --check-rollups` reads for minutes in one transaction, and VACUUM holds
    the lock below as long."""
    async with pg.transaction(), await connect() as other:
        await pg.execute("SELECT count(*) FROM tenants_usageevent")
        await write(pg, lines(acme.entry("a")))
        await pg.execute("LOCK TABLE tenants_usageevent_2026_05 IN SHARE UPDATE EXCLUSIVE MODE")
        await other.execute("SET lock_timeout = '1s'")
        tables = "SELECT tenants_usage_partition(%s), tenants_usage_partition(%s)"
        await other.execute(tables, [datetime(2033, month, 1, tzinfo=UTC) for month in (1, 2)])
        await other.execute(tables, [datetime(2033, month, 1, tzinfo=UTC) for month in (2, 3)])
    await write(pg, lines(acme.entry("b", datetime(2033, 2, 28, tzinfo=UTC))))
    assert await ids() == ["a", "b"]


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_is_written_months_are_the_sums_of_hours(
    acme: Customer, pg: Connection, seed: int
) -> None:
    """Batches in any order, late ones, and repeated entries, alone or within one batch."""
    random_ = random.Random(seed)
    entries = [
        acme.entry(
            str(number),
            moment(random_),
            model=random_.choice(["base", "support"]),
            usage=usage_of(random_),
            key_id=acme.key_id + random_.randrange(3),
        )
        for number in range(60)
    ]
    for _ in range(12):
        batch = random_.choices(entries, k=random_.randrange(1, 30))
        await write(pg, lines(*batch))
    found, expected = await sync_to_async(months)(), await sync_to_async(months_of_hours)()
    assert found == expected and len(found) > 3
    billed = await UsageEvent.objects.acount()
    assert sum(row["requests"] for row in found) == billed > 30


# --- Prices --------------------------------------------------------------------------------------


HOUR = timedelta(hours=1)


async def test_the_price_that_came_with_a_request_is_billed(acme: Customer, pg: Connection) -> None:
    prices = [Prices(150_000, 75_000, 600_000), Prices(3, 2, 10**12), Prices()]
    await write(pg, lines(*(
        acme.entry(str(i), price=(one.prompt, one.cached_prompt, one.output))
        for i, one in enumerate(prices)
    )))  # fmt: skip
    assert [event.cost for event in await events()] == [one.cost(USAGE) for one in prices]
    fixed = [(e.prompt_price, e.cached_prompt_price, e.output_price) for e in await events()]
    assert fixed == [(one.prompt, one.cached_prompt, one.output) for one in prices]
    by_hour = {key[0]: sums[-1] for key, sums in (await rollups()).items()}
    assert by_hour[NOON] == sum(one.cost(USAGE) for one in prices)


# --- Two writers at once -------------------------------------------------------------------------

ROUNDS, HOURS = 100, 16


@pytest.mark.parametrize("common", [0, HOURS // 2, HOURS])
async def test_writers_of_the_same_sums_add_up(acme: Customer, async_db: None, common: int) -> None:
    """In each round both write to the same sums, in different orders, and the same entries for
    `common` hours."""
    other, together = await sync_to_async(make_customer)(), asyncio.Barrier(2)

    def batch(number: int, side: str) -> list[LedgerEntry]:
        made = [
            who.entry(
                f"{number}/{'both' if hour < common else side}/{hour}/{who.tenant_id}/{model}",
                NOON + hour * HOUR,
                model=model,
            )
            for hour in range(HOURS)
            for who in (acme, other)
            for model in ("base", "support")
        ]
        random.Random(f"{number}{side}").shuffle(made)
        return made

    async def one(side: str) -> None:
        told, batches = Told(), [batch(number, side) for number in range(ROUNDS)]
        async with patient_ledger(linger_s=0) as recorder:
            for part in batches:
                told.happened.clear()
                await together.wait()
                recorder.record("e1", side, part, told)
                await told.happened.wait()
        assert sorted(told.ids) == sorted(entry.id for part in batches for entry in part)

    with capture_logs() as logs:
        await asyncio.gather(one("left"), one("right"))
    assert logs == []  # each waits its turn: no deadlock
    expected = ROUNDS * 4 * (common + 2 * (HOURS - common))
    assert await sync_to_async(months)() == await sync_to_async(months_of_hours)()
    assert len(await ids()) == expected
    journals = [row async for row in EngineJournal.objects.all()]
    assert sum(row.ledger_requests for row in journals) == expected
    assert sum(row.ledger_completion_tokens for row in journals) == 7 * expected
    by_hour = {
        (key[0], key[3]): sums[0]
        for key, sums in (await rollups()).items()
        if key[1] == acme.key_id
    }
    assert by_hour == {
        (NOON + hour * HOUR, model): ROUNDS * (1 if hour < common else 2)
        for hour in range(HOURS)
        for model in ("base", "support")
    }


async def test_writers_of_other_hours_of_the_same_months(acme: Customer, async_db: None) -> None:
    """The model whose hour is new on one side has an existing hour on the other, so each side adds
    to the same months in a different order."""
    together, rounds, keys = asyncio.Barrier(2), 20, 100

    async def one(side: str, new: str, old: str, at: datetime) -> None:
        told = Told()
        async with patient_ledger(linger_s=0) as recorder:
            for number in range(rounds):
                moments = {new: at + 2 * number * HOUR, old: at}
                batch = [
                    acme.entry(f"{number}{side}{model}{key}", moment, model=model, key_id=key)
                    for model, moment in moments.items()
                    for key in range(keys)
                ]
                told.happened.clear()
                await together.wait()
                recorder.record("e1", side, batch, told)
                await told.happened.wait()

    with capture_logs() as logs:
        await asyncio.gather(
            one("left", "base", "support", NOON), one("right", "support", "base", NOON + HOUR)
        )
    assert logs == []
    found = await sync_to_async(months)()
    assert found == await sync_to_async(months_of_hours)()
    assert [row["requests"] for row in found] == [2 * rounds] * 2 * keys


# --- The recorder --------------------------------------------------------------------------------


async def test_callers_are_told_of_their_own(acme: Customer) -> None:
    one, two = Told(), Told()
    async with patient_ledger() as recorder:
        recorder.record("e1", "j1", [acme.entry("a"), acme.entry("b")], one)
        recorder.record("e2", "j2", [acme.entry("c")], two)
    assert (one.ids, two.ids) == (["a", "b"], ["c"])
    assert (one.calls, two.calls) == (1, 1)
    assert (recorder.waiting, recorder.written) == (0, 3)
    assert await ids() == ["a", "b", "c"]


async def test_known_entries_are_acknowledged_as_written(acme: Customer, pg: Connection) -> None:
    await write(pg, lines(acme.entry("a")))
    told = Told()
    async with patient_ledger() as recorder:
        recorder.record("e1", "j1", [acme.entry("a"), acme.entry("b")], told)
    assert told.ids == ["a", "b"]


async def test_many_are_written_in_several_batches(acme: Customer) -> None:
    told = Told()
    async with patient_ledger() as recorder:
        for number in range(BATCH // 100 * 3):
            sent = [acme.entry(f"{number}/{n}") for n in range(100)]
            recorder.record("e1", "j1", sent, told)
    assert len(told.ids) == len(await ids()) == 3 * BATCH
    assert [sums[0] for sums in (await rollups()).values()] == [3 * BATCH]


async def test_listeners_are_told_of_committed_entries(acme: Customer) -> None:
    heard: list[tuple[int, list[str]]] = []

    def broken(lines: Sequence[StatementLine]) -> None:
        raise ZeroDivisionError

    def listen(lines: Sequence[StatementLine]) -> None:
        heard.append((recorder.written, [line.entry.id for line in lines]))

    with capture_logs() as logs:
        async with patient_ledger() as recorder:
            for listener in (broken, listen):
                recorder.on_written(listener)
            recorder.record("e1", "j1", [acme.entry("a"), acme.entry("b")], Told())
    assert heard == [(2, ["a", "b"])]
    assert [log["event"] for log in logs] == ["ledger_callback_failed"]


async def test_a_caller_that_fails_does_not_stop_the_others(acme: Customer) -> None:
    def broken(attempts: Sequence[tuple[str, int]]) -> None:
        raise ZeroDivisionError

    told = Told()
    with capture_logs() as logs:
        async with patient_ledger() as recorder:
            recorder.record("e1", "j1", [acme.entry("a")], broken)
            recorder.record("e1", "j1", [acme.entry("b")], told)
    assert told.ids == ["b"]
    assert [log["event"] for log in logs] == ["ledger_callback_failed"]


async def test_entries_beyond_the_capacity_are_left_to_the_engine(acme: Customer) -> None:
    told, late = Told(), Told()
    with capture_logs() as logs:
        async with patient_ledger(capacity=2) as recorder:
            recorder.record("e1", "j1", [acme.entry(id) for id in "abc"], told)
            recorder.record("e1", "j1", [acme.entry("d")], late)
            assert (recorder.waiting, recorder.turned_away) == (3, 1)
    assert (told.ids, late.calls) == (["a", "b", "c"], 0)
    assert [log["event"] for log in logs] == ["ledger_full"]


# --- What PostgreSQL refuses for good ------------------------------------------------------------

BAD: dict[str, dict[str, Any]] = {
    "tenant gone": {"tenant_id": 0},
    "too many": {"usage": Usage(prompt_tokens=1 << 63)},
    "too long": {"finish_reason": "x" * 65},
    "NUL": {"model": "a\0b"},
    "no UTF-8": {"model": "\ud800"},
    "before time": {"at": datetime(1970, 1, 1, tzinfo=UTC)},
    "milliseconds": {"started_at": NOON.timestamp() * 1000},
    "no time": {"started_at": float("nan")},
}


async def test_unwritable_entries_do_not_stop_the_others(acme: Customer) -> None:
    bad = [acme.entry(id, **fields) for id, fields in BAD.items()]
    good = [acme.entry(f"good {n}") for n in range(len(bad) + 3)]
    mixed = [entry for pair in zip(good, bad, strict=False) for entry in pair] + good[len(bad) :]
    told = Told()
    with capture_logs() as logs:
        async with patient_ledger() as recorder:
            recorder.record("e1", "j1", mixed, told)
    assert await ids() == sorted(entry.id for entry in good)
    assert told.ids == [entry.id for entry in mixed]
    assert {log["id"] for log in logs} == BAD.keys()
    assert {log["event"] for log in logs} == {"usage_not_billable"}
    first = next(log for log in logs if log["id"] == "tenant gone")
    assert (first["engine_id"], first["journal"], first["usage"]) == ("e1", "j1", USAGE)
    assert (recorder.unbillable, recorder.written) == (len(bad), len(mixed))


async def test_a_detached_month_does_not_stop_the_others(acme: Customer, pg: Connection) -> None:
    late, told = datetime(2034, 5, 1, tzinfo=UTC), Told()
    await write(pg, lines(acme.entry("before", late)))
    detach = "ALTER TABLE tenants_usageevent DETACH PARTITION tenants_usageevent_2034_05"
    await pg.execute(detach)  # as if to archive it elsewhere
    try:
        with capture_logs() as logs:
            async with patient_ledger() as recorder:
                recorder.record("e1", "j1", [acme.entry("late", late), acme.entry("a")], told)
    finally:
        await pg.execute("DROP TABLE tenants_usageevent_2034_05")
    assert (await ids(), told.ids, recorder.unbillable) == (["a"], ["late", "a"], 1)
    assert [(log["event"], log["id"]) for log in logs] == [("usage_not_billable", "late")]


@pytest.mark.parametrize(
    ("queue_s", "ttft_s", "total_s"),
    [(float("nan"), float("inf"), float("-inf")), (-1.0, -1.0, 1e300)],
)
async def test_a_time_that_was_not_measured_is_no_reason_not_to_bill(
    acme: Customer, queue_s: float, ttft_s: float, total_s: float
) -> None:
    strange = Usage(100, 40, 7, 2, queue_s, 0.0, ttft_s, total_s)
    told = Told()
    async with patient_ledger() as recorder:
        recorder.record("e1", "j1", [acme.entry("a", usage=strange, given_s=queue_s)], told)
    (event,) = await events()
    assert (event.given_s, event.queue_s, event.ttft_s, event.total_s) == (0, 0, None, 0)


# --- PostgreSQL goes away ------------------------------------------------------------------------


class Door:
    """A connection factory that can be made to fail."""

    def __init__(self) -> None:
        self.shut = False
        self.knocked = asyncio.Event()
        self.opened: list[Connection] = []

    async def __call__(self) -> Connection:
        if self.shut:
            self.knocked.set()
            raise psycopg.OperationalError("connection refused")
        self.opened.append(await connect())
        return self.opened[-1]


async def waits_for_a_lock(pg: Connection) -> int:
    """Poll until another connection waits for a lock of this one. Returns its process id."""
    query = """
        SELECT pid FROM pg_locks
        WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))
    """
    while True:
        for (pid,) in await (await pg.execute(query)).fetchall():
            return int(pid)


async def test_entries_wait_until_it_is_back(acme: Customer) -> None:
    door, one, two = Door(), Told(), Told()
    door.shut = True
    with capture_logs() as logs:
        async with patient_ledger(door) as recorder:
            recorder.record("e1", "j1", [acme.entry("a")], one)
            await door.knocked.wait()
            door.knocked.clear()
            recorder.record("e1", "j1", [acme.entry("b")], two)
            await door.knocked.wait()
            assert (one.calls, two.calls, recorder.waiting) == (0, 0, 2)
            door.shut = False
            await two.happened.wait()
    assert (one.ids, two.ids, one.calls, two.calls) == (["a"], ["b"], 1, 1)
    assert [log["event"] for log in logs] == ["ledger_not_written", "ledger_written_again"]


async def test_a_connection_that_is_killed_is_made_again(acme: Customer, pg: Connection) -> None:
    door, told = Door(), Told()
    async with patient_ledger(door) as recorder:
        for number in range(3):
            told.happened.clear()
            recorder.record("e1", "j1", [acme.entry(str(number))], told)
            await told.happened.wait()
            pid = door.opened[-1].info.backend_pid
            await pg.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    assert (told.ids, told.calls) == (["0", "1", "2"], 3)
    assert len(door.opened) == 3
    assert [sums[0] for sums in (await rollups()).values()] == [3]


async def test_killed_while_it_writes(acme: Customer, pg: Connection) -> None:
    """The statement waits for a lock when its backend is terminated."""
    door, told = Door(), Told()
    async with patient_ledger(door) as recorder:
        async with pg.transaction():
            await pg.execute("LOCK TABLE tenants_enginejournal IN EXCLUSIVE MODE")
            recorder.record("e1", "j1", [acme.entry("a")], told)
            pid = await waits_for_a_lock(pg)
            await pg.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            assert await ids() == [] and told.calls == 0
        await told.happened.wait()
    assert (told.ids, told.calls, len(door.opened)) == (["a"], 1, 2)
    assert of_ledger(await journal()) == (1, 100, 40, 7)


async def test_a_serialization_failure_is_tried_again(acme: Customer, pg: Connection) -> None:
    """At a stricter isolation level than its default, the database refuses a write that ran beside
    another change."""

    async def strictly() -> Connection:
        made = await connect()
        await made.execute("SET default_transaction_isolation = 'repeatable read'")
        return made

    told = Told()
    await write(pg, lines(acme.entry("a")))
    with capture_logs() as logs:
        async with patient_ledger(strictly) as recorder:
            async with pg.transaction():
                await write(pg, lines(acme.entry("b")))
                recorder.record("e1", "j1", [acme.entry("c")], told)
                await waits_for_a_lock(pg)
            await told.happened.wait()
    assert "could not serialize" in logs[0]["reason"]
    assert of_ledger(await journal())[0] == 3


TOO_LONG = """
CREATE FUNCTION too_long() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM given) > 3 THEN RAISE query_canceled; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER too_long AFTER INSERT ON tenants_usageevent REFERENCING NEW TABLE AS given
    FOR EACH STATEMENT EXECUTE FUNCTION too_long();
"""


async def test_a_batch_that_takes_too_long_is_written_in_parts(
    acme: Customer, pg: Connection
) -> None:
    """As under a `statement_timeout` that allows only three entries at once."""
    told = Told()
    await pg.execute(TOO_LONG)
    try:
        async with patient_ledger() as recorder:
            recorder.record("e1", "j1", [acme.entry(id) for id in "abcdefgh"], told)
    finally:
        await pg.execute("DROP FUNCTION too_long CASCADE")
    assert (await ids(), told.ids) == ([*"abcdefgh"], [*"abcdefgh"])
    assert of_ledger(await journal())[0] == 8


async def test_entries_that_cannot_be_written_at_shutdown_are_left_to_the_engines(
    acme: Customer,
) -> None:
    door, told = Door(), Told()
    door.shut = True
    with capture_logs() as logs:
        async with patient_ledger(door, last_s=0) as recorder:
            recorder.record("e1", "j1", [acme.entry("a")], told)
            await door.knocked.wait()
    assert told.calls == 0
    assert {"event": "ledger_left_to_engines", "entries": 1, "log_level": "warning"} in logs
