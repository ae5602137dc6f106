"""Each fine-tuning job ends, and is billed once if it succeeded, for the tokens of its epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.labs.chaos.judging.facts import Counts, Event, Facts, TuningGot
from tests.labs.chaos.judging.rules.check import Check, by_id

LATER = "training"
"""The strike that kills a trainer which has saved a state."""


def jobs_are_billed_once(facts: Facts) -> Check:
    """Each job that a client created exists once and ends. One that succeeded has one line in the
    ledger, with the tokens of its epochs, and an adapter; any other has neither. None is claimed.
    """
    check = Check("each fine-tuning job billed once if it succeeded, else never")
    billed = by_id(facts.trainings, lambda event: event.entry.id)
    for one in facts.tunings:
        check.faults += _faults(facts, one, billed.get(one.id, []))
    created = Counter(one.id for one in facts.tunings)
    if created != dict.fromkeys(facts.tuning_rows, 1):
        check.faults.append(f"clients created {len(created)} jobs, {len(facts.tuning_rows)} exist")
    for id in billed.keys() - created.keys():
        check.faults.append(f"{id} is billed, but is no client's job")
    for id, row in facts.tuning_rows.items():
        if row.claimed:
            check.faults.append(f"{id} is {row.status} and still claimed")
    went_on = sum(one.went_on for one in facts.tunings if one.status == "succeeded")
    if any(strike.kind == LATER for strike in facts.planned) and not went_on:
        check.faults.append("no job went on from a saved state and succeeded: nothing is proved")
    statuses = Counter(one.status for one in facts.tunings)
    figures = [f"{count} {status}" for status, count in sorted(statuses.items())]
    figures.append(f"{sum(event.entry.counts.prompt_tokens for event in facts.trainings):,} tokens")
    check.figures = ", ".join([*figures, f"went on {went_on} times from a saved state"])
    return check


def _faults(facts: Facts, one: TuningGot, lines: list[Event]) -> Iterator[str]:
    succeeded = one.status == "succeeded"
    if not (succeeded or one.status == "cancelled" or (one.status == "failed" and one.faulty)):
        yield f"{one.id} of {one.tenant} ended as {one.status or 'nothing'} {one.code}".rstrip()
    if len(lines) != succeeded:
        yield f"{one.id} {one.status or 'has not ended'} and has {len(lines)} lines in the ledger"
    row = facts.tuning_rows.get(one.id)
    if row is not None and row.adapters != succeeded:
        yield f"{one.id} {one.status or 'has not ended'} and has {row.adapters} adapters"
    tokens = one.epochs * facts.epoch_tokens
    if succeeded and one.trained_tokens != tokens:
        yield f"{one.id} trained {one.trained_tokens} tokens instead of {tokens}"
    for line in lines:
        if line.entry.counts != Counts(tokens) or line.cost != tokens * facts.training_price:
            yield (
                f"{one.id}: billed {line.entry.counts} for {line.cost}, instead of {tokens} tokens"
            )
