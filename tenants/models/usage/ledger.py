"""The ledger: what each request cost, and what engines' journals say.

Only `tenants.billing.ledger` writes here: events and their hourly sums (`sums`) in one transaction.
Events are read by id, and in pages for receipts and the list of requests (`listed`).

Costs are whole pico-units (1e-12) of the platform's currency: tokens times a price in micro-units
per million tokens, never rounded.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models import Q

from inference.errors import ApiKeyRevoked
from tenants.models.accounts import Tenant
from tenants.models.adapters import AdapterVersion
from tenants.models.keys import ApiKey
from tenants.models.usage.listed import OUTCOME_OF, REASONS, Mark, Outcome, RequestQuerySet

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
    overflow = models.BooleanField(default=False, db_default=False)
    """Whether an overflow engine ran it, whose server is outside of the installation."""
    is_estimated = models.BooleanField(default=False, db_default=False)
    """Whether its tokens are an estimate: the engine's server did not say what it used."""
    route = models.CharField(max_length=63, default="", db_default="")
    """The name of the route that chose the model, if one did."""

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
            # Gateways add up the day's every few seconds.
            models.Index(
                fields=["started_at"], name="usage_overflowed", condition=Q(overflow=True)
            ),
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
