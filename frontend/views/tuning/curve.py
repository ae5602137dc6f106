"""The losses of a job as lines, from the events that report them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenants.models import FineTuningJob

WIDTH, HEIGHT, MARGIN = 600, 120, 4
"""Of the drawing, in units of its `viewBox`."""
RECENT = 20
"""Reports from which the speed is computed."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an event with metrics says. Tokens are those trained until then."""

    at: datetime
    step: int
    steps: int
    loss: float
    valid_loss: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The reports of a job by their steps; its trainer makes a few hundred at most."""

    reports: Sequence[Report]

    @classmethod
    def of(cls, job: FineTuningJob) -> LossCurve:
        found = job.events.filter(data__isnull=False).order_by("created_at", "id")
        rows: Iterable[tuple[datetime, Any]] = found.values_list("created_at", "data")
        by_step: dict[int, Report] = {}
        for at, data in rows:
            by_step[data["step"]] = Report(
                at,
                data["step"],
                data["total_steps"],
                data["train_loss"],
                data.get("full_valid_loss"),
                data["trained_tokens"],
            )
        return cls([by_step[step] for step in sorted(by_step)])

    @property
    def last(self) -> Report | None:
        return self.reports[-1] if self.reports else None

    @property
    def share(self) -> float | None:
        """Of the steps, how many are done."""
        return self.last.step / self.last.steps if self.last else None

    @property
    def highest(self) -> float:
        """The loss at the top of the drawing, whose bottom is 0."""
        losses = [report.loss for report in self.reports]
        return max([*losses, *(loss for _, loss in self._valid)], default=0.0)

    @property
    def training(self) -> str:
        """The SVG path of the training loss."""
        return self._path([(report.step, report.loss) for report in self.reports])

    @property
    def validation(self) -> str:
        """The SVG path of the loss on the validation file; empty if there is none."""
        return self._path(self._valid)

    @property
    def tokens_per_s(self) -> float | None:
        """The speed of late; None if there are too few reports."""
        late = self.reports[-RECENT:]
        if len(late) < 2 or late[-1].at <= late[0].at:
            return None
        return (late[-1].tokens - late[0].tokens) / (late[-1].at - late[0].at).total_seconds()

    @property
    def _valid(self) -> list[tuple[int, float]]:
        with_loss = [(report.step, report.valid_loss) for report in self.reports]
        return [(step, loss) for step, loss in with_loss if loss is not None]

    def _path(self, points: Sequence[tuple[int, float]]) -> str:
        if len(points) < 2 or self.last is None:
            return ""
        across, down = WIDTH / self.last.steps, (HEIGHT - 2 * MARGIN) / (self.highest or 1)
        drawn = [
            f"{step * across:.1f} {HEIGHT - MARGIN - loss * down:.1f}" for step, loss in points
        ]
        return f"M{'L'.join(drawn)}"
