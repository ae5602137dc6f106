"""The ledger: what each request cost, and its sums.

Only `tenants.billing.ledger` writes here: events and their hourly sums in one transaction, in which
database triggers update the monthly sums (`migrations/0012_usage_months.py`) and the sums of
tenants by day and month (`totals`), so that these always equal the total of their hours. Sums are
read from `UsageSum`, which combines hours and months, and from `TenantSum`; events by id, and in
pages for receipts and the list of requests (`listed`).

Costs are whole pico-units (1e-12) of the platform's currency: tokens times a price in micro-units
per million tokens, never rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Case, Exists, F, Func, OuterRef, Q, Sum, Value, When
from django.db.models.functions import Coalesce, TruncMonth
from django.utils import timezone

from inference.errors import ApiKeyRevoked
from tenants.errors import PriceInForce
from tenants.models.accounts import Tenant
from tenants.models.adapters import AdapterVersion
from tenants.models.keys import ApiKey
from tenants.models.usage.listed import OUTCOME_OF, REASONS, Mark, Outcome, RequestQuerySet
from tenants.naming import DAY, HOUR, MONTH
from tenants.utc import day_end, day_start, month_end, month_start

MAX_PRICE = 10**12
"""A million units of the currency per million tokens."""
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
FIGURES = ("requests", *TOKENS, "cost")
"""The columns that are summed."""
BUCKETS = {
    "hour": F("start"),
    # Not TruncDay, whose time zone arithmetic takes a seventh of the time of sums by day.
    "day": Func(
        Value(timedelta(days=1)),
        F("start"),
        Value(datetime(2000, 1, 1, tzinfo=UTC)),
        function="date_bin",
        output_field=models.DateTimeField(),
    ),
    "month": TruncMonth("start", tzinfo=UTC),
}
MADE: Mapping[str, Any] = BUCKETS | {
    "member": Coalesce("key__created_by", 0, output_field=models.BigIntegerField()),
    "everything": Value(0),
}
"""Groups that are computed rather than fields of the sums."""
GROUPS = (*BUCKETS, "tenant", "key", "member", "adapter", "model", "base_model")
"""What usage can be grouped by; a member is the user who made the key."""


COMMON = ["stop", "tool_calls", "function_call", "length", "cancelled", ApiKeyRevoked.code]
WRONG = ~Q(finish_reason__in=COMMON)
"""Requests that an engine refused or failed with are few, so they have indexes of their own. COMMON
is spelled out because an index would have to be made anew for each new error otherwise."""


class UsageEventQuerySet(RequestQuerySet["UsageEvent"]):
    def that(self, outcome: Outcome) -> Self:
        """Events with this outcome. Of the refused ones those are left out whose key was revoked:
        the list has them from `RefusedRequest`, as no index finds them among all others."""
        if outcome == Outcome.FAILED:
            return self.wrong().exclude(finish_reason__in=REASONS[Outcome.REFUSED])
        found = self.wrong() if outcome == Outcome.REFUSED else self
        return found.filter(finish_reason__in=REASONS[outcome])

    def wrong(self) -> Self:
        """Events that have failed or were refused, but for those whose key was revoked."""
        return self.filter(WRONG)


class UsageEvent(models.Model):
    """One request, as recorded in the journal of the engine that ran its highest attempt.

    Written once, and changed only by a higher attempt of the request, which replaces it and leaves
    the previous one as a `SupersededAttempt`.

    The table is partitioned by the month of `started_at`, and its real primary key is (`id`,
    `started_at`), both set by the gateway that accepted the request. Rows of other tables that it
    refers to may have been deleted (no constraint in the database): a bill outlives its subject.

    Times are in seconds, prices in micro-units of the currency per million tokens, `cost` in
    pico-units. `finish_reason` is that of the answer, or `cancelled`, or an error's code. `adapter`
    is the adapter's name without a version, empty for the base model itself.
    """

    id = models.CharField(primary_key=True, max_length=64)
    started_at = models.DateTimeField()
    tenant = models.ForeignKey(
        Tenant, models.DO_NOTHING, related_name="usage", db_index=False, db_constraint=False
    )
    key = models.ForeignKey(
        ApiKey, models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    version = models.ForeignKey(
        AdapterVersion,
        models.DO_NOTHING,
        null=True,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    adapter = models.CharField(max_length=63)
    model = models.CharField(max_length=255)
    base_model = models.CharField(max_length=255)
    engine_id = models.CharField(max_length=255)
    journal = models.CharField(max_length=64)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    prompt_price = models.BigIntegerField()
    cached_prompt_price = models.BigIntegerField()
    output_price = models.BigIntegerField()
    cost = models.BigIntegerField()
    finish_reason = models.CharField(max_length=64)
    queue_s = models.FloatField()
    load_s = models.FloatField()
    ttft_s = models.FloatField(null=True)
    total_s = models.FloatField()
    attempt = models.IntegerField(default=1, db_default=1)
    inherited_tokens = models.BigIntegerField(default=0, db_default=0)
    """The output tokens that lower attempts generated and this one continued from."""
    regenerated_tokens = models.BigIntegerField(default=0, db_default=0)
    """Output tokens that lower attempts generated and the next one did not continue from: not
    billed, and only counted as far as their journals are known."""
    given_s = models.FloatField(default=0.0, db_default=0.0)
    """Seconds until this attempt was sent to its engine; the other times count from there."""
    trace_id = models.CharField(max_length=32, default="", db_default="")
    """The id of its OpenTelemetry trace, if it has one."""

    objects = UsageEventQuerySet.as_manager()

    class Meta:
        ordering = ["-started_at"]
        indexes = [
            models.Index(fields=["tenant", "started_at"], name="usage_by_tenant"),
            # For the newest of all tenants: 0.04 ms instead of 1.5 s; costs 5 % of write speed.
            # A tenant's own list uses it only if most of the newest events are that tenant's.
            models.Index(fields=["started_at"], name="usage_by_start"),
            # When almost none failed, a list of failures would otherwise scan all events.
            models.Index(
                fields=["tenant", "started_at"], name="usage_failed_by_tenant", condition=WRONG
            ),
            models.Index(fields=["started_at"], name="usage_failed_by_start", condition=WRONG),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def outcome(self) -> Outcome:
        return OUTCOME_OF.get(self.finish_reason, Outcome.FAILED)

    @property
    def mark(self) -> Mark:
        return Mark(self.started_at, self.id)

    def attempts(self) -> list[UsageEvent | SupersededAttempt]:
        """All known attempts, in order; the last is the one that is billed."""
        if self.attempt == 1:
            return [self]
        lower = SupersededAttempt.objects.filter(request_id=self.id, started_at=self.started_at)
        return [*lower.order_by("attempt"), self]


class SupersededAttempt(models.Model):
    """An attempt of a request of which a higher attempt is billed. Written once, never changed.

    It counts in no sum but that of its journal: together with the events these are all entries that
    engines' journals ever reported.
    """

    pk = models.CompositePrimaryKey("request_id", "started_at", "attempt")
    request_id = models.CharField(max_length=64)
    """With `started_at`, the id of its event."""
    started_at = models.DateTimeField()
    attempt = models.IntegerField()
    engine_id = models.CharField(max_length=255)
    journal = models.CharField(max_length=64)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    inherited_tokens = models.BigIntegerField()
    finish_reason = models.CharField(max_length=64)
    given_s = models.FloatField(default=0.0, db_default=0.0)
    queue_s = models.FloatField(default=0.0, db_default=0.0)
    load_s = models.FloatField(default=0.0, db_default=0.0)
    ttft_s = models.FloatField(null=True)
    total_s = models.FloatField(default=0.0, db_default=0.0)
    """0: its engine died before it could report it. Times as in `UsageEvent`."""

    def __str__(self) -> str:
        return f"{self.request_id}, attempt {self.attempt}"


class TenantFigures(models.Model):
    """The fields of all sums: tenant, base model and FIGURES. Counts and costs as in the events."""

    # A tenant with usage cannot be deleted; its keys and adapters can.
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+", db_index=False)
    base_model = models.CharField(max_length=255)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    cost = models.DecimalField(max_digits=38, decimal_places=0)

    class Meta:
        abstract = True


class UsageGroup(TenantFigures):
    """Sums of one key, adapter and model name."""

    key = models.ForeignKey(
        ApiKey, models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    adapter = models.CharField(max_length=63)
    model = models.CharField(max_length=255)

    class Meta:
        abstract = True


class UsageRollup(UsageGroup):
    """The sums of one hour of UTC."""

    hour = models.DateTimeField()

    class Meta:
        ordering = ["tenant", "hour"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "hour", "key", "adapter", "model", "base_model"],
                name="rollup_unique",
            )
        ]
        # No index on `hour` alone: sums over all tenants would hardly gain, because PostgreSQL
        # skip-scans the one above; and for a month of one tenant the planner would prefer it and
        # read all tenants' hours, which takes ten times as long.

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.hour:%Y-%m-%d %H}h {self.model}"


class UsageMonth(UsageGroup):
    """The sums of one month of UTC: the total of its hours. Triggers on the hours write it.

    There are no daily sums: many small customers use most models in one hour of a day, so there
    would be nearly as many days as hours.
    """

    month = models.DateTimeField()

    class Meta:
        ordering = ["tenant", "month"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "month", "key", "adapter", "model", "base_model"],
                name="month_unique",
            )
        ]
        indexes = [
            # Finds when an adapter was last used without reading all usage of the tenant.
            models.Index(fields=["tenant", "adapter", "month"], name="month_by_adapter")
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.month:%Y-%m} {self.model}"


class Span(models.TextChoices):
    """The length of the period of a sum."""

    HOUR = HOUR
    DAY = DAY
    MONTH = MONTH


S = TypeVar("S", bound=models.Model, covariant=True)


class SumsQuerySet(models.QuerySet[S]):
    """Sums of several spans, from which those that exactly cover a period are chosen."""

    lengths: ClassVar[Sequence[Span]]
    """The spans in the view, the longest first, hours last."""

    def with_groups(self, names: Collection[str]) -> Self:
        """Annotate the groups of `names` that are not fields."""
        return self.annotate(**{name: MADE[name] for name in names if name in MADE})

    def sums(
        self, by: Collection[str], start: datetime, end: datetime
    ) -> models.QuerySet[S, dict[str, Any]]:
        """One dict per group with usage in the hours that begin at `start` or later, and before
        `end`.

        Ordered by group; its columns are those of `by` (some of GROUPS; days and months are UTC's;
        `tenant`, `key` and `member` are row ids, `member` is 0 if no user made the key) and
        FIGURES. With no groups, one dict with the totals.
        """
        columns = [*by] or ["everything"]
        found = self.filter(_within(start, end, self._lengths(by)))
        groups: models.QuerySet[S, dict[str, Any]]
        groups = found.with_groups(columns).order_by().values(*columns)
        groups = groups.annotate(**{name: Sum(name, default=0) for name in FIGURES})
        return groups.order_by(*by)

    def sums_since(self, starts: Sequence[datetime], end: datetime) -> list[dict[str, int]]:
        """For each of `starts`, the FIGURES of all hours from then until `end` (exclusive)."""
        hours = self.filter(_within(min(starts), end, [Span.HOUR]))
        sums = hours.aggregate(
            **{
                f"{name}_{at}": Sum(name, filter=Q(start__gte=start), default=0)
                for at, start in enumerate(starts)
                for name in FIGURES
            }
        )
        return [{name: int(sums[f"{name}_{at}"]) for name in FIGURES} for at in range(len(starts))]

    def _lengths(self, by: Collection[str]) -> Sequence[Span]:
        """The spans that are fine enough for these groups."""
        if "hour" in by:
            return [Span.HOUR]
        return [one for one in self.lengths if "day" not in by or one != Span.MONTH]


class UsageSumQuerySet(SumsQuerySet["UsageSum"]):
    lengths = (Span.MONTH, Span.HOUR)


FLOORS = {Span.DAY: day_start, Span.MONTH: month_start}
CEILINGS = {Span.DAY: day_end, Span.MONTH: month_end}


def _within(start: datetime, end: datetime, lengths: Sequence[Span]) -> Q:
    """Selects the longest sums that lie in the period, and shorter ones for its two ends."""
    longest, *shorter = lengths
    if not shorter:
        return Q(span=longest, start__gte=start, start__lt=end)
    first = CEILINGS[longest](start - timedelta(microseconds=1))
    last = FLOORS[longest](end)
    if first >= last:
        return _within(start, end, shorter)
    found = Q(span=longest, start__gte=first, start__lt=last)
    if start < first:
        found |= _within(start, first, shorter)
    return found | _within(last, end, shorter) if last < end else found


class UsageSum(UsageGroup):
    """Hourly and monthly sums in one view, distinguished by `span`. Read it by `sums` only, which
    counts each hour once.

    For queries that name the span, PostgreSQL's planner excludes the other table.
    """

    span = models.CharField(max_length=5, choices=Span.choices)
    start = models.DateTimeField()
    # Never null, but the key may have been deleted: `null` makes joins outer, which lose no usage.
    key = models.ForeignKey(  # type: ignore[assignment]
        ApiKey, models.DO_NOTHING, null=True, related_name="+", db_index=False, db_constraint=False
    )

    objects = UsageSumQuerySet.as_manager()

    class Meta:
        managed = False
        ordering = ["tenant", "start"]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.span} of {self.start:%Y-%m-%d %H}h {self.model}"


class EngineJournal(models.Model):
    """One engine's journal from both sides: what the ledger has of it, and the engine's own counts.

    `counted` figures are of entries that the engine regards as acknowledged, as last reported;
    `unjournaled_tokens` is what the engine counted in its present run beyond its journal.
    """

    journal = models.CharField(primary_key=True, max_length=64)
    engine_id = models.CharField(max_length=255)
    ledger_requests = models.BigIntegerField(default=0)
    ledger_prompt_tokens = models.BigIntegerField(default=0)
    ledger_cached_tokens = models.BigIntegerField(default=0)
    ledger_completion_tokens = models.BigIntegerField(default=0)
    counted_requests = models.BigIntegerField(default=0)
    counted_prompt_tokens = models.BigIntegerField(default=0)
    counted_cached_tokens = models.BigIntegerField(default=0)
    counted_completion_tokens = models.BigIntegerField(default=0)
    unjournaled_tokens = models.BigIntegerField(default=0)
    waiting_requests = models.BigIntegerField(default=0)
    """Requests that had ended but were not acknowledged at the time of the report."""
    surplus_requests = models.BigIntegerField(null=True)
    """What the ledger has beyond the journal (`tenants.billing.journals`); null: not compared yet.
    """
    surplus_tokens = models.BigIntegerField(null=True)
    accepted_requests = models.BigIntegerField(default=0, db_default=0)
    """Drift that an operator accepted (`manage.py reconcile --accept`); no longer counted as drift.
    """
    accepted_tokens = models.BigIntegerField(default=0, db_default=0)
    reported_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["engine_id"]
        indexes = [models.Index(fields=["reported_at"], name="journal_by_report")]

    def __str__(self) -> str:
        return f"{self.engine_id} ({self.journal})"


class PriceQuerySet(models.QuerySet["Price"]):
    def shown(self) -> PriceQuerySet:
        """Prices of base models and of adapters that still exist."""
        return self.filter(Q(base_model__isnull=False) | Q(adapter__name__isnull=False))

    def at(self, now: datetime, *states: str) -> PriceQuerySet:
        """The prices of `shown`, with `state`: `scheduled`, `in force`, or `past` if a later one
        has begun. If `states` are given, only those in one of them.
        """
        same = Q(base_model=OuterRef("base_model")) | Q(adapter=OuterRef("adapter"))
        same &= Q(tier=OuterRef("tier"))
        begun = Price.objects.filter(same, starts_at__lte=now, starts_at__gt=OuterRef("starts_at"))
        state = Case(
            When(starts_at__gt=now, then=Value("scheduled")),
            When(Exists(begun), then=Value("past")),
            default=Value("in force"),
        )
        found = self.shown().annotate(state=state)
        return found.filter(state__in=states) if states else found


class Tier(models.TextChoices):
    """What a price applies to."""

    STANDARD = "standard"
    BATCH = "batch"
    """Lines of batches; without such a price the standard one applies."""


class Price(models.Model):
    """What tokens of a base model, or of one adapter, cost from `starts_at` on.

    In whole micro-units of the currency per million tokens. An adapter's prices take precedence
    over its base model's. A price that has been in force is never changed: a later one replaces it.
    It outlives its adapter, for requests that are still to be billed.
    """

    base_model = models.ForeignKey(
        "tenants.BaseModel", models.CASCADE, null=True, blank=True, related_name="prices"
    )
    adapter = models.ForeignKey(
        "tenants.Adapter",
        models.DO_NOTHING,
        null=True,
        blank=True,
        related_name="prices",
        db_constraint=False,
    )
    tier = models.CharField(
        max_length=8,
        choices=Tier,
        default=Tier.STANDARD,
        db_default=Tier.STANDARD,
        help_text="`batch`: for requests of batches, which otherwise cost the standard price.",
    )
    starts_at = models.DateTimeField()
    prompt = models.BigIntegerField(help_text="Prompt tokens that were not in the cache.")
    cached_prompt = models.BigIntegerField()
    output = models.BigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    objects = PriceQuerySet.as_manager()

    class Meta:
        ordering = ["-starts_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["base_model", "adapter", "tier", "starts_at"],
                nulls_distinct=False,
                name="price_unique",
            ),
            models.CheckConstraint(
                condition=Q(tier__in=["standard", "batch"]), name="price_tier_known"
            ),
            models.CheckConstraint(
                condition=Q(base_model__isnull=False, adapter__isnull=True)
                | Q(base_model__isnull=True, adapter__isnull=False),
                name="price_of_one_thing",
            ),
            models.CheckConstraint(
                condition=Q(prompt__gte=0, cached_prompt__gte=0, output__gte=0)
                & Q(prompt__lte=MAX_PRICE, cached_prompt__lte=MAX_PRICE, output__lte=MAX_PRICE),
                name="price_in_bounds",
            ),
            models.CheckConstraint(
                condition=Q(cached_prompt__lte=F("prompt")), name="price_cached_not_dearer"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter or self.base_model} from {self.starts_at:%Y-%m-%d}"

    def clean(self) -> None:
        """Report violated constraints as form errors."""
        if (self.base_model_id is None) == (self.adapter_id is None):
            raise ValidationError("A price must be for either a base model or an adapter.")
        for name in ("prompt", "cached_prompt", "output"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_PRICE:
                raise ValidationError({name: f"{value} is not from 0 to {MAX_PRICE}."})
        if (self.cached_prompt or 0) > (self.prompt or 0):
            dearer = f"{self.cached_prompt} is more than the price of uncached prompt tokens."
            raise ValidationError({"cached_prompt": dearer})

    def withdraw(self) -> None:
        """Delete a price that is not in force yet.

        Raises:
            PriceInForce: it is, or was, in force.
        """
        deleted, _ = Price.objects.filter(pk=self.pk, starts_at__gt=timezone.now()).delete()
        if not deleted:
            raise PriceInForce
