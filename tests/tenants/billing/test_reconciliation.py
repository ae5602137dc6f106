"""The ledger agrees with the engines' journals and with itself, and differences are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from io import StringIO

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone
from structlog.testing import capture_logs

from inference.link.accounts import Account, LedgerEntry, Totals, Usage
from inference.link.engine_info import EngineStats
from tenants import housekeeping
from tenants.answers import KEPT_TIME
from tenants.billing.drift import LATELY, SILENT, Drift, DriftedJournal
from tenants.billing.journals import JournalReport, LedgerSums
from tenants.billing.ledger import connect
from tenants.billing.reconciliation import (
    drifts,
    month_differences,
    months,
    rollup_differences,
    snapshot,
    total_differences,
)
from tenants.billing.statements import write_reports
from tenants.database import conninfo
from tenants.models import (
    ApiKey,
    EngineJournal,
    IdempotentAnswer,
    QuarantinedEntry,
    UsageEvent,
    UsageMonth,
    UsageRollup,
    UsageTotal,
)
from tenants.utc import month_end
from tests.tenants.making import make_key, make_tenant
from tests.tenants.spending import NOON, patient_ledger, spend

HOUR = timedelta(hours=1)


def journal(**figures: int) -> EngineJournal:
    return EngineJournal(journal="j1", engine_id="e1", **figures)


def drift_of(row: EngineJournal, now: datetime) -> Drift:
    names = [field.name for field in fields(DriftedJournal) if hasattr(row, field.name)]
    return Drift.of(DriftedJournal(**{name: getattr(row, name) for name in names}), now)


# --- Drift ---------------------------------------------------------------------------------------


def test_acknowledged_entries_missing_in_the_ledger_are_drift() -> None:
    drift = drift_of(journal(
        counted_requests=5, counted_prompt_tokens=500, counted_completion_tokens=50,
        ledger_requests=4, ledger_prompt_tokens=400, ledger_completion_tokens=45,
    ), NOON)  # fmt: skip
    assert (drift.requests, drift.tokens, drift.unjournaled_tokens) == (1, 105, 0)
    assert drift


def test_entries_not_acknowledged_yet_are_no_drift() -> None:
    counted = journal(counted_requests=4, ledger_requests=9, ledger_prompt_tokens=900)
    assert not drift_of(counted, NOON)


def test_a_surplus_of_the_ledger_is_negative_drift() -> None:
    drift = drift_of(journal(surplus_requests=2, surplus_tokens=30), NOON)
    assert (drift.requests, drift.tokens) == (-2, -30)
    assert drift


def test_tokens_beyond_the_journal() -> None:
    drift = drift_of(journal(unjournaled_tokens=3), NOON)
    assert (drift.requests, drift.tokens, drift.unjournaled_tokens) == (0, 0, 3)
    assert drift


def test_waiting_entries_of_a_silent_engine_are_drift() -> None:
    waits = journal(counted_requests=4, waiting_requests=3, ledger_requests=5)
    waits.reported_at = NOON
    assert drift_of(waits, NOON + SILENT).requests == 0
    assert drift_of(waits, NOON + SILENT + HOUR).requests == 2


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"counted_requests": 2, "ledger_requests": 2}, False),
        ({"counted_requests": 2}, True),
        ({"waiting_requests": 2}, True),
        ({"counted_prompt_tokens": 2, "ledger_completion_tokens": 1}, True),
        ({"surplus_requests": 1}, True),
        ({"surplus_tokens": 1}, True),
        ({"unjournaled_tokens": -1}, True),
    ],
)
def test_a_journal_that_was_left_is_told_of_while_it_differs(
    db: None, figures: dict[str, int], told: bool
) -> None:
    left = journal(**figures)
    left.reported_at = timezone.now() - LATELY - HOUR
    left.save()
    assert [bool(drift) for drift in drifts()] == [True] * told


def test_drift_that_was_explained_is_none_until_more_is_missing(db: None) -> None:
    journal(counted_requests=5, counted_prompt_tokens=50, surplus_tokens=3).save()
    shown = reconcile("--accept", "j1")
    assert "Accepted: 5 requests and 47 tokens" in shown and "All agree" in shown
    assert "there is no journal 'j1' with drift" in refused("--accept", "j1")
    EngineJournal.objects.update(counted_requests=7)
    assert [(drift.requests, drift.tokens) for drift in drifts()] == [(2, 0)]


# --- Reports of engines --------------------------------------------------------------------------


class Agent:
    """An engine whose journal counts like a real one: an entry is acknowledged once `written` is
    called with it."""

    def __init__(self, key: ApiKey) -> None:
        self._key, self._unbilled = key, dict[str, LedgerEntry]()
        self.journaled = Totals()

    def ended(self, count: int) -> list[LedgerEntry]:
        made = []
        for _ in range(count):
            made.append(entry := _entry(f"r{self.journaled.requests}", self._key))
            self.journaled = self.journaled.plus(entry.usage)
            self._unbilled[entry.id] = entry
        return made

    def written(self, attempts: Sequence[tuple[str, int]]) -> None:
        for id, _ in attempts:
            del self._unbilled[id]

    @property
    def stats(self) -> EngineStats:
        unbilled = Totals()
        for entry in self._unbilled.values():
            unbilled = unbilled.plus(entry.usage)
        return EngineStats(journal="j1", journaled=self.journaled, unbilled=unbilled)


def _entry(id: str, key: ApiKey) -> LedgerEntry:
    account = Account(key.tenant_id, key.pk, NOON.timestamp(), "base")
    return LedgerEntry(id, account, "base", Usage(100, 40, 7, 2), "stop")


@pytest.fixture
async def agent(async_db: None) -> Agent:
    return Agent(await sync_to_async(lambda: make_key(make_tenant("acme"))[0])())


async def test_a_journal_is_reported_as_it_stands(agent: Agent) -> None:
    async with patient_ledger() as recorder:
        recorder.record("e1", "j1", agent.ended(3), agent.written)
    agent.ended(2)
    async with patient_ledger() as recorder:
        recorder.totals("e1", agent.stats)
    row = await EngineJournal.objects.aget()
    assert (row.engine_id, row.journal) == ("e1", "j1")
    assert (row.ledger_requests, row.counted_requests, row.waiting_requests) == (3, 3, 2)
    assert (row.ledger_prompt_tokens, row.counted_prompt_tokens) == (300, 300)
    assert (row.ledger_cached_tokens, row.counted_cached_tokens) == (120, 120)
    assert (row.ledger_completion_tokens, row.counted_completion_tokens) == (21, 21)
    assert row.reported_at is not None and row.reported_at <= timezone.now()
    assert not any(await sync_to_async(drifts)())


async def test_a_report_before_any_usage(agent: Agent) -> None:
    async with patient_ledger() as recorder:
        recorder.totals("e1", agent.stats)
        recorder.totals("e2", EngineStats())
    row = await EngineJournal.objects.aget()
    assert (row.ledger_requests, row.counted_requests) == (0, 0)


async def test_reports_come_no_more_often_than_they_are_wanted(agent: Agent) -> None:
    """The first is written at once, the next one only with a change, here at the end."""
    async with patient_ledger(report_s=3600, linger_s=0) as recorder:
        recorder.totals("e1", agent.stats)
        await _reported()
        done = asyncio.Event()
        recorder.record("e1", "j1", agent.ended(1), lambda ids: agent.written(ids) or done.set())
        await done.wait()
        recorder.totals("e1", agent.stats)
        done.clear()
        recorder.record("e1", "j1", agent.ended(1), lambda ids: agent.written(ids) or done.set())
        await done.wait()
        row = await EngineJournal.objects.aget()
        assert (row.ledger_requests, row.counted_requests) == (2, 0)
    row = await EngineJournal.objects.aget()
    assert (row.ledger_requests, row.counted_requests) == (2, 1)


async def _reported() -> None:
    while not await EngineJournal.objects.aexists():
        pass


async def test_a_surplus_stays_until_it_is_judged_anew(async_db: None) -> None:
    async with await connect() as pg:
        for surplus, kept in [(None, None), (2, 2), (None, 2), (0, 0)]:
            report = JournalReport("j1", "e1", 0, 0, 0, 0, 0, 0, surplus, surplus)
            assert await write_reports(pg, [report]) == [LedgerSums("j1", 0, 0)]
            row = await EngineJournal.objects.aget()
            assert (row.surplus_requests, row.surplus_tokens) == (kept, kept)


async def test_a_report_that_is_refused_does_not_stop_the_others(agent: Agent) -> None:
    with capture_logs() as logs:
        async with patient_ledger() as recorder:
            recorder.totals("e1", agent.stats)
            recorder.totals("e2", EngineStats(journal="x" * 65))
            recorder.totals("e3", EngineStats(journal="j3"))
    assert {row.journal async for row in EngineJournal.objects.all()} == {"j1", "j3"}
    assert [(log["event"], log["engine_id"]) for log in logs] == [("journal_not_reported", "e2")]


async def test_an_entry_that_is_not_billable_is_in_quarantine_and_no_drift(agent: Agent) -> None:
    lost = LedgerEntry(
        "r0", Account(0, 0, NOON.timestamp(), "base"), "base", Usage(10, 0, 5), "stop"
    )
    async with patient_ledger() as recorder:
        recorder.record("e1", "j1", [lost], lambda ids: None)
    async with patient_ledger() as recorder:
        recorder.totals("e1", EngineStats(journal="j1", journaled=Totals(1, 10, 0, 5)))
    (drift,) = await sync_to_async(drifts)()
    assert not drift
    assert (drift.journal.quarantined_requests, drift.journal.quarantined_tokens) == (1, 15)
    entry = await QuarantinedEntry.objects.aget()
    assert (entry.request_id, entry.reason, entry.status) == ("r0", "not_billable", "open")
    assert "tenants_tenant" in entry.detail
    await QuarantinedEntry.objects.aupdate(status="billed", decided_at=timezone.now())
    (drift,) = await sync_to_async(drifts)()
    assert (drift.requests, drift.tokens) == (1, 15), "now the ledger should have it"


# --- Events and their sums -----------------------------------------------------------------------


@pytest.fixture
def key(transactional_db: None) -> ApiKey:
    return make_key(make_tenant("acme"))[0]


def reconcile(*options: str) -> str:
    """The command's output; its tables are wide enough that nothing wraps."""
    out = StringIO()
    call_command("reconcile", *options, stdout=out, stderr=out)
    return out.getvalue()


def refused(*options: str) -> str:
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("reconcile", *options, stdout=out, stderr=out)
    assert caught.value.returncode == 1
    return out.getvalue() + str(caught.value)


def bill_journal(**figures: int) -> None:
    """Create the sums of the journal that `spend` names, as after two of its requests."""
    two = {"requests": 2, "prompt_tokens": 200, "cached_tokens": 80, "completion_tokens": 14}
    sums = {f"ledger_{name}": value for name, value in (two | figures).items()}
    EngineJournal.objects.create(journal="j1", engine_id="e1", **sums)


def test_an_empty_ledger_agrees(key: ApiKey) -> None:
    assert "All agree" in reconcile("--check-rollups")


def test_all_agree(key: ApiKey) -> None:
    spend(key)
    spend(key, NOON + 40 * 24 * HOUR, model="support", adapter="support")
    bill_journal()
    shown = reconcile("--check-rollups")
    assert "e1" in shown and "2/214" in shown and "All agree" in shown


def test_a_sum_that_is_wrong(key: ApiKey) -> None:
    spend(key)
    spend(key, model="support@2", adapter="support")
    bill_journal()
    UsageRollup.objects.filter(adapter="support").update(prompt_tokens=99, cost=1)
    assert "All agree" in reconcile()
    (line,) = rollup_differences(NOON, NOON + HOUR)
    assert line.group == (key.tenant_id, NOON, key.pk, "support", "support@2", "base")
    assert (line.parts.prompt_tokens, line.kept.prompt_tokens) == (100, 99)
    assert (line.parts.requests, line.kept.requests) == (1, 1)
    shown = refused("--check-rollups")
    assert "prompt_tokens 100 / 99, cost " in shown and "requests" not in shown.split("Sums")[1]
    assert "Differences found: 1" in shown


def test_a_sum_that_is_missing_and_one_too_many(key: ApiKey) -> None:
    spend(key)
    spend(key, NOON + HOUR)
    bill_journal()
    UsageRollup.objects.filter(hour=NOON).delete()
    UsageEvent.objects.filter(started_at=NOON + HOUR).delete()
    lines = rollup_differences(NOON, NOON + 2 * HOUR)
    assert [(d.parts.requests, d.kept.requests) for d in lines] == [(1, 0), (0, 1)]
    assert "Differences found: 3" in refused("--check-rollups")  # the journal has two requests


def test_a_wrong_month_is_reported(key: ApiKey) -> None:
    """Months follow their hours, so the month's own row is corrupted."""
    spend(key)
    spend(key, NOON + HOUR, model="support", adapter="support")
    bill_journal()
    month = NOON.replace(day=1, hour=0)
    UsageMonth.objects.filter(adapter="support").update(cost=1)
    (line,) = month_differences(month, month_end(month))
    assert line.group == (key.tenant_id, month, key.pk, "support", "support", "base")
    assert (line.parts.requests, line.kept.requests, line.kept.cost) == (1, 1, 1)
    shown = refused("--check-rollups")
    assert "2026-05" in shown and "Differences found: 1" in shown
    assert "All agree" in reconcile("--check-rollups", "--since=2026-05-01T12")  # part of a month
    UsageMonth.objects.all().delete()
    assert len(month_differences(month, month_end(month))) == 2


def test_a_tenants_day_that_is_wrong(key: ApiKey) -> None:
    spend(key)
    spend(key, NOON + HOUR, model="support", adapter="support")
    bill_journal()
    month, day = NOON.replace(day=1, hour=0), NOON.replace(hour=0)
    UsageTotal.objects.filter(span="day").update(cost=1)
    (line,) = total_differences("day", month, month_end(month))
    assert line.group == (key.tenant_id, day, 0, "", "", "base")
    assert (line.parts.requests, line.kept.requests, line.kept.cost) == (2, 2, 1)
    assert total_differences("month", month, month_end(month)) == []
    shown = refused("--check-rollups")
    assert f"{day:%Y-%m-%d}" in shown and "Differences found: 1" in shown
    UsageTotal.objects.all().delete()
    assert "Differences found: 2" in refused("--check-rollups")


def test_a_month_without_hours_is_reported(key: ApiKey) -> None:
    spend(key)
    bill_journal(requests=1, prompt_tokens=100, cached_tokens=40, completion_tokens=7)
    UsageMonth.objects.update(month=NOON.replace(month=9, day=1, hour=0))
    shown = refused("--check-rollups")
    assert "2026-05" in shown and "2026-09" in shown and "Differences found: 2" in shown


def test_a_journal_that_is_wrong(key: ApiKey) -> None:
    spend(key)
    spend(key)
    bill_journal(completion_tokens=15)
    shown = refused("--check-rollups")
    assert "completion_tokens 14 / 15" in shown and "Differences found: 1" in shown


def test_a_drift_fails_without_reading_events(key: ApiKey) -> None:
    bill_journal()
    EngineJournal.objects.update(counted_requests=3, counted_prompt_tokens=300)
    shown = refused()
    assert "1/86" in shown  # 300 counted tokens, 214 in the ledger


def test_only_the_requested_hours_are_compared(key: ApiKey) -> None:
    spend(key)
    spend(key, NOON + HOUR)
    bill_journal(requests=99)
    UsageRollup.objects.update(requests=7)
    for since, until, count in [("12", "13", 1), ("12", "14", 2), ("14", "16", 0), ("11", "12", 0)]:
        options = ["--check-rollups", f"--since=2026-05-01T{since}", f"--until=2026-05-01T{until}"]
        shown = refused(*options) if count else reconcile(*options)
        assert (f"Differences found: {count}" if count else "All agree") in shown


def test_the_check_is_of_one_moment(key: ApiKey) -> None:
    spend(key)
    with snapshot(), psycopg.connect(conninfo("tests"), autocommit=True) as other:
        (month,) = [each for each in months() if each[0] <= NOON < each[1]]
        other.execute("DELETE FROM tenants_usagerollup")
        assert rollup_differences(*month) == []
    assert len(rollup_differences(*month)) == 1


def test_months_are_those_with_events_or_sums(key: ApiKey) -> None:
    december = datetime(2035, 12, 31, 23, tzinfo=UTC)
    spend(key, december)
    found = months()
    january = datetime(2036, 1, 1, tzinfo=UTC)
    assert (datetime(2035, 12, 1, tzinfo=UTC), january) in found
    assert months(december, january + HOUR) == [(december, january)]
    assert months(january) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--since=2026-05-01"], "require --check-rollups"),
        (["--check-rollups", "--since=may"], "'may' is not a time"),
        (["--check-rollups", "--until=2026-05-01T12:30"], "not a whole hour"),
        (["--check-rollups", "--since=2026-05-02", "--until=2026-05-01"], "must be later than"),
    ],
)
def test_options_that_make_no_sense(key: ApiKey, options: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        reconcile(*options)


# --- Housekeeping --------------------------------------------------------------------------------


def partitions() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relid::text FROM pg_partition_tree('tenants_usageevent')")
        return {name for (name,) in cursor.fetchall()}


@pytest.mark.django_db
def test_next_months_table_is_there_ahead_of_time() -> None:
    now = timezone.now()
    following = (now.replace(day=1) + timedelta(days=32)).replace(day=1)
    housekeeping.keep_house(0)
    housekeeping.keep_house(0)
    assert {f"tenants_usageevent_{at:%Y_%m}" for at in (now, following)} <= partitions()


@pytest.mark.django_db
def test_old_answers_are_forgotten() -> None:
    key, now = make_key(make_tenant())[0], timezone.now()
    for name, age in [("old", KEPT_TIME + HOUR), ("kept", KEPT_TIME - HOUR)]:
        IdempotentAnswer.objects.create(
            key=key, name=name, body_digest=b"", request_id=name, claimed_until=now,
            created_at=now - age,
        )  # fmt: skip
    housekeeping.forget_answers()
    assert [answer.name for answer in IdempotentAnswer.objects.all()] == ["kept"]


def test_workers_know_the_job() -> None:
    assert "keep_house" in housekeeping.app.tasks
    assert [
        each.cron
        for each in housekeeping.app.periodic_registry.periodic_tasks.values()
        if each.task.name == "keep_house"
    ]
