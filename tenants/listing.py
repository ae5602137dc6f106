"""The list of requests, newest first: those in the ledger, and those that were refused.

A request that an engine ended with an error is in both tables, because the ledger lacks the error's
message. Both tables are read by their indexes in the order in which requests started, and merged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Exists, OuterRef, Q, QuerySet

from inference.errors import BY_CODE, ClientDisconnected, InferenceError
from tenants.models import RefusedRequest, RequestScore, RequestTag, Tenant, UsageEvent
from tenants.models.annotations import ScoreValue
from tenants.models.usage.ledger import UsageEventQuerySet
from tenants.models.usage.listed import REQUEST_ID, Mark, Outcome
from tenants.models.usage.outcomes import RefusedRequestQuerySet
from tenants.permissions import Caller, Permission

HORIZON = 10_000
"""At most how many requests of each kind one page scans: 5 to 30 ms in PostgreSQL if none match."""
WRONG = "wrong"
"""Filter value for two outcomes: failed, and refused."""
OUTCOMES = [*Outcome.choices, (WRONG, "Failed or refused")]
OF_REFUSED = ("", WRONG, Outcome.FAILED, Outcome.REFUSED)
"""The outcomes that rows of refused requests may have; empty: no filter."""
MARK = re.compile(r"(\d{1,17})-([A-Za-z0-9_-]{0,64})")
"""A position in the list: microseconds since 1970, and a request id."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Listed = UsageEvent | RefusedRequest
R = TypeVar("R", UsageEventQuerySet, RefusedRequestQuerySet)
Window = tuple[datetime, datetime | None]
"""Start, and end (exclusive; None: now)."""


@dataclass(frozen=True, slots=True)
class Words:
    """A search: `text` is the beginning of an id, part of a model's name or of an error, or an
    engine; `key_ids` are the keys that match it, looked up before."""

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
        by_error = Q(code=self.text) | Q(limit_kind=self.text) | Q(message__icontains=self.text)
        return self._common | by_error


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """A score of this name, by whoever; with this value, or at least and at most so much, if these
    are given. `value` is as `ScoreValue.typed` reads it."""

    name: str
    least: float | None = None
    most: float | None = None
    value: str = ""

    @property
    def scores(self) -> QuerySet[RequestScore]:
        """These scores, of all tenants."""
        found = RequestScore.objects.filter(name=self.name)
        if self.value:
            typed = ScoreValue.typed(self.value)
            same = Q(kind=typed.kind, number=typed.number, category=typed.category)
            found = found.filter(same | Q(category=self.value))  # one may look like a number
        if self.least is not None:
            found = found.filter(number__gte=self.least)
        if self.most is not None:
            found = found.filter(number__lte=self.most)
        return found


def _of_row(rows: QuerySet[Any], **which: Any) -> QuerySet[Any]:
    """Those of these tags or scores that are the outer row's."""
    return rows.filter(tenant=OuterRef("tenant"), request_id=OuterRef("id"), **which)


def _tagged(rows: R) -> R:
    """The rows with the names of their tags, for `ListEntry.tags`."""
    names = _of_row(RequestTag.objects.order_by("name")).values("name")
    return rows.annotate(tag_names=ArraySubquery(names))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which requests to show. `member_id` is a user who made the key, `reason` a finish reason or
    an error's code, `ttft_s` and `total_s` are minima, in seconds. A request has all of `tags`."""

    model: str = ""
    key_id: int | None = None
    outcome: str = ""
    member_id: int | None = None
    engine: str = ""
    reason: str = ""
    ttft_s: float | None = None
    total_s: float | None = None
    words: Words | None = None
    tags: tuple[str, ...] = ()
    score: ScoreRange | None = None

    @property
    def annotated(self) -> Q:
        """Requests with the tags and the score."""
        found = Q(*(Exists(_of_row(RequestTag.objects.all(), name=tag)) for tag in self.tags))
        return found & Q(Exists(_of_row(self.score.scores))) if self.score else found

    def _shared(self, rows: R) -> R:
        """The part of the filter that is the same for both kinds."""
        if self.tags or self.score is not None:
            rows = rows.filter(self.annotated)
        if self.model:
            rows = rows.of_model(self.model)
        if self.key_id is not None:
            rows = rows.filter(key=self.key_id)
        if self.member_id is not None:
            rows = rows.filter(key__created_by=self.member_id)
        return rows

    @property
    def narrows(self) -> bool:
        """Whether it excludes rows that no index excludes."""
        return self != Filter(outcome=WRONG if self.outcome == WRONG else "")

    def indexed(self, events: UsageEventQuerySet) -> UsageEventQuerySet:
        """The part of the filter that an index answers: what went wrong has its own index."""
        return events.wrong() if self.outcome and self.outcome in OF_REFUSED else events

    def events(self, events: UsageEventQuerySet) -> UsageEventQuerySet:
        """The events that match."""
        events = self._shared(events)
        if self.words is not None:
            events = events.filter(self.words.of_events)
        if self.engine:
            events = events.filter(engine_id=self.engine)
        if self.reason:
            events = events.filter(finish_reason=self.reason)
        if self.outcome == WRONG:
            events = events.wrong()
        elif self.outcome:
            events = events.that(Outcome(self.outcome))
        if self.ttft_s:
            events = events.filter(ttft_s__gte=self.ttft_s)
        return events.filter(total_s__gte=self.total_s) if self.total_s else events

    def refused(self, refused: RefusedRequestQuerySet) -> RefusedRequestQuerySet:
        """Refused requests that match; none if an engine or a time is filtered, because they have
        neither."""
        if self.engine or self.ttft_s or self.total_s or self.outcome not in OF_REFUSED:
            return refused.none()
        refused = self._shared(refused)
        if self.words is not None:
            refused = refused.filter(self.words.of_refused)
        if self.reason:
            refused = refused.filter(code=self.reason)
        if self.outcome in (Outcome.FAILED, Outcome.REFUSED):
            refused = refused.that(Outcome(self.outcome))
        return refused


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One request of the list, and its error if there is a row for that."""

    event: Listed
    error: RefusedRequest | None

    @property
    def tags(self) -> Sequence[str]:
        """The names of its tags."""
        return getattr(self.event, "tag_names", ())

    @property
    def billed(self) -> UsageEvent | None:
        """Its event in the ledger, or None."""
        return self.event if isinstance(self.event, UsageEvent) else None

    @property
    def outcome(self) -> Outcome:
        return self.billed.outcome if self.billed else Outcome(self.event.outcome)

    @property
    def status(self) -> int:
        """The HTTP status that its client got; of a cancelled request, what it would have got."""
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
        """The error's message, or its default one if none was stored; empty without an error."""
        if self.error is not None:
            return self.error.message
        if self.outcome not in (Outcome.FAILED, Outcome.REFUSED):
            return ""
        return (BY_CODE.get(self.code, InferenceError).__doc__ or "").strip()


@dataclass(frozen=True, slots=True)
class FoundRows:
    """One page of the list."""

    events: Sequence[Listed] = ()
    errors: Mapping[str, RefusedRequest] = field(default_factory=dict)
    """The errors of these requests, as far as they are stored, by request id."""
    next: str = ""
    """The mark after which the next page begins; empty on the last page."""
    searched_to: datetime | None = None
    """The end of the scanned range, if the scan stopped before the end of the list."""

    def entries(self) -> list[ListEntry]:
        return [ListEntry(event, self.errors.get(event.id)) for event in self.events]


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
        """The requests that the caller may see."""
        whole = cls.of_tenant(caller.tenant)
        if caller.may(Permission.READ_USAGE):
            return whole
        return cls(caller.events(), whole.events, caller.refused(), whole.refused)

    @classmethod
    def to_annotate(cls, caller: Caller) -> Where:
        """The requests that the caller may tag and score: those that a person sees, all of a key's
        tenant."""
        return cls.of(caller) if caller.key is None else cls.of_tenant(caller.tenant)

    @classmethod
    def of_tenant(cls, tenant: Tenant | None) -> Where:
        """The requests of one tenant, or (None) those of all but internal ones, each with its
        tenant."""
        if tenant is not None:
            events, refused = tenant.usage.all(), tenant.refused.all()
            return cls(events, events, refused, refused)
        internal = Tenant.objects.internal()
        events = UsageEvent.objects.select_related("tenant")
        refused = RefusedRequest.objects.select_related("tenant")
        return cls(
            events.exclude(tenant__in=internal),
            events,
            refused.exclude(tenant__in=internal),
            refused,
        )

    def named(self, id: str) -> FoundRows:
        """The request with this id, in any form of the id."""
        return merged(_tagged(self.events.named(id)), _tagged(self.refused.named(id)))

    def marked(self, marks: Sequence[Mark], filter: Filter) -> FoundRows:
        """The requests at these marks that match."""
        return merged(
            _tagged(filter.events(self.events.marked(marks))),
            _tagged(filter.refused(self.refused.marked(marks))),
        )

    def page(
        self, filter: Filter, window: Window, before: Mark | None, *, size: int, most: int = HORIZON
    ) -> FoundRows:
        """The `size` newest before the mark that match, scanning at most `most` rows per kind."""
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
            found = _tagged(some.between(*window).newest(before))
            rows.append((found.filter(started_at__gte=horizon) if horizon else found)[: size + 1])
        page = merged(*rows)
        if len(page.events) > size:
            return FoundRows(page.events[:size], page.errors, text_of(page.events[size - 1].mark))
        return FoundRows(
            page.events, page.errors, text_of(Mark(horizon)) if horizon else "", horizon
        )


def merged(events: Iterable[UsageEvent], refused: Iterable[RefusedRequest]) -> FoundRows:
    """Both in one list, newest first; a request that is in both appears once."""
    errors = {one.id: one for one in refused}
    found: dict[str, Listed] = {**errors, **{event.id: event for event in events}}
    return FoundRows(sorted(found.values(), key=lambda one: one.mark, reverse=True), errors)


def mark_of(text: str) -> Mark | None:
    """Parse a mark from a URL; None if it is invalid."""
    form = MARK.fullmatch(text)
    return Mark(EPOCH + timedelta(microseconds=int(form[1])), form[2]) if form else None


def text_of(mark: Mark) -> str:
    """A mark as it appears in URLs."""
    return f"{(mark.started_at - EPOCH) // timedelta(microseconds=1)}-{mark.id}"
