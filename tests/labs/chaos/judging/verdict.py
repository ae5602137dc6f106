"""Compares what all sides reported of a run. Pure: facts in, findings out."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable

from tests.labs.chaos.judging.facts import DRAINED, KILLED, STOPPED, Facts
from tests.labs.chaos.judging.rules import (
    background,
    batches,
    bills,
    limits,
    outcomes,
    sums,
    tuning,
)
from tests.labs.chaos.judging.rules.check import Check

STARTS_IN_VAIN = ("gateway", "postgres", "console")
HIT_SHARE = 0.8
"""Share of the planned strikes that must hit: a victim may still be dead from an earlier strike."""


def judge(facts: Facts) -> list[Check]:
    """Run every check; the run is sound if none has faults."""
    return [check(facts) for check in CHECKS]


def there_was_a_storm(facts: Facts) -> Check:
    """What was planned was killed, and there was work to lose; otherwise nothing is proved."""
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


def only_the_killed_died(facts: Facts) -> Check:
    """No process ended by itself, except for want of a database: a process that found none at its
    start, and a worker or trainer that lost it."""
    check = Check("nobody died but by kill -9")
    in_vain = 0
    for life in facts.lives:
        if life.ended is None or (life.killed == KILLED and life.status == -signal.SIGKILL):
            continue
        if life.killed in (STOPPED, DRAINED):
            if life.status:
                check.faults.append(f"{life.name} stopped with the status {life.status}")
        elif life.ready is None and life.kind in STARTS_IN_VAIN:
            in_vain += 1
        elif life.kind in ("worker", "trainer"):  # its jobs end with their connection to PostgreSQL
            in_vain += 1
        else:
            check.faults.append(f"{life.name} ended by itself with the status {life.status}")
    check.faults += facts.crashes
    check.figures = f"{len(facts.lives)} processes, {in_vain} started in vain, or lost PostgreSQL"
    return check


CHECKS: tuple[Callable[[Facts], Check], ...] = (
    there_was_a_storm,
    bills.ledger_is_journals,
    bills.ledger_is_recorder,
    bills.cut_requests,
    bills.recorder_is_sound,
    bills.clients_are_billed_enough,
    outcomes.one_bill_per_idempotency_key,
    outcomes.gateways_failed_nobody,
    outcomes.engines_failed_nobody,
    outcomes.answers_equal_their_twins,
    batches.lines_are_answered_once,
    background.responses_are_answered_once,
    tuning.jobs_are_billed_once,
    bills.regenerated_is_not_billed,
    bills.each_id_once,
    sums.costs_are_right,
    sums.rollups_are_events,
    sums.months_are_rollups,
    sums.journal_sums_are_events,
    sums.journals_are_read_whole,
    limits.nothing_leaked,
    limits.limits_held,
    limits.budgets_are_the_ledgers,
    outcomes.everybody_was_answered,
    only_the_killed_died,
)
