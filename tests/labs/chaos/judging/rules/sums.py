"""Sums and costs agree with the events."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.labs.chaos.judging.facts import NOTHING, Counts, Facts, JournalSums, Sums
from tests.labs.chaos.judging.rules.check import Check, by_id, in_ledger


def costs_are_right(facts: Facts) -> Check:
    """Each event has the price in force, and the cost of its tokens at that price."""
    check = Check("cost = tokens x price in force")
    for event in facts.events:
        counts, prices = event.entry.counts, event.prices
        if prices != facts.prices[event.group.tenant_id, event.group.adapter]:
            check.faults.append(f"{event.entry.id} has the prices {prices}")
        uncached = counts.prompt_tokens - counts.cached_tokens
        amounts = (uncached, counts.cached_tokens, counts.completion_tokens)
        cost = sum(amount * price for amount, price in zip(amounts, prices, strict=True))
        if cost != event.cost:
            check.faults.append(f"{event.entry.id} costs {event.cost} instead of {cost}")
    check.figures = f"{sum(event.cost for event in facts.events) / 1e12:,.6f} of the currency"
    return check


def rollups_are_events(facts: Facts) -> Check:
    """The hourly sums are the sums of the events, and of the lines of fine-tuning jobs."""
    check = Check("hourly sums = events")
    lines = [*facts.events, *facts.trainings]
    sums = {
        group: Sums.of(events) for group, events in by_id(lines, lambda event: event.group).items()
    }
    for group in sums.keys() | facts.rollups.keys():
        here, there = sums.get(group, Sums()), facts.rollups.get(group, Sums())
        if here != there:
            check.faults.append(f"{group}: the events sum up to {here}, the rollup says {there}")
    check.figures = f"{len(facts.rollups)} rows"
    return check


def months_are_rollups(facts: Facts) -> Check:
    """The monthly sums are the sums of the hourly ones."""
    check = Check("monthly sums = hourly sums")
    hours = by_id(facts.rollups, lambda group: group._replace(hour=_month(group.hour)))
    for group in hours.keys() | facts.months.keys():
        rows = [facts.rollups[hour] for hour in hours.get(group, [])]
        here, there = Sums(*map(sum, zip(*rows, strict=True))), facts.months.get(group, Sums())
        if here != there:
            check.faults.append(f"{group}: the hours sum up to {here}, the month says {there}")
    check.figures = f"{len(facts.months)} rows"
    return check


def _month(at: int) -> int:
    """When the month began (UTC); both are unix times in seconds."""
    start = datetime.fromtimestamp(at, UTC).replace(day=1, hour=0, minute=0, second=0)
    return int(start.timestamp())


def journal_sums_are_events(facts: Facts) -> Check:
    """Both sides of each journal are what the ledger has of it."""
    check = Check("journals' sums = events, drift 0")
    by_journal = by_id(in_ledger(facts), lambda entry: entry.journal)
    for journal in by_journal.keys() | facts.journal_sums.keys():
        entries = by_journal.get(journal, [])
        sums = Sums(len(entries), *Counts.total([NOTHING, *(one.counts for one in entries)]))
        said = facts.journal_sums.get(journal, JournalSums("", Sums(), Sums(), 0, 0))
        if not said.in_ledger == said.counted == sums:
            check.faults.append(f"{journal}: {said}, but its events sum up to {sums}")
        if said.unjournaled_tokens or said.waiting:
            check.faults.append(f"{journal}: {said}")
    check.figures = f"{len(facts.journal_sums)} journals"
    return check


def journals_are_read_whole(facts: Facts) -> Check:
    """The journals end with nothing open or unacknowledged, and no file of them was missed."""
    check = Check("journals: all closed, all acknowledged")
    by_journal = by_id(facts.entries, lambda entry: entry.journal)
    for end in facts.journal_ends:
        if end.open or end.unacknowledged:
            check.faults.append(f"{end.journal} ended with {end}")
        known = len({entry.key for entry in by_journal.get(end.journal, [])})
        if known != end.requests:
            check.faults.append(f"{end.journal} counts {end.requests} requests, {known} were read")
    check.figures = f"{sum(end.requests for end in facts.journal_ends):,} requests"
    return check
