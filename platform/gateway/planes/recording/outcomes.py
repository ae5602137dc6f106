"""Writes the outcomes of this gateway's requests to PostgreSQL every few seconds, for people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from inference.errors import Unavailable
from inference.gateway.measuring.outcomes import Outcomes, Refusal
from tenants.billing.lines import REFUSED
from tenants.directory.outcomes import BATCH, batches
from tenants.directory.registry import DirectoryRegistry

log = structlog.get_logger(__name__)

WRITE_S = 2.0
"""A killed process loses at most the outcomes of this time, and those of one failed write."""

RefusalCallback = Callable[[Sequence[Refusal]], object]


async def keep(
    outcomes: Outcomes, registry: DirectoryRegistry, on_refusals: RefusalCallback
) -> None:
    """Periodically write what was counted since the last time, until cancelled. `on_refusals` is
    called with each batch of refused requests after it was written."""
    while True:
        await asyncio.sleep(WRITE_S)
        await write(outcomes, registry, on_refusals)


async def write(
    outcomes: Outcomes, registry: DirectoryRegistry, on_refusals: RefusalCallback
) -> None:
    """Write what was counted since the last time; what fails is kept for the next time."""
    taken = outcomes.take()
    sums = list(batches(taken.tallies))
    refusals = [taken.refusals[at : at + BATCH] for at in range(0, len(taken.refusals), BATCH)]
    observed = taken.observations
    observations = [observed[at : at + BATCH] for at in range(0, len(observed), BATCH)]
    try:
        while observations and await _written(registry.keep_observations(observations[0])):
            observations.pop(0)
        while refusals and await _written(registry.keep_refusals(refusals[0])):
            on_refusals(refusals.pop(0))
        while not refusals and sums and await _written(registry.add_outcomes(sums[0])):
            sums.pop(0)
    finally:
        outcomes.give_back(
            (one for batch in sums for one in batch),
            (one for batch in refusals for one in batch),
            (one for batch in observations for one in batch),
        )


async def _written(writing: Awaitable[None]) -> bool:
    """Whether the write is done; one that the database permanently refuses counts as done."""
    try:
        await writing
    except Unavailable as error:
        if isinstance(error.__cause__, REFUSED):
            log.error("outcomes_refused", error=str(error.__cause__))
            return True
        log.warning("outcomes_not_written", error=str(error))
        return False
    return True
