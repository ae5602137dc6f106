"""The state of rollouts, for metrics. Plain SQL, without the models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class UnderWay:
    """An open rollout. `report` is the result of its last check (`pool_checks`)."""

    base_model: str
    paused: bool
    weight: int
    overdue_s: float
    """How much longer than planned it has had its weight; 0 if it is in time."""
    report: dict[str, Any]

    def tenants(self) -> Iterator[tuple[str, int]]:
        """The number of tenants by place. Those that stay `behind` are on a present revision."""
        tenants, moved = self.report.get("tenants", 0), self.report.get("moved", 0)
        behind = self.report.get("behind_count", 0)
        yield "new", moved
        yield "behind", behind
        yield "present", max(0, tenants - moved - behind)

    def guarded(self, figure: str) -> Iterator[tuple[str, float]]:
        """The value of a figure by side, `present` or `new`, for each side that has it."""
        for side, key in (("present", "old"), ("new", "new")):
            value = self.report.get(key, {}).get(figure)
            if value is not None:
                yield side, value


OPEN = """
SELECT base.name AS base_model, rollout.state = 'paused' AS paused, weight, report,
       greatest(0, extract(epoch FROM now() - stepped_at) - step_s)::float8 AS overdue_s
FROM tenants_rollout AS rollout
JOIN tenants_basemodel AS base ON base.id = base_model_id
WHERE rollout.state IN ('running', 'paused')
ORDER BY base.name
"""


@dataclass(frozen=True, slots=True)
class EndedCounts:
    """How many rollouts of a base model ended in each way."""

    base_model: str
    finished: int
    aborted: int
    rolled_back: int

    def outcomes(self) -> Iterator[tuple[str, int]]:
        """Each way of ending with its number."""
        for outcome in ("finished", "aborted", "rolled_back"):
            yield outcome, getattr(self, outcome)


ENDED = """
SELECT base.name AS base_model,
       count(*) FILTER (WHERE rollout.state = 'finished') AS finished,
       count(*) FILTER (WHERE rollout.state = 'aborted') AS aborted,
       count(*) FILTER (WHERE rollout.state = 'rolled back') AS rolled_back
FROM tenants_basemodel AS base
LEFT JOIN tenants_rollout AS rollout ON rollout.base_model_id = base.id
GROUP BY base.name
ORDER BY base.name
"""
"""Every base model has a row, with 0 for what never happened."""
