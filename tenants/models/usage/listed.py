"""What requests in the ledger and those that were refused have in common (`tenants.listing`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, Self, TypeVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

M = TypeVar("M", bound=models.Model, covariant=True)

REQUEST_ID = re.compile(r"(?:req_|chatcmpl-|cmpl-)?([A-Za-z0-9_-]{1,64})")
"""As `x-request-id` and the bodies of answers show it, or bare."""
ROUNDING = timedelta(milliseconds=1)
UNRECORDED = timedelta(minutes=15)
"""A request this young may still run, or wait for its entry in the ledger."""


def may_be_unrecorded(shown_id: str) -> bool:
    """Whether an id of which nothing is known may be a request's that is not recorded yet.

    It begins with a time (`inference.gateway.fleet.hub.new_id`) that is `UNRECORDED` ago at most.
    """
    form = REQUEST_ID.fullmatch(shown_id)
    if form is None or not re.fullmatch("[0-9a-f]{32}", form[1]):
        return False
    age_s = timezone.now().timestamp() - int(form[1][:12], 16) / 1_000
    return abs(age_s) <= UNRECORDED.total_seconds()


class Outcome(models.TextChoices):
    """What became of a request."""

    ANSWERED = "answered"
    CUT = "cut", "Cut by length"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"
    """At fault itself, over a limit, or no engine there: not in the ledger."""


REASONS: Mapping[Outcome, Collection[str]] = {
    Outcome.ANSWERED: ("stop", "tool_calls", "function_call"),
    Outcome.CUT: ("length",),
    Outcome.CANCELLED: ("cancelled", "api_key_revoked"),
}
"""The finish reasons of each; all others are of requests that failed."""
OUTCOME_OF = {reason: outcome for outcome, reasons in REASONS.items() for reason in reasons}
"""By finish reason."""


class Mark(NamedTuple):
    """A place in the list of events, newest first: that of the event with this start and id."""

    started_at: datetime
    id: str = ""
    """Empty: after all that started then."""


class RequestQuerySet(models.QuerySet[M]):
    """Requests of one tenant (or, for an operator, of all) are read newest first, from an index.

    That costs what it returns. What the index knows nothing of costs the events that are passed
    over as well, so whoever filters by it looks no further than a `horizon`.
    """

    def named(self, shown_id: str) -> Self:
        """The one with this id, in any of its forms; none if it is no id at all."""
        form = REQUEST_ID.fullmatch(shown_id)
        return self.filter(id=form[1]) if form else self.none()

    def marked(self, marks: Collection[Mark]) -> Self:
        """Those at these marks, whose times may be a millisecond off."""
        starts = [mark.started_at for mark in marks]
        if not starts:
            return self.none()
        # The times say in which partitions they are.
        between = (min(starts) - ROUNDING, max(starts) + ROUNDING)
        return self.filter(id__in=[mark.id for mark in marks], started_at__range=between)

    def between(self, start: datetime, end: datetime | None) -> Self:
        """Those that started at `start` or later, and before `end`."""
        since = self.filter(started_at__gte=start)
        return since if end is None else since.filter(started_at__lt=end)

    def newest(self, after: Mark | None = None) -> Self:
        """In the order of the list: all of it, or what comes after the mark."""
        ordered = self.order_by("-started_at", "-id")
        if after is None:
            return ordered
        # The first condition alone is what the index can use.
        older = Q(started_at__lt=after.started_at) | Q(id__lt=after.id)
        return ordered.filter(older, started_at__lte=after.started_at)

    def horizon(self, events: int) -> datetime | None:
        """When the last but this many of them started; None if there are no more than that."""
        starts = self.order_by("-started_at").values_list("started_at", flat=True)
        return starts[events : events + 1].first()

    def of_model(self, name: str) -> Self:
        """Those of an adapter in any version, or with exactly this model name."""
        return self.filter(Q(adapter=name) | Q(model=name) | Q(adapter="", base_model=name))
