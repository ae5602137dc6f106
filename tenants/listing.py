"""The list of requests, newest first: those in the ledger, and those that were refused.

Some are both: engines had them, and ended them with an error, whose message the ledger lacks. Both
kinds are read from their indexes in the order of their starts, and merged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q

from inference.errors import BY_CODE, ClientDisconnected, InferenceError
from tenants.models import RefusedRequest, Tenant, UsageEvent
from tenants.models.usage.ledger import UsageEventQuerySet
from tenants.models.usage.listed import REQUEST_ID, Mark, Outcome
from tenants.models.usage.outcomes import RefusedRequestQuerySet
from tenants.permissions import Caller, Permission

HORIZON = 10_000
"""Most requests of each kind that one page scans: 5 to 30 ms in PostgreSQL if none matches."""
WRONG = "wrong"
"""To filter by two outcomes: failed, and refused."""
OUTCOMES = [*Outcome.choices, (WRONG, "Failed or refused")]
OF_REFUSED = ("", WRONG, Outcome.FAILED, Outcome.REFUSED)
"""Those that refused requests may have."""
MARK = re.compile(r"(\d{1,17})-([A-Za-z0-9_-]{0,64})")
"""A position in the list: microseconds since 1970, and a request id."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Listed = UsageEvent | RefusedRequest
Window = tuple[datetime, datetime | None]
"""Start, and end (exclusive; None: now)."""


@dataclass(frozen=True, slots=True)
class Words:
    """What somebody searches for: the beginning of an id, part of a model's name or of an error,
    an engine, or keys, which were looked up before."""

    text: str
    key_ids: Collection[int] = ()

    @property
    def _common(self) -> Q:
        found = Q(model__icontains=self.text) | Q(adapter__icontains=self.text)
        if form := REQUEST_ID.fullmatch(self.text):
            found |= Q(id__startswith=form[1])
        return found | Q(key__in=self.key_ids) if self.key_ids else found

    @property
    def of_events(self) -> Q:
        return self._common | Q(finish_reason=self.text) | Q(engine_id=self.text)

    @property
    def of_refused(self) -> Q:
        said = Q(code=self.text) | Q(limit_kind=self.text) | Q(message__icontains=self.text)
        return self._common | said


@dataclass(frozen=True, slots=True)
class Filter:
    """What to leave out; of times in seconds those that are shorter."""

    model: str = ""
    key_id: int | None = None
    outcome: str = ""
    ttft_s: float | None = None
    total_s: float | None = None
    words: Words | None = None

    @property
    def narrows(self) -> bool:
        """Whether it leaves anything out that no index does."""
        return self != Filter(outcome=WRONG if self.outcome == WRONG else "")

    def indexed(self, events: UsageEventQuerySet) -> UsageEventQuerySet:
        """As far as an index leaves others out: failed requests have one of their own."""
        failed = self.outcome in (WRONG, Outcome.FAILED)
        return events.that(Outcome.FAILED) if failed else events

    def events(self, events: UsageEventQuerySet) -> UsageEventQuerySet:
        """Those in the ledger that match."""
        if self.words is not None:
            events = events.filter(self.words.of_events)
        if self.model:
            events = events.of_model(self.model)
        if self.key_id is not None:
            events = events.filter(key=self.key_id)
        if self.outcome:
            events = events.that(Outcome.FAILED if self.outcome == WRONG else Outcome(self.outcome))
        if self.ttft_s:
            events = events.filter(ttft_s__gte=self.ttft_s)
        return events.filter(total_s__gte=self.total_s) if self.total_s else events

    def refused(self, refused: RefusedRequestQuerySet) -> RefusedRequestQuerySet:
        """Refused requests that match; nothing is known of their times."""
        if self.ttft_s or self.total_s or self.outcome not in OF_REFUSED:
            return refused.none()
        if self.words is not None:
            refused = refused.filter(self.words.of_refused)
        if self.model:
            refused = refused.of_model(self.model)
        if self.key_id is not None:
            refused = refused.filter(key=self.key_id)
        if self.outcome in (Outcome.FAILED, Outcome.REFUSED):
            refused = refused.that(Outcome(self.outcome))
        return refused


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of the list, with its error, if it ended in one that is known."""

    event: Listed
    error: RefusedRequest | None

    @property
    def billed(self) -> UsageEvent | None:
        """It in the ledger, if it is there."""
        return self.event if isinstance(self.event, UsageEvent) else None

    @property
    def outcome(self) -> Outcome:
        return self.billed.outcome if self.billed else Outcome(self.event.outcome)

    @property
    def status(self) -> int:
        """Of HTTP, as its client got it; of one that was cut off, as it would have."""
        if self.error is not None:
            return self.error.status
        if self.outcome in (Outcome.ANSWERED, Outcome.CUT):
            return 200
        if self.outcome == Outcome.CANCELLED:
            return ClientDisconnected.http_status
        return BY_CODE.get(self.code, InferenceError).http_status

    @property
    def code(self) -> str:
        """The error's code, or the finish reason."""
        if self.error is not None:
            return self.error.code
        return self.billed.finish_reason if self.billed else ""

    @property
    def message(self) -> str:
        """What the error says, as far as that is known; empty where there is none."""
        if self.error is not None:
            return self.error.message
        if self.outcome != Outcome.FAILED:
            return ""
        return (BY_CODE.get(self.code, InferenceError).__doc__ or "").strip()


@dataclass(frozen=True, slots=True)
class Found:
    """One page of the list."""

    events: Sequence[Listed] = ()
    errors: Mapping[str, RefusedRequest] = field(default_factory=dict)
    """Those of them that ended in an error which is known, by id."""
    next: str = ""
    """The mark after which the next page begins; empty at the end."""
    looked_to: datetime | None = None
    """The end of the scanned range, if the scan stopped before the end of the list."""

    def entries(self) -> list[Entry]:
        return [Entry(event, self.errors.get(event.id)) for event in self.events]


@dataclass(frozen=True, slots=True)
class Where:
    """The requests of a list; `all_events` and `all_refused` are the supersets that the index can
    select by itself."""

    events: UsageEventQuerySet
    all_events: UsageEventQuerySet
    refused: RefusedRequestQuerySet
    all_refused: RefusedRequestQuerySet

    @classmethod
    def of(cls, caller: Caller) -> Where:
        """Those that the caller may see."""
        whole = cls.of_tenant(caller.tenant)
        if caller.may(Permission.READ_USAGE):
            return whole
        return cls(caller.events(), whole.events, caller.refused(), whole.refused)

    @classmethod
    def of_tenant(cls, tenant: Tenant | None) -> Where:
        """Those of one tenant, or of all, each with its tenant."""
        if tenant is not None:
            events, refused = tenant.usage.all(), tenant.refused.all()
        else:
            events = UsageEvent.objects.select_related("tenant")
            refused = RefusedRequest.objects.select_related("tenant")
        return cls(events, events, refused, refused)

    def named(self, id: str) -> Found:
        """The one with this id, in any of its forms."""
        return merged(self.events.named(id), self.refused.named(id))

    def marked(self, marks: Sequence[Mark], filter: Filter) -> Found:
        """Those at these marks that match."""
        return merged(
            filter.events(self.events.marked(marks)), filter.refused(self.refused.marked(marks))
        )

    def page(
        self, filter: Filter, window: Window, before: Mark | None, *, size: int, most: int = HORIZON
    ) -> Found:
        """So many that match, before a mark, scanning at most `most` rows of each kind."""
        kinds: list[tuple[Any, Any]] = [
            (filter.events(self.events), filter.indexed(self.all_events)),
            (filter.refused(self.refused), self.all_refused),
        ]
        horizon = None
        if filter.narrows or self.events is not self.all_events:
            ends = [
                everything.between(*window).newest(before).horizon(most)
                for some, everything in kinds
                if not some.query.is_empty()
            ]
            horizon = max((end for end in ends if end is not None), default=None)
        rows: list[Any] = []
        for some, _ in kinds:
            found = some.between(*window).newest(before)
            rows.append((found.filter(started_at__gte=horizon) if horizon else found)[: size + 1])
        page = merged(*rows)
        if len(page.events) > size:
            return Found(page.events[:size], page.errors, text_of(page.events[size - 1].mark))
        return Found(page.events, page.errors, text_of(Mark(horizon)) if horizon else "", horizon)


def merged(events: Iterable[UsageEvent], refused: Iterable[RefusedRequest]) -> Found:
    """Both in one list, newest first; what is in both is there once."""
    errors = {one.id: one for one in refused}
    found: dict[str, Listed] = {**errors, **{event.id: event for event in events}}
    return Found(sorted(found.values(), key=lambda one: one.mark, reverse=True), errors)


def mark_of(text: str) -> Mark | None:
    """Parse a mark from a URL; None if it is invalid."""
    form = MARK.fullmatch(text)
    return Mark(EPOCH + timedelta(microseconds=int(form[1])), form[2]) if form else None


def text_of(mark: Mark) -> str:
    """A mark as it appears in URLs."""
    return f"{(mark.started_at - EPOCH) // timedelta(microseconds=1)}-{mark.id}"
