"""Engines' reports are compared with the ledger without mistaking entries in flight for a drift."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.link.accounts import Totals
from inference.link.engine_info import EngineStats
from tenants.billing.journals import SETTLED_S, JournalReport, Journals, LedgerSums

pytestmark = pytest.mark.pure

NOTHING = Totals()


def stats(journaled: Totals, unbilled: Totals = NOTHING, unjournaled: int = 0) -> EngineStats:
    return EngineStats(
        journal="j1", journaled=journaled, unbilled=unbilled, unjournaled_tokens=unjournaled
    )


def only(journals: Journals) -> JournalReport:
    (report,) = journals.take()
    return report


def test_counted_is_what_was_acknowledged() -> None:
    journals = Journals()
    journals.note("e1", stats(Totals(9, 90, 45, 18), Totals(2, 20, 15, 4), 3), 0)
    assert only(journals) == JournalReport("j1", "e1", 7, 70, 30, 14, 2, 3, None, None)


def test_the_latest_is_reported_once() -> None:
    journals = Journals()
    assert not journals
    journals.note("e1", stats(Totals(1)), 0)
    journals.note("e1", stats(Totals(2)), 1)
    assert journals
    assert only(journals).counted_requests == 2
    assert not journals
    assert journals.take() == []


def test_each_journal_is_reported() -> None:
    journals = Journals()
    journals.note("e1", stats(Totals(1)), 0)
    journals.note("e2", EngineStats(journal="j2", journaled=Totals(5)), 0)
    assert {(one.engine_id, one.counted_requests) for one in journals.take()} == {
        ("e1", 1),
        ("e2", 5),
    }


def test_an_agent_without_a_journal_says_nothing() -> None:
    journals = Journals()
    journals.note("e1", EngineStats(), 0)
    assert not journals


def test_a_surplus_of_the_ledger_is_in_the_next_report() -> None:
    journals = Journals()
    journals.written([LedgerSums("j1", 10, 1000)], now=0)
    journals.note("e1", stats(Totals(8, 700, 0, 200)), SETTLED_S)
    report = only(journals)
    assert (report.surplus_requests, report.surplus_tokens) == (2, 100)


def test_statistics_that_may_be_older_than_the_look_at_the_ledger_are_not_judged() -> None:
    journals = Journals()
    journals.written([LedgerSums("j1", 10, 1000)], now=5)
    journals.note("e1", stats(Totals(8)), 5 + SETTLED_S - 0.1)
    assert only(journals).surplus_requests is None


def test_a_journal_that_was_not_looked_at_last_time_is_not_judged() -> None:
    journals = Journals()
    journals.written([LedgerSums("j1", 10, 1000)], now=0)
    journals.written([LedgerSums("j2", 1, 1)], now=5)
    journals.note("e1", stats(Totals(8)), 20)
    assert only(journals).surplus_requests is None


steps = st.lists(st.sampled_from(["end", "write", "acknowledge", "report"]), max_size=60)


@given(steps)
def test_nothing_in_flight_ever_looks_like_a_drift(moves: list[str]) -> None:
    """Entries end, are written and are acknowledged, with reports in between, in any order."""
    journals, now = Journals(), 0.0
    ended = written = acknowledged = 0
    for move in moves:
        ended += move == "end"
        written += move == "write" and written < ended
        acknowledged += move == "acknowledge" and acknowledged < written
        if move == "report":
            now += SETTLED_S
            waiting = ended - acknowledged
            journals.note("e1", stats(Totals(ended, ended), Totals(waiting, waiting)), now)
            report = only(journals)
            assert report.counted_requests <= written
            assert not report.surplus_requests and not report.surplus_tokens
            journals.written([LedgerSums("j1", written, written)], now)
