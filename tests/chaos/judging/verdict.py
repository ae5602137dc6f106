"""Compares what all sides said of a run. Pure: facts in, findings out.

A request that was cut by the `kill -9` of its agent is the only one of which two sides may differ:
the recorder noted what the engine generated in the step, or steps, that the process did not live
to journal. Nobody received that, and nobody is billed for it.
"""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple, TypeVar

from inference.link.wire import turn_of
from tests.chaos.judging.facts import (
    NOTHING,
    Adopted,
    Counts,
    Entry,
    Event,
    Group,
    JournalEnd,
    JournalSums,
    Kill,
    Life,
    Moved,
    Received,
    Seen,
    Sums,
    Twin,
)
from tests.chaos.plan import Strike

T = TypeVar("T")
K = TypeVar("K")

CUT = "engine_lost"
"""The finish reason that only a journal gives, to requests that were open when its agent died."""
ENDED = ("stop", "length", "tool_calls")

OPENLY_SAID = {
    "rate_limit_exceeded",
    "insufficient_quota",
    "server_is_overloaded",
    "service_unavailable",
    "adapter_unavailable",
    "request_quarantined",
}
"""Errors that a client may get while processes die; any other is a mistake."""
WITHOUT_ENGINE = {"no_engine_available", "engine_lost", "engine_failed", "generation_timeout"}
"""Errors that he may get only where no engine could take his request."""
NOTICED_S = 12.0
"""From an engine's death, at the latest, until its requests are with another one that serves."""

CRASHES = {
    "request_crashed",
    "job_crashed",
    "journal_failed",
    "usage_not_billable",
    "usage_quarantined",
    "ledger_callback_failed",
    "drain_cut_short",
}
"""Log events that must not be, whatever is killed."""

WINDOW_S = 60.0


@dataclass(slots=True)
class Check:
    """One thing that must hold: what was compared, and what is wrong."""

    title: str
    figures: str = ""
    faults: list[str] = field(default_factory=list)


class Spent(NamedTuple):
    """Tokens, and their cost in micro-units of the currency."""

    tokens: int
    cost: int


@dataclass(frozen=True, slots=True)
class Purse:
    """A budget in Redis when it was just held against the ledger: what it says was spent, what was
    billed, and what had been billed before the request that made Redis ask.

    Of that request Redis may forget, for a minute, what was not in the ledger yet.
    """

    name: str
    spent: Spent
    billed: Spent
    billed_before: Spent

    @property
    def agrees(self) -> bool:
        bounds = zip(self.billed_before, self.spent, self.billed, strict=True)
        return all(least <= spent <= most for least, spent, most in bounds)


@dataclass(frozen=True, slots=True)
class Unseen:
    """How many steps of a request an agent may die with before they are in its journal: of one
    that streams, and of one of which the agent tells nobody before its end."""

    streamed: int
    whole: int


@dataclass(slots=True)
class Leftovers:
    """What was still held when nothing ran any more and every lease had expired."""

    reservations: list[str] = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)
    """Concurrency that is taken, by scope."""
    reserved: dict[str, int] = field(default_factory=dict)
    """Of budgets, by name."""
    engines: dict[str, int] = field(default_factory=dict)
    """Requests that run or wait on an engine."""
    drains_s: dict[str, float] = field(default_factory=dict)
    """How long each process took to stop; one that waits for a leaked stream says so in its log."""


@dataclass(slots=True)
class Facts:
    """All that is known of a run."""

    events: list[Event] = field(default_factory=list)
    rollups: dict[Group, Sums] = field(default_factory=dict)
    months: dict[Group, Sums] = field(default_factory=dict)
    journal_sums: dict[str, JournalSums] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    """All that was ever closed in a journal; one may be said by several files."""
    superseded: list[Entry] = field(default_factory=list)
    """By the ledger, attempts of which a higher one is billed."""
    journal_ends: list[JournalEnd] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    planned: list[Strike] = field(default_factory=list)
    prices: dict[tuple[int, str], tuple[int, int, int]] = field(default_factory=dict)
    """In force, by tenant and adapter."""
    requests_per_minute: dict[int, int] = field(default_factory=dict)
    """The limits, by tenant."""
    degraded: list[tuple[float, float]] = field(default_factory=list)
    """When a gateway counted without Redis, or not at all; unix times in seconds."""
    unkept: dict[str, list[float]] = field(default_factory=dict)
    """When each gateway could not keep, or find, the answer of an idempotency key."""
    purses: list[Purse] = field(default_factory=list)
    """As they came through the run, when the ledger had been looked at once more."""
    reseeded: list[Purse] = field(default_factory=list)
    """After Redis had lost them and they were read from the ledger again."""
    budgets: int = 0
    """How many there are."""
    leftovers: Leftovers = field(default_factory=Leftovers)
    moved: list[Moved] = field(default_factory=list)
    adopted: list[Adopted] = field(default_factory=list)
    only_gateways: bool = False
    """Nothing else died."""
    stayed: set[str] = field(default_factory=set)
    """Ids of requests that had moved as often as one may."""
    twins: list[Twin] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    """Lines of logs with an event of `CRASHES`."""
    unseen: Unseen = Unseen(streamed=1, whole=1)


def judge(facts: Facts) -> list[Check]:
    """Every check; the run is sound if none has faults."""
    return [check(facts) for check in CHECKS]


def there_was_a_storm(facts: Facts) -> Check:
    """What was planned was killed, and there was something to lose: else nothing is proved."""
    check = Check("a storm, and work in it")
    hit, meant = {kill.kind for kill in facts.kills}, {strike.kind for strike in facts.planned}
    if hit != meant or len(facts.kills) < HIT_SHARE * len(facts.planned):
        check.faults.append(
            f"{len(facts.kills)} of {len(facts.planned)} strikes met a process: {', '.join(hit)}"
        )
    served = Counter(one.tenant for one in facts.received if one.complete)
    for tenant in {one.tenant for one in facts.received}:
        if not served[tenant]:
            check.faults.append(f"{tenant} never got an answer")
    check.figures = (
        f"{len(facts.kills)} kills, {served.total():,} complete answers to {len(served)} tenants"
    )
    return check


HIT_SHARE = 0.8
"""A strike may find its victim dead of the one before."""


# --- the ledger ----------------------------------------------------------------------------------


def ledger_is_journals(facts: Facts) -> Check:
    """The ledger has what the journals closed, and nothing else."""
    check = Check("ledger = engine journals")
    journaled = {entry.key: entry for entry in facts.entries}
    for entry in facts.entries:
        if entry != journaled[entry.key]:
            check.faults.append(f"{entry.id} was closed twice: {entry} and {journaled[entry.key]}")
    written = {entry.key: entry for entry in _in_ledger(facts)}
    for entry in _missing(journaled, written):
        check.faults.append(f"{entry.id} is journaled but not in the ledger: {entry}")
    for entry in _missing(written, journaled):
        check.faults.append(f"{entry.id} is in the ledger but in no journal: {entry}")
    for key in journaled.keys() & written.keys():
        check.faults += _differences(journaled[key], written[key])
    total = Counts.total(entry.counts for entry in journaled.values())
    check.figures = f"{len(journaled):,} attempts, {_tokens(total)}"
    return check


def _in_ledger(facts: Facts) -> list[Entry]:
    return [*(event.entry for event in facts.events), *facts.superseded]


def _differences(journaled: Entry, written: Entry) -> Iterator[str]:
    if journaled != written:
        yield f"the journal says {journaled}, the ledger {written}"
    if abs(journaled.started_at - written.started_at) > 1e-5:
        yield f"{journaled.id} began at {journaled.started_at}, or at {written.started_at}"


def ledger_is_recorder(facts: Facts) -> Check:
    """What ended while its agent lived is billed to the token."""
    check = Check("ledger = recorder, ended while the agent lived")
    seen, whole = _by_id(facts.seen, lambda one: one.key), []
    by_run = _by_run(facts)
    for run_key, entry in by_run.items():
        if entry.finish_reason == CUT:
            continue
        whole.append(entry.counts)
        runs = seen.get(run_key, [])
        if len(runs) > 1:
            check.faults.append(f"{entry.id} ran {len(runs)} times")
        recorded = Counts.total(run.counts for run in runs) if runs else NOTHING
        if recorded != entry.counts:
            check.faults.append(f"{entry.id}: billed {entry.counts}, recorded {recorded}")
    for key in seen.keys() - by_run.keys():
        check.faults.append(f"{key[0]} was generated but is not in the ledger: {seen[key]}")
    check.figures = f"{len(whole):,} attempts, {_tokens(Counts.total(whole))}"
    return check


def _by_run(facts: Facts) -> dict[tuple[str, int], Entry]:
    """The entries by the attempts that engines ran. One whose answer another gateway adopted has
    an entry for each of them, of which the last has all that was generated."""
    seen, found = {one.key for one in facts.seen}, dict[tuple[str, int], Entry]()
    last: dict[tuple[str, str], tuple[str, int]] = {}
    for entry in sorted(_in_ledger(facts), key=lambda entry: entry.key):
        place = entry.id, entry.journal
        adopts = turn_of(entry.attempt) > 1 and entry.key not in seen and place in last
        key = last[place] if adopts else entry.key
        found[key], last[place] = entry, key
    return found


def cut_requests(facts: Facts) -> Check:
    """What a kill cut is billed up to the last steps, and only a kill cuts."""
    check = Check("ledger <= recorder, cut by the agent's kill -9")
    seen = {one.key: one for one in facts.seen}
    streams = {one.id for one in facts.received if one.streams}
    ends = (KILLED, DRAINED)  # what has moved as often as one may ends with its engine
    killed = {f"{life.name}-{life.pid}" for life in facts.lives if life.killed in ends}
    cut, lost = [], []
    for key, entry in _by_run(facts).items():
        if entry.finish_reason != CUT:
            continue
        run = seen.get(key, Seen(entry.id, ""))
        cut.append(entry.counts)
        if run.run and run.run not in killed:
            check.faults.append(f"{run.id} was cut, but {run.run} was not killed")
        unseen = facts.unseen.streamed if run.id in streams else facts.unseen.whole
        states = [NOTHING, *run.states][-1 - unseen :]
        if entry.counts not in states:
            check.faults.append(
                f"{run.id}: billed {entry.counts}, but the last steps were {states}"
            )
        lost.append(run.counts.completion_tokens - entry.counts.completion_tokens)
    check.figures = (
        f"{len(cut):,} attempts, {_tokens(Counts.total(cut))}; "
        f"{sum(lost):,} generated in a last step that nobody received, at most "
        f"{max(lost, default=0)} of one request"
    )
    return check


def recorder_is_sound(facts: Facts) -> Check:
    """What the engine counted is what it handed on."""
    check = Check("recorder: counted = handed on")
    ended = [one for one in facts.seen if one.finish_reason in ENDED]
    for one in ended:
        if one.handed_on != one.counts.completion_tokens:
            check.faults.append(f"{one.id}: counted {one.counts}, handed on {one.handed_on}")
    check.figures = f"{len(ended):,} requests that came to their end"
    return check


def clients_are_billed_enough(facts: Facts) -> Check:
    """Nobody received a token that is not billed; complete answers say what is billed."""
    check = Check("received by clients <= billed")
    billed = {event.entry.id: event.entry.counts for event in facts.events}
    heard = [one for one in facts.received if one.tokens]
    for one in heard:
        counts = billed.get(one.id, NOTHING)
        if one.tokens > counts.completion_tokens:
            check.faults.append(f"{one.id}: {one.tokens} tokens received, billed {counts}")
        if one.usage is not None and one.usage != counts:
            check.faults.append(f"{one.id}: answered {one.usage}, billed {counts}")
    total = sum(counts.completion_tokens for counts in billed.values())
    received = sum(one.tokens for one in heard if not one.replayed)
    check.figures = f"{received:,} of {total:,} output tokens received"
    return check


def one_bill_per_idempotency_key(facts: Facts) -> Check:
    """A key has one answer, unless what remembers answers was away when it was complete."""
    check = Check("one answer for each idempotency key")
    keyed = [one for one in facts.received if one.idempotency_key and one.complete]
    by_key = _by_id(keyed, lambda one: (one.tenant, one.idempotency_key))
    twice = 0
    for key, answers in by_key.items():
        answered = _by_id(sorted(answers, key=lambda one: one.ended), lambda one: one.id)
        for id, same in answered.items():
            if len({one.text for one in same}) > 1:
                check.faults.append(f"{key}: different answers under the id {id}")
        *forgotten, _ = answered
        twice += len(forgotten)
        for id in forgotten:
            if not any(_could_not_be_kept(facts, answer) for answer in answered[id]):
                check.faults.append(f"{key} was answered as {', '.join(answered)}")
    check.figures = (
        f"{len(by_key):,} keys, {sum(one.replayed for one in keyed):,} answers replayed; "
        f"{twice} forgotten because PostgreSQL was away"
    )
    return check


def gateways_failed_nobody(facts: Facts) -> Check:
    """Who repeats a request with its key gets its answer, whatever becomes of gateways; and where
    nothing else dies it has one bill."""
    check = Check("gateways' deaths failed no request that was repeated")
    by_key = _by_id(
        [one for one in facts.received if one.idempotency_key],
        lambda one: (one.tenant, one.idempotency_key),
    )
    generated = {one.entry.id for one in facts.events if one.entry.counts.completion_tokens}
    refusals = LIMITED if facts.only_gateways else OPENLY_SAID | WITHOUT_ENGINE
    broken = 0
    for key, tries in by_key.items():
        broken += any(one.broken for one in tries)
        last = max(tries, key=lambda one: one.ended)
        if not (any(one.complete for one in tries) or last.error in refusals):
            check.faults.append(f"{key} ended with {last.outcome}: {last.broken or last.wrong}")
        bills = {one.id for one in tries} & generated
        if facts.only_gateways and len(bills) > 1:
            check.faults.append(f"{key} was billed as {', '.join(sorted(bills))}")
    check.figures = (
        f"{len(by_key):,} keys, {broken} of them lost a connection; "
        f"{len({one.id for one in facts.adopted})} running answers went on at another gateway, "
        f"{max((one.turn for one in facts.adopted), default=1) - 1} times at most"
    )
    if facts.only_gateways and not facts.adopted:
        check.faults.append("no running answer was adopted: nothing is proved")
    return check


LIMITED = {"rate_limit_exceeded", "insufficient_quota"}


def _could_not_be_kept(facts: Facts, answer: Received) -> bool:
    """Whether its gateway found PostgreSQL away before it sent the answer's end."""
    times = facts.unkept.get(answer.gateway, [])
    return any(answer.began <= at <= answer.ended for at in times)


# --- moves ---------------------------------------------------------------------------------------


def engines_failed_nobody(facts: Facts) -> Check:
    """No request ended for want of an engine while another one could take it, but those that had
    moved as often as one may."""
    check = Check("engines' deaths failed no request")
    ended = [one for one in facts.received if one.error in WITHOUT_ENGINE]
    bounded = [one for one in ended if one.id in facts.stayed]
    for one in ended:
        if one.id not in facts.stayed and _somebody_served(facts, one):
            check.faults.append(f"{one.id} got the error {one.error} at {one.ended:.1f}")
    quarantined = sum(one.error == "request_quarantined" for one in facts.received)
    check.figures = (
        f"{len(facts.moved):,} moves; {len(bounded)} requests had moved twice, {quarantined} were "
        f"on two engines that died; {len(ended) - len(bounded)} found none alive"
    )
    return check


def _somebody_served(facts: Facts, one: Received) -> bool:
    """Whether an engine was there for long enough before the request ended."""
    since = one.ended - NOTICED_S
    hung = {
        kill.name
        for kill in facts.kills
        if kill.kind == "hang" and kill.at < one.ended and kill.at + kill.seconds > since
    }
    return any(
        life.kind == "agent"
        and life.name not in hung
        and life.ready is not None
        and life.ready < since
        and (life.ended is None or life.ended > one.ended)
        for life in facts.lives
    )


def answers_equal_their_twins(facts: Facts) -> Check:
    """Who was moved got what he would have got undisturbed."""
    check = Check("answers that moved, or were adopted = their undisturbed twins")
    for twin in facts.twins:
        if twin.text != twin.undisturbed:
            check.faults.append(f"{twin.id}: {twin.text!r} instead of {twin.undisturbed!r}")
    if facts.moved and not facts.twins:
        check.faults.append(f"{len(facts.moved)} requests moved, and none was asked for again")
    gaps = sorted(one.gap_s for one in facts.moved) or [0.0]
    check.figures = (
        f"{len(facts.twins)} answers; gaps of {len(facts.moved)} moves: p50 "
        f"{gaps[len(gaps) // 2]:.2f} s, p99 {gaps[len(gaps) * 99 // 100]:.2f} s"
    )
    return check


def regenerated_is_not_billed(facts: Facts) -> Check:
    """What no attempt went on from is counted beside the bill, which is the highest attempt's."""
    check = Check("regenerated tokens counted, not billed")
    attempts = _by_id(_in_ledger(facts), lambda entry: entry.id)
    for event in facts.events:
        own = sorted(attempts[event.entry.id], key=lambda entry: entry.attempt)
        expected = sum(
            max(0, lower.counts.completion_tokens - higher.inherited)
            for lower, higher in pairwise(own)
        )
        if event.regenerated != expected:
            check.faults.append(
                f"{event.entry.id}: {event.regenerated} tokens regenerated, not {expected}"
            )
    moved = sum(len(own) > 1 for own in attempts.values())
    check.figures = (
        f"{sum(event.regenerated for event in facts.events):,} tokens of {moved:,} requests that "
        "have several attempts"
    )
    return check


# --- no duplicates -------------------------------------------------------------------------------


def each_id_once(facts: Facts) -> Check:
    """An id is one event, that of its highest attempt."""
    check = Check("each request id once in the ledger")
    for id, times in Counter(event.entry.id for event in facts.events).items():
        if times > 1:
            check.faults.append(f"{id} is {times} events")
    billed = {event.entry.id: event.entry.attempt for event in facts.events}
    for entry in facts.superseded:
        if entry.attempt >= billed.get(entry.id, 0):
            check.faults.append(f"{entry.id} is billed by a lower attempt than {entry.attempt}")
    check.figures = f"{len(facts.events):,} events"
    return check


def costs_are_right(facts: Facts) -> Check:
    """Each event has the price in force, and costs what its tokens do."""
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
    """The hourly sums are the sums of the events."""
    check = Check("hourly sums = events")
    sums = {
        group: Sums.of(events)
        for group, events in _by_id(facts.events, lambda event: event.group).items()
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
    hours = _by_id(facts.rollups, lambda group: group._replace(hour=_month(group.hour)))
    for group in hours.keys() | facts.months.keys():
        rows = [facts.rollups[hour] for hour in hours.get(group, [])]
        here, there = Sums(*map(sum, zip(*rows, strict=True))), facts.months.get(group, Sums())
        if here != there:
            check.faults.append(f"{group}: the hours sum up to {here}, the month says {there}")
    check.figures = f"{len(facts.months)} rows"
    return check


def _month(at: int) -> int:
    """When the month of UTC began, both in seconds of unix time."""
    start = datetime.fromtimestamp(at, UTC).replace(day=1, hour=0, minute=0, second=0)
    return int(start.timestamp())


def journal_sums_are_events(facts: Facts) -> Check:
    """Both sides of each journal are what the ledger has of it."""
    check = Check("journals' sums = events, drift 0")
    by_journal = _by_id(_in_ledger(facts), lambda entry: entry.journal)
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
    """The journals end with nothing open or unacknowledged, and no file of theirs was missed."""
    check = Check("journals: all closed, all acknowledged")
    by_journal = _by_id(facts.entries, lambda entry: entry.journal)
    for end in facts.journal_ends:
        if end.open or end.unacknowledged:
            check.faults.append(f"{end.journal} ended with {end}")
        known = len({entry.key for entry in by_journal.get(end.journal, [])})
        if known != end.requests:
            check.faults.append(f"{end.journal} counts {end.requests} requests, {known} were read")
    check.figures = f"{sum(end.requests for end in facts.journal_ends):,} requests"
    return check


# --- nothing leaked ------------------------------------------------------------------------------


def nothing_leaked(facts: Facts) -> Check:
    """No reservation, lease or stream outlives its request."""
    check = Check("no leaked reservation, lease or stream")
    left = facts.leftovers
    check.faults += [f"the reservation {id} is still held" for id in left.reservations]
    for what, held in (
        ("concurrent streams of", left.streams),
        ("tokens or costs reserved in", left.reserved),
        ("requests on", left.engines),
    ):
        check.faults += [f"{count} {what} {name}" for name, count in held.items() if count]
    slowest = max(left.drains_s.values(), default=0.0)
    check.figures = f"the slowest process stopped after {slowest:.1f} s"
    return check


def limits_held(facts: Facts) -> Check:
    """No minute has more requests than the limit, as long as Redis counted all that minute.

    A Redis that is killed forgets its windows, and while a gateway counts without Redis, that
    does not know of its requests; what lies between such times is looked at piece by piece.
    """
    check = Check("requests per minute within the limits")
    pieces, busiest = list(_counted(facts)), [0.0]
    for tenant_id, limit in facts.requests_per_minute.items():
        passed = sorted(
            (event.made_at, event.entry.started_at)
            for event in facts.events
            if event.group.tenant_id == tenant_id
        )
        for first, last in pieces:
            most = _busiest(passed, first, last)
            busiest.append(most / limit)
            if most > limit:
                check.faults.append(
                    f"tenant {tenant_id}: {most} requests in a minute between {first} and {last}, "
                    f"when Redis counted them; the limit is {limit}"
                )
    longest = max((last - first for first, last in pieces), default=0.0)
    check.figures = (
        f"at most {max(busiest):.0%} of a limit in {len(pieces)} pieces of time between Redis's "
        f"deaths, {longest:.0f} s the longest"
    )
    return check


def _counted(facts: Facts) -> Iterator[tuple[float, float]]:
    """The times in which one and the same Redis counted all requests."""
    end = max((event.entry.started_at for event in facts.events), default=0.0) + 1
    for life in facts.lives:
        if life.kind != "redis":
            continue
        begin = life.began
        for since, until in sorted(facts.degraded):
            if until > begin and since < (life.ended or end):
                if since > begin:
                    yield begin, since
                begin = until
        if begin < (last := min(end, life.ended or end)):
            yield begin, last


def _busiest(passed: Sequence[tuple[float, float]], first: float, last: float) -> int:
    """The most requests that surely passed within one minute between the two moments.

    Each is two moments between which it passed; they are sorted.
    """
    inside = [(after, before) for after, before in passed if first <= after and before < last]
    return max(
        (
            sum(before - begin <= WINDOW_S for _, before in inside[number:])
            for number, (begin, _) in enumerate(inside)
        ),
        default=0,
    )


def budgets_are_the_ledgers(facts: Facts) -> Check:
    """Redis ends at the ledger's figures, with what it remembers and after it has forgotten all."""
    check = Check("budgets in Redis = ledger")
    for purses in (facts.purses, facts.reseeded):
        if len(purses) != facts.budgets:
            check.faults.append(f"{len(purses)} of {facts.budgets} budgets are in Redis")
    for purse in (*facts.purses, *facts.reseeded):
        if not purse.agrees:
            check.faults.append(f"{purse.name}: {purse}")
    check.figures = (
        f"{len(facts.purses)} budgets after the storm, {len(facts.reseeded)} after Redis forgot"
    )
    return check


# --- nothing hung, nothing crashed ---------------------------------------------------------------


def everybody_was_answered(facts: Facts) -> Check:
    """Each request ended in its time, with an answer or an error that a client understands."""
    check = Check("every request was answered, or refused clearly")
    for one in facts.received:
        if one.wrong:
            check.faults.append(f"{one.id or 'a request'} at {one.gateway}: {one.wrong}")
        elif one.error and one.error not in OPENLY_SAID | WITHOUT_ENGINE:
            check.faults.append(f"{one.id} got the error {one.error} ({one.status})")
        elif one.broken and not _was_down(facts, one):
            check.faults.append(
                f"{one.id or 'a request'} lost its connection to {one.gateway}, which lived: "
                f"{one.broken}"
            )
        elif not (one.complete or one.left or one.error or one.broken):
            check.faults.append(f"{one.id or 'a request'} never ended")
    check.figures = f"{len(facts.received):,} requests"
    return check


def _was_down(facts: Facts, one: Received) -> bool:
    """Whether its gateway was not there for a moment of the request."""
    lives = [life for life in facts.lives if life.name == one.gateway]
    return not any(
        life.ready is not None
        and life.ready <= one.began
        and (life.ended is None or life.ended > one.ended + _closing_s(facts, life))
        and not _had_closed(life, one)
        for life in lives
    )


def _had_closed(life: Life, one: Received) -> bool:
    """Whether it takes no new connections, of which this would have been one."""
    refused = one.broken.startswith("ConnectError")
    return refused and life.asked is not None and life.asked <= one.ended


def _closing_s(facts: Facts, life: Life) -> float:
    """How long before its end it may close connections: one whose drain is short does so when that
    is over."""
    return CLOSING_S if facts.only_gateways and life.killed == DRAINED else 0.0


CLOSING_S = 15.0


KILLED, STOPPED, DRAINED = "kill -9", "stop", "drain"


def only_the_killed_died(facts: Facts) -> Check:
    """No process ended by itself, but a gateway that found no database when it started."""
    check = Check("nobody died but by kill -9")
    in_vain = 0
    for life in facts.lives:
        if life.ended is None or (life.killed == KILLED and life.status == -signal.SIGKILL):
            continue
        if life.killed in (STOPPED, DRAINED):
            if life.status:
                check.faults.append(f"{life.name} stopped with the status {life.status}")
        elif life.ready is None and life.kind in ("gateway", "postgres"):
            in_vain += 1
        else:
            check.faults.append(f"{life.name} ended by itself with the status {life.status}")
    check.faults += facts.crashes
    check.figures = (
        f"{len(facts.lives)} processes, {in_vain} starts in vain while PostgreSQL was away"
    )
    return check


CHECKS: tuple[Callable[[Facts], Check], ...] = (
    there_was_a_storm,
    ledger_is_journals,
    ledger_is_recorder,
    cut_requests,
    recorder_is_sound,
    clients_are_billed_enough,
    one_bill_per_idempotency_key,
    gateways_failed_nobody,
    engines_failed_nobody,
    answers_equal_their_twins,
    regenerated_is_not_billed,
    each_id_once,
    costs_are_right,
    rollups_are_events,
    months_are_rollups,
    journal_sums_are_events,
    journals_are_read_whole,
    nothing_leaked,
    limits_held,
    budgets_are_the_ledgers,
    everybody_was_answered,
    only_the_killed_died,
)


def _by_id(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    found: defaultdict[K, list[T]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def _missing(here: dict[K, Entry], there: dict[K, Entry]) -> list[Entry]:
    missing = [here[key] for key in here.keys() - there.keys()]
    return sorted(missing, key=lambda entry: entry.key)


def _tokens(counts: Counts) -> str:
    return (
        f"{counts.prompt_tokens:,} prompt ({counts.cached_tokens:,} cached) "
        f"and {counts.completion_tokens:,} output tokens"
    )
