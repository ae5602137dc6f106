"""Counts of fine-tuning jobs by state, for metrics. Plain SQL, without the models."""

from __future__ import annotations

from dataclasses import dataclass

from tenants.tuning_states import ENDED, TuningStatus

UNFINISHED = [status.value for status in TuningStatus if status not in ENDED]


@dataclass(frozen=True, slots=True)
class TuningStanding:
    """Fine-tuning jobs in one state: their number, and the seconds since the oldest was created."""

    status: str
    jobs: int
    oldest_s: float


STANDING = """
SELECT status.name AS status, count(id) AS jobs,
       coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_s
FROM unnest(%s::text[]) AS status(name)
LEFT JOIN tenants_finetuningjob AS job ON job.status = status.name AND finished_at IS NULL
GROUP BY status.name
ORDER BY status.name
"""
"""Every state has a row."""
