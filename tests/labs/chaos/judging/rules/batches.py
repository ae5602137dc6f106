"""Each line of a batch is answered once and billed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.labs.chaos.judging.facts import NOTHING, BatchGot, Counts, Facts
from tests.labs.chaos.judging.rules.check import Check
from tests.labs.chaos.judging.rules.outcomes import OPENLY_SAID, WITHOUT_ENGINE

CANCELLED = "batch_cancelled"


def lines_are_answered_once(facts: Facts) -> Check:
    """Each batch ends with each of its lines in one of its files; its counts and usage agree with
    the lines and with the ledger."""
    check = Check("each line of a batch answered once, billed once")
    billed = {event.entry.id: event.entry.counts for event in facts.events}
    for batch in facts.batches:
        check.faults += _faults(batch, billed)
    lines = [line for batch in facts.batches for line in batch.lines]
    failed = Counter(line.code for line in lines if line.code)
    if not facts.batches and any(strike.kind == "worker" for strike in facts.planned):
        check.faults.append("there was no batch: nothing is proved")
    check.figures = (
        f"{len(facts.batches)} batches, {len(lines) - failed.total():,} lines answered, "
        f"{failed[CANCELLED]} cancelled, {failed.total() - failed[CANCELLED]} failed"
    )
    return check


def _faults(batch: BatchGot, billed: dict[str, Counts]) -> Iterator[str]:
    if batch.status not in ("completed", "cancelled"):
        yield f"{batch.id} of {batch.tenant} ended as {batch.status or 'nothing'}"
        return
    if batch.status == "cancelled" and not (batch.lines or batch.completed or batch.failed):
        return  # cancelled before its file was read
    times = Counter(line.custom_id for line in batch.lines)
    if times != dict.fromkeys(batch.sent, 1):
        yield f"{batch.id}: its lines are there {times}"
    answered = [line for line in batch.lines if not line.code]
    failed = [line for line in batch.lines if line.id and line.code]
    if (batch.completed, batch.failed) != (len(answered), len(failed)):
        yield (
            f"{batch.id} counts {batch.completed} answers and {batch.failed} failures, "
            f"but has {len(answered)} and {len(failed)}"
        )
    for line in answered:
        if line.usage != billed.get(line.id):
            yield f"{line.id}: answered {line.usage}, billed {billed.get(line.id)}"
    if not failed and batch.usage != Counts.total([NOTHING, *(line.usage for line in answered)]):
        yield f"{batch.id} says {batch.usage}"
    may_be = OPENLY_SAID | WITHOUT_ENGINE | ({CANCELLED} if batch.status == "cancelled" else set())
    for line in batch.lines:
        if line.code and line.code not in may_be:
            yield f"{batch.id}: line {line.custom_id} ended with {line.code}"
