"""What limits let pass, and what they still held when nothing ran any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.labs.chaos.judging.facts import Facts
from tests.labs.chaos.judging.rules.check import Check

WINDOW_S = 60.0


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
    """No minute has more requests than the limit, as long as Redis counted during all of that
    minute.

    A Redis that is killed forgets its windows, and it does not know of requests that a gateway
    counts without it. So the periods between such times are examined one by one.
    """
    check = Check("requests per minute within the limits")
    pieces, busiest = list(_counted(facts)), [0.0]
    for tenant_id, limit in facts.requests_per_minute.items():
        passed = sorted(
            (event.made_at, event.entry.started_at)
            for event in facts.events
            if event.group.tenant_id == tenant_id
            # Excluded, because when a line passed is unknown: it is dated to the start of its
            # batch.
            and not facts.is_line(event.entry.id)
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
    """The periods in which one and the same Redis counted all requests."""
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
    """The most requests that certainly passed within one minute between `first` and `last`.

    Each element of `passed` is two moments between which a request passed; they are sorted.
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
    """Redis ends with the ledger's figures, both with its own memory and after it has forgotten
    all."""
    check = Check("budgets in Redis = ledger")
    for compared in (facts.compared, facts.reseeded):
        if len(compared) != facts.budgets:
            check.faults.append(f"{len(compared)} of {facts.budgets} budgets are in Redis")
    for budget in (*facts.compared, *facts.reseeded):
        if not budget.agrees:
            check.faults.append(f"{budget.name}: {budget}")
    check.figures = (
        f"{len(facts.compared)} budgets after the storm, {len(facts.reseeded)} after Redis forgot"
    )
    return check
