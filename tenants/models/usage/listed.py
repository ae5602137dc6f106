"""What requests in the ledger and refused requests have in common (`tenants.listing`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Self, TypeVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from inference.gateway.measuring.measures import REFUSED_BY_ENGINES

M = TypeVar("M", bound=models.Model, covariant=True)

REQUEST_ID = re.compile(r"(?:req_|chatcmpl-|cmpl-)?([A-Za-z0-9_-]{1,64})")
"""A request id as in `x-request-id` or in the body of an answer, or without a prefix."""
ROUNDING = timedelta(milliseconds=1)
UNRECORDED = timedelta(minutes=15)
"""A request this young may still run, or wait for its entry in the ledger."""


def may_be_unrecorded(shown_id: str) -> bool:
    """Whether an unknown id may be that of a request that is not recorded yet.

    An id begins with a time (`inference.ids.new_id`), which must be at most `UNRECORDED` ago.
    """
    form = REQUEST_ID.fullmatch(shown_id)
    if form is None or not re.fullmatch("[0-9a-f]{32}", form[1]):
        return False
    age_s = timezone.now().timestamp() - int(form[1][:12], 16) / 1_000
    return abs(age_s) <= UNRECORDED.total_seconds()


class Outcome(models.TextChoices):
    """How a request ended."""

    ANSWERED = "answered"
    CUT = "cut", "Cut by length"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"
    """Invalid, over a limit, or no engine was available: in the ledger only if an engine had it."""


REASONS: Mapping[Outcome, Collection[str]] = {
    Outcome.ANSWERED: ("stop", "tool_calls", "function_call"),
    Outcome.CUT: ("length",),
    Outcome.CANCELLED: ("cancelled",),
    Outcome.REFUSED: REFUSED_BY_ENGINES,
}
"""The finish reasons of each outcome; a request with any other has failed. Gateways count by the
same rule (`measures.outcome_of`)."""
OUTCOME_OF = {reason: outcome for outcome, reasons in REASONS.items() for reason in reasons}
"""The outcome by finish reason."""


class Mark(NamedTuple):
    """A position in the list of events, newest first: that of the event with this start and id."""

    started_at: datetime
    id: str = ""
    """Empty: after all events with this start."""


class RequestQuerySet(models.QuerySet[M]):
    """Requests of one tenant (or, for an operator, of all), read newest first from an index.

    The cost is proportional to the rows returned. A filter that the index does not cover also costs
    the rows that it skips, so queries with such a filter stop at a `horizon`.
    """

    def named(self, shown_id: str) -> Self:
        """The request with this id, in any form; none if it is not a valid id."""
        form = REQUEST_ID.fullmatch(shown_id)
        return self.filter(id=form[1]) if form else self.none()

    def marked(self, marks: Collection[Mark]) -> Self:
        """The requests at these marks, whose times may be a millisecond off."""
        starts = [mark.started_at for mark in marks]
        if not starts:
            return self.none()
        # The times select the partitions.
        between = (min(starts) - ROUNDING, max(starts) + ROUNDING)
        return self.filter(id__in=[mark.id for mark in marks], started_at__range=between)

    def between(self, start: datetime, end: datetime | None) -> Self:
        """The requests that started at `start` or later, and before `end`."""
        since = self.filter(started_at__gte=start)
        return since if end is None else since.filter(started_at__lt=end)

    def newest(self, after: Mark | None = None) -> Self:
        """The requests in the order of the list: all of them, or those after the mark."""
        ordered = self.order_by("-started_at", "-id")
        if after is None:
            return ordered
        # Only the condition on `started_at__lte` can use the index.
        older = Q(started_at__lt=after.started_at) | Q(id__lt=after.id)
        return ordered.filter(older, started_at__lte=after.started_at)

    def horizon(self, events: int) -> datetime | None:
        """The start of the newest request but `events`; None if there are at most that many."""
        starts = self.order_by("-started_at").values_list("started_at", flat=True)
        return starts[events : events + 1].first()

    def of_model(self, name: str) -> Self:
        """The requests of an adapter in any version, or with exactly this model name."""
        return self.filter(Q(adapter=name) | Q(model=name) | Q(adapter="", base_model=name))
