"""Everything generated is billed: once, to the token, at the price in force.

Two sides may differ only for a request that was cut by the `kill -9` of its agent: the recorder
noted what the engine generated in the last step or steps, which the process did not live to
journal. No client received that, and none is billed for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from inference.link.accounts import turn_of
from tests.labs.chaos.judging.facts import DRAINED, KILLED, NOTHING, Counts, Entry, Facts, Seen
from tests.labs.chaos.judging.rules.check import Check, K, by_id, in_ledger, tokens

CUT = "engine_lost"
"""The finish reason that only a journal gives, to requests that were open when their agent died."""
ENDED = ("stop", "length", "tool_calls")


def ledger_is_journals(facts: Facts) -> Check:
    """The ledger has what the journals closed, and nothing else."""
    check = Check("ledger = engine journals")
    journaled = {entry.key: entry for entry in facts.entries}
    for entry in facts.entries:
        if entry != journaled[entry.key]:
            check.faults.append(f"{entry.id} was closed twice: {entry} and {journaled[entry.key]}")
    written = {entry.key: entry for entry in in_ledger(facts)}
    for entry in _missing(journaled, written):
        check.faults.append(f"{entry.id} is journaled but not in the ledger: {entry}")
    for entry in _missing(written, journaled):
        check.faults.append(f"{entry.id} is in the ledger but in no journal: {entry}")
    for key in journaled.keys() & written.keys():
        check.faults += _differences(journaled[key], written[key])
    total = Counts.total(entry.counts for entry in journaled.values())
    check.figures = f"{len(journaled):,} attempts, {tokens(total)}"
    return check


def _differences(journaled: Entry, written: Entry) -> Iterator[str]:
    if journaled != written:
        yield f"the journal says {journaled}, the ledger {written}"
    if abs(journaled.started_at - written.started_at) > 1e-5:
        yield f"{journaled.id} began at {journaled.started_at}, or at {written.started_at}"


def _missing(here: dict[K, Entry], there: dict[K, Entry]) -> list[Entry]:
    missing = [here[key] for key in here.keys() - there.keys()]
    return sorted(missing, key=lambda entry: entry.key)


def ledger_is_recorder(facts: Facts) -> Check:
    """A request that ended while its agent lived is billed to the token."""
    check = Check("ledger = recorder, ended while the agent lived")
    seen, whole = by_id(facts.seen, lambda one: one.key), []
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
    check.figures = f"{len(whole):,} attempts, {tokens(Counts.total(whole))}"
    return check


def _by_run(facts: Facts) -> dict[tuple[str, int], Entry]:
    """The entries, by the attempts that engines ran. An attempt that another gateway adopted has an
    entry for each adoption, of which the last one covers all that was generated."""
    seen, found = {one.key for one in facts.seen}, dict[tuple[str, int], Entry]()
    last: dict[tuple[str, str], tuple[str, int]] = {}
    for entry in sorted(in_ledger(facts), key=lambda entry: entry.key):
        place = entry.id, entry.journal
        adopts = (
            turn_of(entry.attempt) > 1
            and entry.key not in seen
            and place in last
            and not facts.is_line(entry.id)  # a line is sent anew in each turn
        )
        key = last[place] if adopts else entry.key
        found[key], last[place] = entry, key
    return found


def cut_requests(facts: Facts) -> Check:
    """A request that a kill cut is billed up to its last steps, and only a kill cuts requests."""
    check = Check("ledger <= recorder, cut by the agent's kill -9")
    seen = {one.key: one for one in facts.seen}
    streams = {one.id for one in facts.received if one.streams}
    ends = (KILLED, DRAINED)  # a request that may move no more ends with its drained engine
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
        if not run.counts.completion_tokens:  # pooling sends nothing before its end
            states.append(NOTHING)
        if entry.counts not in states:
            check.faults.append(
                f"{run.id}: billed {entry.counts}, but the last steps were {states}"
            )
        lost.append(run.counts.completion_tokens - entry.counts.completion_tokens)
    check.figures = (
        f"{len(cut):,} attempts, {tokens(Counts.total(cut))}; "
        f"{sum(lost):,} generated in a last step that nobody received, at most "
        f"{max(lost, default=0)} of one request"
    )
    return check


def recorder_is_sound(facts: Facts) -> Check:
    """The engine counted what it handed on."""
    check = Check("recorder: counted = handed on")
    ended = [one for one in facts.seen if one.finish_reason in ENDED]
    for one in ended:
        if one.handed_on != one.counts.completion_tokens:
            check.faults.append(f"{one.id}: counted {one.counts}, handed on {one.handed_on}")
    check.figures = f"{len(ended):,} requests that came to their end"
    return check


def clients_are_billed_enough(facts: Facts) -> Check:
    """No client received a token that is not billed, and complete answers state what is billed."""
    check = Check("received by clients <= billed")
    billed = {event.entry.id: event.entry.counts for event in facts.events}
    heard = [one for one in facts.received if one.tokens or one.usage]
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


def regenerated_is_not_billed(facts: Facts) -> Check:
    """Tokens from which no attempt continued are counted beside the bill, which is the highest
    attempt's."""
    check = Check("regenerated tokens counted, not billed")
    attempts = by_id(in_ledger(facts), lambda entry: entry.id)
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


def each_id_once(facts: Facts) -> Check:
    """An id has one event, that of its highest attempt."""
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
