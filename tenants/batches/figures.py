"""Counts of batches and background responses by state, for metrics. Plain SQL, without the
models."""

from __future__ import annotations

from dataclasses import dataclass

from inference.operations.responses.framing import LIVE
from tenants.batch_states import ENDED, Status

UNFINISHED = [status.value for status in Status if status not in ENDED]


@dataclass(frozen=True, slots=True)
class BatchStanding:
    """Batches in one state: their number, how many of their lines have no answer, and the seconds
    since the oldest was created."""

    status: str
    batches: int
    lines: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class InBackground:
    """Background responses in one state: their number, and the seconds since the oldest was
    created."""

    status: str
    responses: int
    oldest_s: float


RUNNING = [*LIVE]
IN_BACKGROUND = """
SELECT status.name AS status, count(id) AS responses,
       coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_s
FROM unnest(%s::text[]) AS status(name)
LEFT JOIN tenants_backgroundresponse one
    ON one.status = status.name AND one.status IN ('queued', 'in_progress')
GROUP BY status.name
ORDER BY status.name
"""
STANDING = """
SELECT status.name AS status, count(id) AS batches,
       coalesce(sum(total - completed - failed), 0)::bigint AS lines,
       coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_s
FROM unnest(%s::text[]) AS status(name)
LEFT JOIN tenants_batch ON tenants_batch.status = status.name AND ended_at IS NULL
GROUP BY status.name
ORDER BY status.name
"""
"""Every state has a row."""
