"""How requests ended: figures by minute and by hour, and each refused request.

Gateways add what they saw every few seconds (`tenants.directory.outcomes`): a gateway that is
killed loses its last seconds. Bills come from the ledger (`ledger`).

Figures of the same group can be added up over any time, and so can durations, because they are
counted by bucket (`inference.gateway.measuring.sums`). Percentiles are computed from such sums, and
never added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Aggregate, F, Func, Q, Sum, Value

from inference.gateway.measuring.measures import CANCELLED, COMPLETED, FAILED, REFUSED
from inference.gateway.measuring.sums import BUCKETS
from tenants.models.accounts import Tenant
from tenants.models.adapters import AdapterVersion
from tenants.models.keys import ApiKey
from tenants.models.usage.listed import Mark, Outcome, RequestQuerySet

M = TypeVar("M", bound=models.Model, covariant=True)

STRUCTURES = ("conformed", "malformed", "unchecked")
"""Counts of requests whose answers should have a structure."""
COUNTS = (
    "requests", "prompt_tokens", "cached_tokens", "output_tokens", "cost", *STRUCTURES,
    "decode_tokens",
)  # fmt: skip
BY_OUTCOME = (COMPLETED, CANCELLED, REFUSED, FAILED)
"""The outcomes as metrics name them; `figures` has a count under each of these names."""
TIMES = ("first_tokens", "totals")
"""The durations that are counted by bucket."""
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class BucketSums(Aggregate):
    """The sums of each bucket of a duration: a list of BUCKETS counts. One expression, because
    Django takes milliseconds for BUCKETS of them."""

    output_field = ArrayField(models.BigIntegerField())

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **more: Any) -> Any:
        """See `Aggregate.as_sql`."""
        column, params = compiler.compile(self.source_expressions[0])
        sums = ", ".join(f"coalesce(sum({column}[{at}]), 0)" for at in range(1, BUCKETS + 1))
        return f"ARRAY[{sums}]::bigint[]", [*params] * BUCKETS


class FiguresQuerySet(models.QuerySet[M]):
    def between(self, start: datetime, end: datetime) -> Self:
        """Figures of minutes, or hours, that begin at `start` or later, and before `end`."""
        return self.filter(at__gte=start, at__lt=end)

    def figures(
        self, *by: str, step: timedelta | None = None, times: Sequence[str] = TIMES
    ) -> models.QuerySet[M, dict[str, Any]]:
        """One dict for each group that exists, in order: a column for each of `by` (fields, and
        with a `step` also `start`, the beginning of the interval of that length), then COUNTS,
        `decode_s`, a count for each of BY_OUTCOME, and the counts by bucket of these `times`."""
        found: models.QuerySet[Any, Any] = self.order_by()
        if step is not None:
            start = Func(Value(step), F("at"), Value(EPOCH), function="date_bin",
                         output_field=models.DateTimeField())  # fmt: skip
            found = found.annotate(start=start)
        if not by:
            by = ("everything",)
            found = found.annotate(everything=Value(0))
        groups: models.QuerySet[M, dict[str, Any]]
        groups = found.values(*by).annotate(**_sums(times)).order_by(*by)
        return groups


def _sums(times: Sequence[str]) -> Mapping[str, Any]:
    sums: dict[str, Any] = {name: Sum(name, default=0) for name in COUNTS}
    sums["decode_s"] = Sum("decode_s", default=0.0)
    for outcome in BY_OUTCOME:
        sums[outcome] = Sum("requests", filter=Q(outcome=outcome), default=0)
    sums |= {name: BucketSums(name) for name in times}
    # Reversed, so that counts by outcome precede the sum `requests`: in an aggregate a name means
    # the field until a sum takes it.
    return dict(reversed(sums.items()))


class Figures(models.Model):
    """Figures of the requests that ended in one minute, or one hour, of UTC, with one outcome.

    `code` is the finish reason or the error's code; `limit_kind` and `limit_scope` are those of the
    limit that refused. `cost` is in pico-units, as gateways saw it. `decode_tokens` were generated
    in `decode_s`, not counting the first token of each request. Of the requests whose answers
    should follow a schema, `conformed` did, `malformed` did not, and `unchecked` were not checked.
    """

    at = models.DateTimeField()
    outcome = models.CharField(max_length=16)
    code = models.CharField(max_length=64)
    limit_kind = models.CharField(max_length=64)
    limit_scope = models.CharField(max_length=16)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    cost = models.DecimalField(max_digits=38, decimal_places=0)
    conformed = models.BigIntegerField(default=0, db_default=0)
    malformed = models.BigIntegerField(default=0, db_default=0)
    unchecked = models.BigIntegerField(default=0, db_default=0)
    decode_tokens = models.BigIntegerField()
    decode_s = models.FloatField()
    first_tokens = ArrayField(models.BigIntegerField())
    totals = ArrayField(models.BigIntegerField())

    class Meta:
        abstract = True
        ordering = ["tenant", "at"]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.outcome}"


WHAT = ["outcome", "code", "limit_kind", "limit_scope"]


def _unique(name: str, fields: Sequence[str]) -> models.UniqueConstraint:
    """At most one row of the same groups; those that a row lacks count as equal."""
    return models.UniqueConstraint(fields=fields, nulls_distinct=False, name=name)


class Detail(Figures):
    """Figures of one API key and one adapter version; without a version they are of a base model,
    or the version is unknown."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="+", db_index=False)
    key = models.ForeignKey(
        ApiKey, models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    version = models.ForeignKey(
        AdapterVersion, models.DO_NOTHING, null=True, related_name="+", db_index=False,
        db_constraint=False,
    )  # fmt: skip
    adapter = models.CharField(max_length=63)
    base_model = models.CharField(max_length=255)

    class Meta(Figures.Meta):
        abstract = True


WHOSE = ["tenant", "at", "key", "version", "adapter", "base_model"]


class RequestMinute(Detail):
    objects = FiguresQuerySet["RequestMinute"].as_manager()

    class Meta(Detail.Meta):
        constraints = [_unique("request_minute_unique", [*WHOSE, *WHAT])]


class RequestHour(Detail):
    objects = FiguresQuerySet["RequestHour"].as_manager()

    class Meta(Detail.Meta):
        constraints = [_unique("request_hour_unique", [*WHOSE, *WHAT])]


class Total(Figures):
    """Figures of a whole tenant; without one, of the whole installation."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, related_name="+", db_index=False)

    class Meta(Figures.Meta):
        abstract = True


class TotalMinute(Total):
    objects = FiguresQuerySet["TotalMinute"].as_manager()

    class Meta(Total.Meta):
        constraints = [_unique("total_minute_unique", ["tenant", "at", *WHAT])]


class TotalHour(Total):
    objects = FiguresQuerySet["TotalHour"].as_manager()

    class Meta(Total.Meta):
        constraints = [_unique("total_hour_unique", ["tenant", "at", *WHAT])]


class RefusedRequestQuerySet(RequestQuerySet["RefusedRequest"]):
    def that(self, outcome: Outcome) -> Self:
        """Refused requests with this outcome."""
        return self.filter(outcome=outcome.value)


class RefusedRequest(models.Model):
    """A request that was refused, or failed, with the error that its client got.

    Of many similar ones in a minute only some are kept (`inference.gateway.measuring.outcomes`);
    the figures count all. One that reached an engine is in the ledger as well, under the same id
    and start.
    """

    id = models.CharField(primary_key=True, max_length=64)
    started_at = models.DateTimeField()
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="refused", db_index=False)
    key = models.ForeignKey(
        ApiKey, models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    version = models.ForeignKey(
        AdapterVersion, models.DO_NOTHING, null=True, related_name="+", db_index=False,
        db_constraint=False,
    )  # fmt: skip
    adapter = models.CharField(max_length=63)
    base_model = models.CharField(max_length=255)
    model = models.CharField(max_length=128)
    """As its client wrote it; empty if it was not read."""
    surface = models.CharField(max_length=16)
    outcome = models.CharField(
        max_length=16, choices=[("refused", "Refused"), ("failed", "Failed")]
    )
    status = models.PositiveSmallIntegerField()
    """The HTTP status of its error."""
    code = models.CharField(max_length=64)
    message = models.CharField(max_length=400)
    limit_kind = models.CharField(max_length=64)
    limit_scope = models.CharField(max_length=16)
    total_s = models.FloatField()
    trace_id = models.CharField(max_length=32, default="", db_default="")
    """The id of its OpenTelemetry trace, if it has one."""

    objects = RefusedRequestQuerySet.as_manager()

    class Meta:
        ordering = ["-started_at"]
        indexes = [
            models.Index(fields=["tenant", "started_at"], name="refused_by_tenant"),
            models.Index(fields=["started_at"], name="refused_by_start"),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def mark(self) -> Mark:
        return Mark(self.started_at, self.id)
