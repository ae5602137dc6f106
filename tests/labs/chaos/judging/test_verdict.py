"""The verdict finds each kind of fault, in a run that is otherwise sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inference.link.accounts import first_attempt
from tests.labs.chaos.judging.facts import (
    DRAINED,
    KILLED,
    STOPPED,
    Adopted,
    BatchGot,
    BudgetState,
    Counts,
    Entry,
    Event,
    Facts,
    Group,
    JournalEnd,
    JournalSums,
    Kill,
    Life,
    LineGot,
    Moved,
    Received,
    ResponseGot,
    Seen,
    Spent,
    Sums,
    TuningGot,
    TuningRow,
    Twin,
    Unseen,
)
from tests.labs.chaos.judging.rules.background import responses_are_answered_once
from tests.labs.chaos.judging.rules.batches import CANCELLED, lines_are_answered_once
from tests.labs.chaos.judging.rules.bills import (
    CUT,
    clients_are_billed_enough,
    cut_requests,
    each_id_once,
    ledger_is_journals,
    ledger_is_recorder,
    recorder_is_sound,
    regenerated_is_not_billed,
)
from tests.labs.chaos.judging.rules.limits import (
    budgets_are_the_ledgers,
    limits_held,
    nothing_leaked,
)
from tests.labs.chaos.judging.rules.outcomes import (
    answers_equal_their_twins,
    engines_failed_nobody,
    everybody_was_answered,
    gateways_failed_nobody,
    one_bill_per_idempotency_key,
)
from tests.labs.chaos.judging.rules.sums import (
    costs_are_right,
    journal_sums_are_events,
    journals_are_read_whole,
    months_are_rollups,
    rollups_are_events,
)
from tests.labs.chaos.judging.rules.tuning import jobs_are_billed_once
from tests.labs.chaos.judging.verdict import judge, only_the_killed_died, there_was_a_storm
from tests.labs.chaos.plan import Strike

PRICES = (2, 1, 6)
GROUP = Group(0, 1, 7, "plain", "plain", "base")
WHOLE = Counts(50, 32, 20)
STATES = [Counts(50, 32, 5), Counts(50, 32, 12), WHOLE]
PART = STATES[1]
TRAINING_PRICE = 5


def event(id: str, counts: Counts, reason: str = "length", started_at: float = 100.0) -> Event:
    entry = Entry(id, "journal-1", 1, 7, "plain", counts, reason, started_at)
    uncached = counts.prompt_tokens - counts.cached_tokens
    cost = 2 * uncached + counts.cached_tokens + 6 * counts.completion_tokens
    return Event(entry, started_at - 0.1, "agent-0", PRICES, cost, GROUP)


def training(id: str, tokens: int = 60) -> Event:
    """The ledger's line of a fine-tuning job."""
    return replace(event(id, Counts(tokens), "stop"), cost=TRAINING_PRICE * tokens)


def budget(tokens: int, cost: int) -> BudgetState:
    """A budget with this spent, where 10 tokens were billed before the last request and 11 after
    it."""
    return BudgetState("tenant 1", Spent(tokens, cost), Spent(11, 20), Spent(10, 18))


def with_sums(facts: Facts) -> Facts:
    """Set the sums and journals that follow from the events."""
    sums = Sums.of([*facts.events, *facts.trainings])
    facts.rollups, facts.months = {GROUP: sums}, {GROUP: sums}
    counted = Sums.of(facts.events)._replace(cost=0)
    facts.journal_sums = {"journal-1": JournalSums("agent-0", counted, counted, 0, 0)}
    facts.entries = [one.entry for one in facts.events]
    facts.journal_ends = [JournalEnd("journal-1", len(facts.events), 0, 0)]
    return facts


@pytest.fixture
def facts() -> Facts:
    """Three requests: one that ended, one whose client left, one cut by its agent's death."""
    return with_sums(
        Facts(
            events=[event("whole", WHOLE), event("left", PART, "cancelled"),
                    event("cut", PART, CUT)],
            seen=[
                Seen("whole", "agent-0-12", list(STATES), handed_on=20, finish_reason="length"),
                Seen("left", "agent-0-12", STATES[:2], handed_on=12),
                Seen("cut", "agent-0-11", list(STATES), handed_on=12),
            ],
            received=[
                Received("acme", "gateway-0", 100.0, id="whole", ended=103.0, status=200,
                         tokens=20, text="tea", usage=WHOLE, complete=True, idempotency_key="k"),
                Received("acme", "gateway-0", 100.0, id="left", ended=102.0, status=200,
                         tokens=9, left=True),
                Received("acme", "gateway-0", 100.0, id="cut", ended=101.0, status=200,
                         tokens=12, error="engine_lost"),
                Received("acme", "gateway-1", 110.0, ended=110.1, broken="ConnectError"),
            ],
            lives=[
                Life("redis", "redis", 5, 50.0, 50.1, 300.0, STOPPED, 0),
                Life("agent-0", "agent", 11, 50.0, 51.0, 101.0, KILLED, -9),
                Life("agent-0", "agent", 12, 101.1, 102.0, 300.0, STOPPED, 0),
                Life("gateway-0", "gateway", 21, 50.0, 52.0, 300.0, STOPPED, 0),
                Life("gateway-1", "gateway", 22, 50.0, 52.0, 109.0, KILLED, -9),
                Life("gateway-1", "gateway", 23, 109.1, 112.0, 300.0, STOPPED, 0),
            ],
            batches=[BatchGot("batch_1", "acme", {"a", "b"}, "cancelled",
                              [LineGot("a", "whole", usage=WHOLE), LineGot("b", "", CANCELLED)],
                              completed=1, usage=WHOLE)],
            responses=[ResponseGot("acme", "resp_whole", "completed", usage=WHOLE)],
            in_background={"whole"},
            tunings=[TuningGot("acme", 3, "ftjob-1", status="succeeded", trained_tokens=60,
                               went_on=1),
                     TuningGot("acme", 3, "ftjob-2", faulty=True, status="failed"),
                     TuningGot("acme", 3, "ftjob-3", status="cancelled")],
            tuning_rows={"ftjob-1": TuningRow("succeeded", False, 1),
                         "ftjob-2": TuningRow("failed", False, 0),
                         "ftjob-3": TuningRow("cancelled", False, 0)},
            trainings=[training("ftjob-1")],
            epoch_tokens=20,
            training_price=TRAINING_PRICE,
            planned=[Strike(51.0, "agent", "agent-0"), Strike(59.0, "gateway", "gateway-1")],
            budgets=2,
            kills=[Kill(101.0, "agent", "agent-0"), Kill(109.0, "gateway", "gateway-1")],
            prices={(1, "plain"): PRICES},
            requests_per_minute={1: 3},
            compared=[budget(11, 20), budget(10, 20)],
            reseeded=[budget(11, 20), budget(10, 18)],
        )
    )  # fmt: skip


def test_a_sound_run(facts: Facts) -> None:
    for check in judge(facts):
        assert not check.faults, check
        assert check.figures


def test_a_sound_run_with_a_request_that_was_tried_twice(facts: Facts) -> None:
    lower = _lower(facts)
    facts.superseded.append(lower)
    facts.entries.append(lower)
    facts.seen.append(Seen("whole", "agent-1-9", STATES[:2], handed_on=12, attempt=0))
    facts.events[0] = replace(facts.events[0], regenerated=12)
    facts.moved, facts.twins = [Moved("whole", 0.4)], [Twin("whole", "tea", "tea")]
    facts.journal_ends = [JournalEnd("journal-1", 4, 0, 0)]
    sums = Sums(4, *Counts.total(entry.counts for entry in facts.entries))
    facts.journal_sums = {"journal-1": JournalSums("agent-0", sums, sums, 0, 0)}
    for check in judge(facts):
        assert not check.faults, check


def test_a_sound_run_with_a_request_that_another_gateway_adopted(facts: Facts) -> None:
    """One run of an engine has two entries, and the higher one bills."""
    whole = facts.events[0]
    lower = replace(whole.entry, counts=PART, finish_reason="moved")
    higher = replace(whole.entry, attempt=1001, inherited=PART.completion_tokens)
    facts.events[0] = replace(whole, entry=higher)
    facts.superseded = [lower]
    facts.entries = [lower, *(one.entry for one in facts.events)]
    facts.only_gateways, facts.adopted = True, [Adopted("whole", 2)]
    facts.twins = [Twin("whole", "tea", "tea")]
    facts.received.append(
        replace(facts.received[3], id="whole", began=99.0, ended=99.5, idempotency_key="k")
    )
    facts.journal_ends = [JournalEnd("journal-1", 4, 0, 0)]
    sums = Sums(4, *Counts.total(entry.counts for entry in facts.entries))
    facts.journal_sums = {"journal-1": JournalSums("agent-0", sums, sums, 0, 0)}
    for check in judge(facts):
        if check.title != "every request was answered, or refused clearly":
            assert not check.faults, check


def test_what_pools_and_is_cut_may_be_billed_nothing(facts: Facts) -> None:
    """No client received any of it."""
    (cut,) = [one for one in facts.seen if one.id == "cut"]
    at = next(i for i, one in enumerate(facts.events) if one.entry.id == "cut")
    facts.events[at] = replace(
        facts.events[at], entry=replace(facts.events[at].entry, counts=Counts())
    )
    cut.states = [Counts(10 * step) for step in range(1, 30)]
    assert not cut_requests(facts).faults
    cut.states.append(Counts(300, 0, 20))
    assert cut_requests(facts).faults


def test_what_could_move_no_more_has_a_bill_beside_its_repetitions(facts: Facts) -> None:
    _only_gateways(facts, two_bills=True)
    assert gateways_failed_nobody(facts).faults
    facts.stayed = {"left"}
    assert not gateways_failed_nobody(facts).faults


def test_what_was_adopted_and_then_cut_is_compared_with_its_one_run(facts: Facts) -> None:
    cut = facts.events[2]
    lower = replace(cut.entry, counts=STATES[0], finish_reason="moved")
    facts.superseded = [lower]
    facts.events[2] = replace(cut, entry=replace(cut.entry, attempt=1001, inherited=5))
    assert not cut_requests(facts).faults and not ledger_is_recorder(facts).faults
    facts.events[2] = replace(cut, entry=replace(cut.entry, attempt=1001, counts=STATES[0]))
    assert cut_requests(facts).faults


def test_an_empty_run() -> None:
    assert not any(check.faults for check in judge(Facts()))


Change = Callable[[Facts], Any]


def _bill(facts: Facts, id: str, counts: Counts) -> None:
    """Change the ledger and the journals."""
    facts.events = [
        event(id, counts, one.entry.finish_reason) if one.entry.id == id else one
        for one in facts.events
    ]
    with_sums(facts)


def _change(facts: Facts, id: str, **fields: Any) -> None:
    """Change the ledger alone."""
    facts.events = [
        replace(one, entry=replace(one.entry, **fields)) if one.entry.id == id else one
        for one in facts.events
    ]


def _lower(facts: Facts) -> Entry:
    """An attempt below the one that is billed."""
    return replace(facts.events[0].entry, attempt=0, counts=PART)


def _only_gateways(facts: Facts, *, refused: bool = False, two_bills: bool = False) -> None:
    facts.only_gateways, facts.adopted = True, [Adopted("whole", 2)]
    if two_bills:
        facts.received.append(replace(facts.received[1], idempotency_key="k"))
    if refused:
        error = replace(facts.received[3], broken="", error="server_is_overloaded")
        facts.received.append(replace(error, idempotency_key="k2"))


FAULTS: dict[str, tuple[Callable[[Facts], Any], Change, str]] = {
    "nothing killed": (there_was_a_storm, lambda f: f.kills.clear(), "0 of 2 strikes"),
    "only some killed": (there_was_a_storm, lambda f: f.kills.pop(), "1 of 2 strikes"),
    "nobody served": (
        there_was_a_storm, lambda f: setattr(f.received[0], "complete", False), "acme never",
    ),
    "budgets not looked at": (
        budgets_are_the_ledgers, lambda f: f.compared.clear(), "0 of 2 budgets",
    ),
    "missing event": (ledger_is_journals, lambda f: f.events.pop(0), "not in the ledger"),
    "event from nowhere": (
        ledger_is_journals, lambda f: f.events.append(event("ghost", WHOLE)), "in no journal",
    ),
    "event changed": (
        ledger_is_journals, lambda f: _change(f, "whole", counts=PART), "the ledger",
    ),
    "another key billed": (ledger_is_journals, lambda f: _change(f, "whole", key_id=8), "key_id=8"),
    "another time": (
        ledger_is_journals, lambda f: _change(f, "whole", started_at=100.5), "or at 100.5",
    ),
    "closed twice": (
        ledger_is_journals,
        lambda f: f.entries.append(event("whole", PART).entry), "closed twice",
    ),
    "token too many": (
        ledger_is_recorder, lambda f: _bill(f, "whole", Counts(50, 32, 21)), "whole: billed",
    ),
    "token too few": (
        ledger_is_recorder, lambda f: _bill(f, "left", Counts(50, 32, 11)), "left: billed",
    ),
    "prompt not billed": (
        ledger_is_recorder, lambda f: _bill(f, "left", Counts(0, 0, 12)), "left: billed",
    ),
    "generated and not billed": (
        ledger_is_recorder, lambda f: f.seen.append(Seen("lost", "r", [WHOLE])), "lost was",
    ),
    "generated without a record": (
        ledger_is_recorder, lambda f: f.seen.pop(0), "whole: billed",
    ),
    "ran twice": (
        ledger_is_recorder, lambda f: f.seen.append(Seen("whole", "agent-1-9")), "ran 2 times",
    ),
    "cut and billed too much": (
        cut_requests, lambda f: _bill(f, "cut", Counts(50, 32, 21)), "last steps",
    ),
    "cut and billed too little": (
        cut_requests, lambda f: _bill(f, "cut", STATES[0]), "last steps",
    ),
    "cut by nobody": (
        cut_requests, lambda f: setattr(f.seen[2], "run", "agent-0-12"), "was not killed",
    ),
    "handed on and not counted": (
        recorder_is_sound, lambda f: setattr(f.seen[0], "handed_on", 21), "handed on 21",
    ),
    "received and not billed": (
        clients_are_billed_enough,
        lambda f: setattr(f.received[1], "tokens", 13), "13 tokens received",
    ),
    "received without an event": (
        clients_are_billed_enough, lambda f: f.events.pop(1), "left: 9 tokens received",
    ),
    "answered with other figures": (
        clients_are_billed_enough,
        lambda f: setattr(f.received[0], "usage", Counts(50, 0, 20)), "whole: answered",
    ),
    "two answers for one key": (
        one_bill_per_idempotency_key,
        lambda f: f.received.append(replace(f.received[0], id="again", began=104, ended=106)),
        "answered as whole, again",
    ),
    "another text for one id": (
        one_bill_per_idempotency_key,
        lambda f: f.received.append(replace(f.received[0], text="coffee")), "different answers",
    ),
    "repeated in vain": (
        gateways_failed_nobody,
        lambda f: f.received.append(replace(f.received[3], idempotency_key="k2")),
        "ended with connection lost",
    ),
    "refused where nothing else died": (
        gateways_failed_nobody, lambda f: _only_gateways(f, refused=True), "server_is_overloaded",
    ),
    "two bills for one key": (
        gateways_failed_nobody,
        lambda f: _only_gateways(f, two_bills=True), "billed as left, whole",
    ),
    "nothing adopted where only gateways died": (
        gateways_failed_nobody,
        lambda f: setattr(f, "only_gateways", True), "nothing is proved",
    ),
    "lower attempt forgotten": (
        ledger_is_journals, lambda f: f.entries.append(_lower(f)), "not in the ledger",
    ),
    "lower attempt from nowhere": (
        ledger_is_journals, lambda f: f.superseded.append(_lower(f)), "in no journal",
    ),
    "lower attempt not in its journal's sums": (
        journal_sums_are_events, lambda f: f.superseded.append(_lower(f)), "its events sum up to",
    ),
    "higher attempt not billed": (
        each_id_once,
        lambda f: f.superseded.append(replace(_lower(f), attempt=2)), "billed by a lower attempt",
    ),
    "lost though another engine served": (
        engines_failed_nobody, lambda f: setattr(f.received[2], "ended", 200.0), "engine_lost",
    ),
    "another answer than undisturbed": (
        answers_equal_their_twins, lambda f: f.twins.append(Twin("whole", "tea", "coffee")),
        "'tea' instead of 'coffee'",
    ),
    "moved and not compared": (
        answers_equal_their_twins, lambda f: f.moved.append(Moved("whole", 0.4)), "none was asked",
    ),
    "regenerated and not counted": (
        regenerated_is_not_billed, lambda f: f.superseded.append(_lower(f)), "not 12",
    ),
    "regenerated by nobody": (
        regenerated_is_not_billed,
        lambda f: f.events.__setitem__(0, replace(f.events[0], regenerated=1)), "not 0",
    ),
    "duplicate": (each_id_once, lambda f: f.events.append(f.events[0]), "whole is 2 events"),
    "wrong cost": (
        costs_are_right,
        lambda f: f.events.append(replace(event("dear", WHOLE), cost=1)), "dear costs 1",
    ),
    "wrong price": (
        costs_are_right, lambda f: f.prices.update({(1, "plain"): (3, 1, 6)}), "has the prices",
    ),
    "sum too large": (
        rollups_are_events,
        lambda f: f.rollups.update({GROUP: f.rollups[GROUP]._replace(requests=5)}), "requests=5",
    ),
    "sum of nothing": (
        rollups_are_events,
        lambda f: f.rollups.update({GROUP._replace(hour=3600): Sums(1)}), "hour=3600",
    ),
    "missing sum": (rollups_are_events, lambda f: f.rollups.clear(), "the rollup says"),
    "month too large": (
        months_are_rollups,
        lambda f: f.months.update({GROUP: f.months[GROUP]._replace(cost=1)}), "cost=1",
    ),
    "another hour of the month": (
        months_are_rollups,
        lambda f: f.rollups.update({GROUP._replace(hour=3600): Sums(1)}), "the month says",
    ),
    "missing month": (months_are_rollups, lambda f: f.months.clear(), "the month says"),
    "journal's count differs": (
        journal_sums_are_events,
        lambda f: f.journal_sums.update(
            {"journal-1": replace(f.journal_sums["journal-1"], counted=Sums(2))}
        ),
        "its events sum up to",
    ),
    "not journaled": (
        journal_sums_are_events,
        lambda f: f.journal_sums.update(
            {"journal-1": replace(f.journal_sums["journal-1"], unjournaled_tokens=1)}
        ),
        "unjournaled_tokens=1",
    ),
    "unacknowledged": (
        journals_are_read_whole,
        lambda f: f.journal_ends.append(JournalEnd("journal-2", 0, 0, 1)), "unacknowledged=1",
    ),
    "still open": (
        journals_are_read_whole,
        lambda f: f.journal_ends.append(JournalEnd("journal-2", 0, 1, 0)), "open=1",
    ),
    "journal not read": (journals_are_read_whole, lambda f: f.entries.pop(), "2 were read"),
    "leaked reservation": (
        nothing_leaked, lambda f: f.leftovers.reservations.append("id-1"), "id-1 is still held",
    ),
    "leaked lease of a stream": (
        nothing_leaked, lambda f: f.leftovers.streams.update(t1=1), "concurrent streams of t1",
    ),
    "leaked budget": (
        nothing_leaked, lambda f: f.leftovers.reserved.update(t1=90), "90 tokens or costs",
    ),
    "busy engine": (
        nothing_leaked, lambda f: f.leftovers.engines.update({"agent-0": 1}), "1 requests on",
    ),
    "over the limit": (
        limits_held,
        lambda f: f.events.append(event("fourth", PART, started_at=159.8)), "4 requests",
    ),
    "budget over the ledger": (
        budgets_are_the_ledgers, lambda f: f.compared.__setitem__(0, budget(12, 20)), "tokens=12",
    ),
    "budget below the ledger": (
        budgets_are_the_ledgers, lambda f: f.reseeded.__setitem__(0, budget(9, 18)), "tokens=9",
    ),
    "hung": (
        everybody_was_answered, lambda f: setattr(f.received[0], "wrong", "hung"), "hung",
    ),
    "never ended": (
        everybody_was_answered, lambda f: f.received.append(Received("a", "gateway-0", 1)),
        "never ended",
    ),
    "unclear error": (
        everybody_was_answered, lambda f: setattr(f.received[2], "error", "internal_error"),
        "internal_error",
    ),
    "lost connection to a living gateway": (
        everybody_was_answered, lambda f: setattr(f.received[3], "began", 113.0)
        or setattr(f.received[3], "ended", 114.0), "which lived",
    ),
    "no batch": (
        lines_are_answered_once,
        lambda f: f.batches.clear() or f.planned.append(Strike(1.0, "worker", "worker-0")),
        "no batch",
    ),
    "batch that never ended": (
        lines_are_answered_once, lambda f: setattr(f.batches[0], "status", ""), "as nothing",
    ),
    "line that is missing": (
        lines_are_answered_once, lambda f: f.batches[0].lines.pop(), "its lines are there",
    ),
    "line that is there twice": (
        lines_are_answered_once, lambda f: f.batches[0].lines.append(f.batches[0].lines[0]),
        "its lines are there",
    ),
    "answers that were not counted": (
        lines_are_answered_once, lambda f: setattr(f.batches[0], "completed", 2), "2 answers",
    ),
    "line that is not billed": (
        lines_are_answered_once, lambda f: f.events.pop(0), "billed None",
    ),
    "line that is billed otherwise": (
        lines_are_answered_once, lambda f: _bill(f, "whole", PART), "billed Counts",
    ),
    "batch that says less": (
        lines_are_answered_once, lambda f: setattr(f.batches[0], "usage", PART), "batch_1 says",
    ),
    "line that failed by mistake": (
        lines_are_answered_once,
        lambda f: f.batches[0].lines.__setitem__(1, LineGot("b", "", "internal_error")),
        "internal_error",
    ),
    "no response of the background": (
        responses_are_answered_once,
        lambda f: f.responses.clear() or f.in_background.clear()
        or f.planned.append(Strike(1.0, "worker", "worker-0")), "nothing is proved",
    ),
    "response of which no client knows": (
        responses_are_answered_once, lambda f: f.in_background.add("other"), "among 2 there",
    ),
    "response that was made twice": (
        responses_are_answered_once, lambda f: f.responses.append(f.responses[0]),
        "clients have 1",
    ),
    "response that is gone": (
        responses_are_answered_once, lambda f: setattr(f.responses[0], "status", ""), "as nothing",
    ),
    "response that failed by mistake": (
        responses_are_answered_once, lambda f: setattr(f.responses[0], "status", "failed")
        or setattr(f.responses[0], "code", "internal_error"), "internal_error",
    ),
    "response that is not billed": (
        responses_are_answered_once, lambda f: f.events.pop(0), "billed None",
    ),
    "response that is billed otherwise": (
        responses_are_answered_once, lambda f: _bill(f, "whole", PART), "billed Counts",
    ),
    "job that never ended": (
        jobs_are_billed_once, lambda f: setattr(f.tunings[2], "status", ""), "ended as nothing",
    ),
    "job that failed by mistake": (
        jobs_are_billed_once, lambda f: setattr(f.tunings[1], "faulty", False), "ended as failed",
    ),
    "job that is not billed": (
        jobs_are_billed_once, lambda f: f.trainings.clear(), "has 0 lines",
    ),
    "job that is billed twice": (
        jobs_are_billed_once, lambda f: f.trainings.append(f.trainings[0]), "has 2 lines",
    ),
    "job that was cancelled and is billed": (
        jobs_are_billed_once, lambda f: f.trainings.append(training("ftjob-3")), "has 1 lines",
    ),
    "job that is billed for other tokens": (
        jobs_are_billed_once, lambda f: f.trainings.__setitem__(0, training("ftjob-1", 40)),
        "instead of 60 tokens",
    ),
    "job at another price": (
        jobs_are_billed_once, lambda f: setattr(f, "training_price", 6), "instead of 60 tokens",
    ),
    "job that says other tokens": (
        jobs_are_billed_once, lambda f: setattr(f.tunings[0], "trained_tokens", 61),
        "trained 61 tokens",
    ),
    "job that was made twice": (
        jobs_are_billed_once,
        lambda f: f.tuning_rows.update({"ftjob-4": f.tuning_rows["ftjob-1"]}), "4 exist",
    ),
    "job that is billed and nobody's": (
        jobs_are_billed_once, lambda f: f.trainings.append(training("ftjob-4")), "no client's job",
    ),
    "job that is still claimed": (
        jobs_are_billed_once,
        lambda f: f.tuning_rows.update({"ftjob-3": TuningRow("cancelled", True, 0)}), "claimed",
    ),
    "job whose adapter is left": (
        jobs_are_billed_once,
        lambda f: f.tuning_rows.update({"ftjob-3": TuningRow("cancelled", False, 1)}),
        "has 1 adapters",
    ),
    "nothing gone on with": (
        jobs_are_billed_once,
        lambda f: setattr(f.tunings[0], "went_on", 0)
        or f.planned.append(Strike(1.0, "training", "trainer")), "nothing is proved",
    ),
    "line of a job that is in no sum": (
        rollups_are_events, lambda f: f.trainings.append(training("ftjob-4")), "the rollup says",
    ),
    "died by itself": (
        only_the_killed_died,
        lambda f: f.lives.append(Life("agent-1", "agent", 9, 1.0, 2.0, 3.0, "", 70)),
        "by itself with the status 70",
    ),
    "died before it was killed": (
        only_the_killed_died,
        lambda f: f.lives.append(Life("agent-1", "agent", 9, 1.0, 2.0, 3.0, KILLED, 1)),
        "by itself with the status 1",
    ),
    "stopped badly": (
        only_the_killed_died, lambda f: setattr(f.lives[0], "status", 1), "with the status 1",
    ),
    "crash in a log": (
        only_the_killed_died, lambda f: f.crashes.append("request_crashed"), "request_crashed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(facts: Facts, fault: str) -> None:
    check, change, says = FAULTS[fault]
    change(facts)
    (first, *_) = check(facts).faults
    assert says in first


def test_what_found_no_engine_alive_or_had_moved_often(facts: Facts) -> None:
    facts.received[2].ended = 200.0
    facts.kills.append(Kill(195.0, "hang", "agent-0", 6.0))
    check = engines_failed_nobody(facts)
    assert not check.faults and "1 found none alive" in check.figures
    facts.kills.pop()
    facts.stayed = {"cut"}
    check = engines_failed_nobody(facts)
    assert not check.faults and "1 requests had moved twice" in check.figures


def test_what_is_inherited_was_not_regenerated(facts: Facts) -> None:
    facts.superseded.append(_lower(facts))
    entry = replace(facts.events[0].entry, inherited=10)
    facts.events[0] = replace(facts.events[0], entry=entry, regenerated=2)
    check = regenerated_is_not_billed(facts)
    assert not check.faults and check.figures.startswith("2 tokens of 1 requests")


def test_an_answer_that_nothing_could_remember(facts: Facts) -> None:
    facts.received.append(replace(facts.received[0], id="again", began=110, ended=112))
    facts.unkept = {"gateway-0": [102.5]}
    check = one_bill_per_idempotency_key(facts)
    assert not check.faults
    assert "1 forgotten" in check.figures
    facts.unkept = {"gateway-0": [99.0, 103.1], "gateway-1": [102.5]}
    assert one_bill_per_idempotency_key(facts).faults


def test_when_a_journal_is_billed() -> None:
    """Reports that lack the last request on both sides agree with each other, but not with the
    file."""
    end, sums = JournalEnd("journal-1", 2, open=0, unacknowledged=0), Sums(2)
    assert end.is_billed(JournalSums("agent-0", sums, sums, 0, waiting=0))
    assert not end.is_billed(JournalSums("agent-0", sums, sums, 0, waiting=1))
    assert not end.is_billed(JournalSums("agent-0", sums, Sums(1), 0, waiting=0))
    assert not end.is_billed(JournalSums("agent-0", Sums(1), Sums(1), 0, waiting=0))
    assert not end.is_billed(None)
    for field in ("open", "unacknowledged"):
        one: Any = {field: 1}
        unsettled = replace(end, **one)
        assert not unsettled.is_billed(JournalSums("agent-0", sums, sums, 0, waiting=0))


def test_a_cut_request_may_have_cost_nothing(facts: Facts) -> None:
    """Its agent died in its first step."""
    facts.seen[2].states = [STATES[0]]
    _bill(facts, "cut", Counts())
    assert not cut_requests(facts).faults


def test_a_cut_answer_that_did_not_stream(facts: Facts) -> None:
    """Its agent records its progress only now and then."""
    facts.unseen = Unseen(streamed=0, whole=2)
    _bill(facts, "cut", STATES[0])
    assert not cut_requests(facts).faults
    facts.received[2].streams = True
    assert cut_requests(facts).faults


def test_a_cut_request_that_never_ran(facts: Facts) -> None:
    facts.seen.pop()
    _bill(facts, "cut", Counts())
    assert not cut_requests(facts).faults


def test_the_limits_of_each_life_of_redis(facts: Facts) -> None:
    """A killed Redis forgets its window, so the minute begins again."""
    facts.requests_per_minute = {1: 2}
    facts.events = [event(str(n), PART, started_at=100.0 + n) for n in range(4)]
    assert limits_held(facts).faults
    facts.lives[0].ended = 101.5
    facts.lives.append(Life("redis", "redis", 6, 101.6, 101.7, None))
    assert not limits_held(facts).faults


def test_a_gateway_without_redis_counts_by_itself(facts: Facts) -> None:
    facts.requests_per_minute = {1: 3}
    facts.events = [event(str(n), PART, started_at=100.0 + n) for n in range(8)]
    assert limits_held(facts).faults
    facts.degraded = [(102.5, 104.5), (10.0, 20.0), (102.6, 103.0)]
    assert not limits_held(facts).faults
    facts.degraded = [(102.5, 103.5)]
    assert "4 requests in a minute" in limits_held(facts).faults[0]


def test_starts_in_vain(facts: Facts) -> None:
    """A gateway that finds no database says so and is restarted."""
    facts.lives.append(Life("gateway-0", "gateway", 9, 1.0, None, 3.0, "", 1))
    check = only_the_killed_died(facts)
    assert not check.faults
    assert "1 started in vain" in check.figures


def test_a_worker_ends_with_its_connection_to_the_database(facts: Facts) -> None:
    facts.lives.append(Life("worker-0", "worker", 9, 1.0, 2.0, 3.0, "", 1))
    assert not only_the_killed_died(facts).faults


def test_what_is_known_of_a_batchs_lines_is_not_when_they_passed(facts: Facts) -> None:
    lines = [event("f" * 24 + f"{number:08x}", PART) for number in range(9)]
    facts.events += lines
    assert limits_held(facts).faults
    facts.prefixes = {"f" * 24}
    assert not limits_held(facts).faults


def test_a_line_that_is_sent_anew_is_no_adoption(facts: Facts) -> None:
    """Its first turn ran; the next one ended before the engine began it."""
    again = replace(facts.events[0].entry, attempt=first_attempt(2), counts=Counts())
    facts.superseded = [facts.events[0].entry]
    facts.events[0] = replace(facts.events[0], entry=again)
    assert ledger_is_recorder(facts).faults
    facts.events = [
        replace(one, entry=replace(one.entry, id="f" * 24 + one.entry.id)) for one in facts.events
    ]
    facts.superseded = [replace(one, id="f" * 24 + one.id) for one in facts.superseded]
    for one in facts.seen:
        one.id = "f" * 24 + one.id
    facts.prefixes = {"f" * 24}
    assert not ledger_is_recorder(facts).faults


@pytest.mark.parametrize(("broken", "fine"), [("ConnectError: no", True), ("ReadError", False)])
def test_a_gateway_that_drains_takes_no_new_connections(
    facts: Facts, broken: str, fine: bool
) -> None:
    facts.lives.append(Life("gateway-7", "gateway", 9, 100.0, 101.0, 140.0, DRAINED, 0, 110.0))
    facts.received.append(Received("acme", "gateway-7", began=111.0, ended=112.0, broken=broken))
    assert bool(everybody_was_answered(facts).faults) is not fine
    facts.received[-1].began, facts.received[-1].ended = 107.0, 108.0
    assert everybody_was_answered(facts).faults, "it was there"
