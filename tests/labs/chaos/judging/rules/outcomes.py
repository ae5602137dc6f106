"""What clients got while processes died: an answer, or an error that they can act on."""

from __future__ import annotations

from inference.operations.registry import OPERATIONS
from tests.labs.chaos.judging.facts import DRAINED, Facts, Life, Received
from tests.labs.chaos.judging.rules.check import Check, by_id
from tests.labs.chaos.plan import POOLERS

OPENLY_SAID = {
    "rate_limit_exceeded",
    "insufficient_quota",
    "server_is_overloaded",
    "service_unavailable",
    "adapter_unavailable",
    "request_quarantined",
}
"""Errors that a client may get while processes die; any other is a fault."""
WITHOUT_ENGINE = {"no_engine_available", "engine_lost", "engine_failed", "generation_timeout"}
"""Errors that it may get only if no engine could take its request."""
LIMITED = {"rate_limit_exceeded", "insufficient_quota"}
NOTICED_S = 12.0
"""Seconds, at most, from an engine's death until its requests are on another engine that serves."""
CLOSING_S = 15.0


def one_bill_per_idempotency_key(facts: Facts) -> Check:
    """A key has one answer, unless the store of answers was unavailable when it was complete."""
    check = Check("one answer for each idempotency key")
    keyed = [one for one in facts.received if one.idempotency_key and one.complete]
    by_key = by_id(keyed, lambda one: (one.tenant, one.idempotency_key))
    twice = 0
    for key, answers in by_key.items():
        answered = by_id(sorted(answers, key=lambda one: one.ended), lambda one: one.id)
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


def _could_not_be_kept(facts: Facts, answer: Received) -> bool:
    """Whether its gateway found PostgreSQL unavailable before it sent the answer's end."""
    times = facts.unkept.get(answer.gateway, [])
    return any(answer.began <= at <= answer.ended for at in times)


def gateways_failed_nobody(facts: Facts) -> Check:
    """A client that repeats a request with its key gets its answer, whatever happens to gateways.
    Where nothing else dies the request has one bill, apart from attempts that had moved as often as
    allowed."""
    check = Check("gateways' deaths failed no request that was repeated")
    by_key = by_id(
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
        bills = {one.id for one in tries} & generated - facts.stayed
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


def engines_failed_nobody(facts: Facts) -> Check:
    """No request ended for want of an engine while another engine could take it, except those that
    had moved as often as allowed."""
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
    """Whether an engine was ready for long enough before the request ended."""
    since = one.ended - NOTICED_S
    hung = {
        kill.name
        for kill in facts.kills
        if kill.kind == "hang" and kill.at < one.ended and kill.at + kill.seconds > since
    }
    return any(
        life.kind == "agent"
        and (life.name in POOLERS) == _pools(one)
        and life.name not in hung
        and life.ready is not None
        and life.ready < since
        and (life.ended is None or life.ended > one.ended)
        for life in facts.lives
    )


def _pools(one: Received) -> bool:
    """Whether it is answered by engines of the model that embeds."""
    operation = OPERATIONS.at(one.path)
    return operation is not None and operation.pools


def answers_equal_their_twins(facts: Facts) -> Check:
    """A client whose request moved got the answer that it would have got undisturbed."""
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


def everybody_was_answered(facts: Facts) -> Check:
    """Each request ended in time, with an answer or an error that a client can act on."""
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
    """Whether its gateway was unavailable for a moment of the request."""
    lives = [life for life in facts.lives if life.name == one.gateway]
    return not any(
        life.ready is not None
        and life.ready <= one.began
        and (life.ended is None or life.ended > one.ended + _closing_s(facts, life))
        and not _had_closed(life, one)
        for life in lives
    )


def _had_closed(life: Life, one: Received) -> bool:
    """Whether it no longer accepted connections and the request needed a new one."""
    refused = one.broken.startswith("ConnectError")
    return refused and life.asked is not None and life.asked <= one.ended


def _closing_s(facts: Facts, life: Life) -> float:
    """How long before its end it may close connections: a gateway with a short drain does so when
    that is over."""
    return CLOSING_S if facts.only_gateways and life.killed == DRAINED else 0.0
