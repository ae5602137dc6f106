"""How many tokens tenants may train in any 24 hours, and what is left of that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from tenants.limits import ceilings
from tenants.limits.kinds import TENANT_KINDS, TRAINED
from tenants.models.limits import LimitSet

WINDOW = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TrainedJob:
    """A job's tokens of the last 24 hours; until it has ended, also those that it has yet to train.
    They leave the window 24 hours after its end at the latest."""

    tokens: int
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class TrainingRoom:
    """A tenant's limit, and what counts towards it now."""

    limit: int
    jobs: Sequence[TrainedJob]

    @property
    def trained(self) -> int:
        return sum(job.tokens for job in self.jobs)

    def has(self, tokens: int) -> bool:
        """Whether so many more may be trained."""
        return self.trained + tokens <= self.limit

    def free_at(self, tokens: int) -> datetime | None:
        """When so many more may be trained at the latest; None if jobs must end first, or if the
        limit is less than that."""
        left = self.trained
        ended = [(job.finished_at, job.tokens) for job in self.jobs if job.finished_at is not None]
        for finished_at, job_tokens in sorted(ended):
            left -= job_tokens
            if left + tokens <= self.limit:
                return finished_at + WINDOW
        return None


def limits_of(tenants: Collection[int]) -> Mapping[int, int]:
    """The limit of each tenant that has one."""
    here = Q(tenant__in=tenants) | Q(tenant=None)
    sets: dict[int | None, dict[str, Any]] = defaultdict(dict)
    for row in LimitSet.objects.filter(here, key=None, adapter=None):
        sets[row.tenant_id][row.author if row.tenant_id else ceilings.DEFAULT] = row.figures
    in_force = {
        id: ceilings.in_force(sets[None] | sets[id], TENANT_KINDS)[TRAINED.name] for id in tenants
    }
    return {id: limit for id, limit in in_force.items() if limit is not None}
