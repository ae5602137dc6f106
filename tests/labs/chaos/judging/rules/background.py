"""Each response in the background exists once, is answered once and billed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.labs.chaos.judging.facts import Counts, Facts, ResponseGot
from tests.labs.chaos.judging.rules.check import Check
from tests.labs.chaos.judging.rules.outcomes import OPENLY_SAID, WITHOUT_ENGINE

PREFIX = "resp_"


def responses_are_answered_once(facts: Facts) -> Check:
    """Each response that a client requested under an idempotency key is one row in the database; it
    ends, and its usage is what is billed."""
    check = Check("each response of the background answered once, billed once")
    billed = {event.entry.id: event.entry.counts for event in facts.events}
    for one in facts.responses:
        check.faults += _faults(one, billed)
    times = Counter(one.id.removeprefix(PREFIX) for one in facts.responses)
    if facts.in_background != set(times) or set(times.values()) - {1}:
        check.faults.append(
            f"clients have {len(times)} responses of the background, of which "
            f"{len(facts.in_background & set(times))} are among {len(facts.in_background)} there"
        )
    if not facts.responses and any(strike.kind == "worker" for strike in facts.planned):
        check.faults.append("there was no response of the background: nothing is proved")
    statuses = Counter(one.status for one in facts.responses)
    check.figures = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return check


def _faults(one: ResponseGot, billed: dict[str, Counts]) -> Iterator[str]:
    bill = billed.get(one.id.removeprefix(PREFIX))
    if one.status in ("completed", "incomplete"):
        if one.usage != bill:
            yield f"{one.id}: answered {one.usage}, billed {bill}"
    elif one.status == "failed":
        if one.code not in OPENLY_SAID | WITHOUT_ENGINE:
            yield f"{one.id} of {one.tenant} failed with {one.code}"
    elif one.status != "cancelled":
        yield f"{one.id} of {one.tenant} ended as {one.status or one.code or 'nothing'}"
