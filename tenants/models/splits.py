"""Splits of aliases between their version and a candidate, and the requests that they saw
(`tenants.splits`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.utils import timezone

from inference.splitting import StickyBy
from tenants.errors import SplitEnded, SplitRunning, VersionNotReady
from tenants.models.accounts import User
from tenants.models.adapters import Adapter, AdapterVersion, Alias, State
from tenants.models.annotations import MAX_NUMBER, WORD
from tenants.models.evals import EvalRun
from tenants.models.keys import ApiKey, Scope

MAX_STEPS, MAX_GUARDS = 10, 8
MAX_KEPT = 50
"""Splits that have ended, of one adapter."""
MAX_REQUESTS = 1_000_000
MAX_HOURS = 90 * 24
MAX_SECONDS = 600.0
MAX_REASON = 500
MAX_WEIGHT = 99
"""Percent of a candidate; 100 would be a promotion."""
HEADER = r"\A[A-Za-z0-9-]{1,64}\Z"


class SplitState(models.TextChoices):
    RUNNING = "running"
    PAUSED = "paused"
    """The weight stays; nothing is decided."""
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    INCONCLUSIVE = "inconclusive"
    """It reached its most requests or hours without a decision."""
    STOPPED = "stopped"
    """Somebody ended it, or changed its alias."""


OPEN = (SplitState.RUNNING, SplitState.PAUSED)


class GuardKind(models.TextChoices):
    """What is compared: shares of requests, or the mean of a score."""

    ERRORS = "errors"
    CUTS = "cuts", "Cut by length"
    SLOW = "slow", "Slow first tokens"
    STRUCTURE = "structure", "Malformed answers"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Guard:
    """One comparison. `margin` is how much worse the candidate may be: a share of requests from 0
    to 1, or of a score's range. A `slow` first token takes longer than `seconds`. A `score` has a
    `name`, and values from `low`, the worst, to `high`, the best; `low` may be the larger one."""

    kind: GuardKind
    margin: float
    seconds: float = 0.0
    name: str = ""
    low: float = 0.0
    high: float = 1.0

    @property
    def id(self) -> str:
        """Identifies it within its split."""
        return f"score {self.name}" if self.kind == GuardKind.SCORE else str(self.kind)

    def badness(self, score: float) -> float:
        """How bad a score is, from 0 to 1; one outside the range counts as its nearest end."""
        return min(1.0, max(0.0, (self.high - score) / (self.high - self.low)))

    @classmethod
    def of(cls, fields: Any) -> Self:
        """The guard of these JSON fields.

        Raises:
            ValidationError: a field is unknown, missing or wrong.
        """
        if not isinstance(fields, dict) or fields.get("kind") not in GuardKind.values:
            raise ValidationError(f"`kind` of a guard must be one of {', '.join(GuardKind)}.")
        kind = GuardKind(fields["kind"])
        unknown = sorted(map(str, fields.keys() - {"kind", *FIELDS[kind]}))
        if unknown:
            raise ValidationError(
                f"A guard of the kind `{kind}` has no field `{unknown[0][:40]}`. It has "
                f"{', '.join(FIELDS[kind])}."
            )
        values = {name: _number(fields, name) for name in FIELDS[kind] if name in NUMBERS}
        if kind == GuardKind.SCORE:
            values["name"] = _score_name(fields.get("name"))
            if values["low"] == values["high"]:
                raise ValidationError("`low` and `high` of a guard must not be the same.")
        return cls(kind, **values)


FIELDS: Mapping[GuardKind, tuple[str, ...]] = {
    GuardKind.ERRORS: ("margin",),
    GuardKind.CUTS: ("margin",),
    GuardKind.SLOW: ("margin", "seconds"),
    GuardKind.STRUCTURE: ("margin",),
    GuardKind.SCORE: ("margin", "name", "low", "high"),
}
NUMBERS: Mapping[str, tuple[float, float, float | None]] = {
    "margin": (0.0, 1.0, 0.02),
    "seconds": (0.01, MAX_SECONDS, None),
    "low": (-MAX_NUMBER, MAX_NUMBER, 0.0),
    "high": (-MAX_NUMBER, MAX_NUMBER, 1.0),
}
"""Minimum, maximum and default."""


def _number(fields: Mapping[str, Any], name: str) -> Any:
    least, most, default = NUMBERS[name]
    value = fields.get(name, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # also false for NaN
        raise ValidationError(f"`{name}` of a guard must be a number from {least:g} to {most:g}.")
    return float(value)


def _score_name(value: Any) -> str:
    if not isinstance(value, str) or not WORD.fullmatch(value):
        raise ValidationError("`name` of a guard must be the name of a score.")
    return value


def check_guards(given: Any) -> None:
    """Check the guards of a split.

    Raises:
        ValidationError: one is wrong, or there are none, too many or two alike.
    """
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_GUARDS:
        raise ValidationError(f"`guards` must be a list of 1 to {MAX_GUARDS} guards.")
    ids = [Guard.of(one).id for one in given]
    for id in ids:
        if ids.count(id) > 1:
            raise ValidationError(f"There are two guards of the kind `{id}`.")


def check_weights(given: Any) -> None:
    """Check the weights of a split's steps.

    Raises:
        ValidationError: they are not whole percentages that grow.
    """
    whole = isinstance(given, list) and all(type(one) is int for one in given)
    if not whole or not 1 <= len(given) <= MAX_STEPS:
        raise ValidationError(f"`weights` must be a list of 1 to {MAX_STEPS} whole numbers.")
    if given != sorted(set(given)) or not (given[0] >= 1 and given[-1] <= MAX_WEIGHT):
        raise ValidationError("`weights` must be percentages from 1 to 99, each above the last.")


class SplitQuerySet(models.QuerySet["Split"]):
    def open(self) -> Self:
        return self.filter(ended_at=None)

    def start(
        self, alias: Alias, candidate: AdapterVersion, by: User | None, **fields: Any
    ) -> Split:
        """Start a split of the alias.

        Raises:
            ValidationError: a field is wrong, or the candidate is the alias's version.
            VersionNotReady: the candidate is not ready, or is another adapter's.
            SplitRunning: the alias has one.
        """
        with transaction.atomic():
            Alias.objects.select_for_update().get(pk=alias.pk)
            alias.refresh_from_db()
            ready = alias.adapter.versions.filter(pk=candidate.pk, state=State.READY)
            if not ready.select_for_update().exists():
                raise VersionNotReady
            if self.open().filter(adapter=alias.adapter, alias=alias.name).exists():
                raise SplitRunning
            split = Split(
                adapter=alias.adapter,
                alias=alias.name,
                stable=alias.version,
                candidate=candidate,
                created_by=by,
                **fields,
            )
            split.full_clean(exclude=["weight"])
            split.weight = split.weights[0]
            split.save()
            self._forget(alias.adapter)
        return split

    def _forget(self, adapter: Adapter) -> None:
        """Delete the oldest of an adapter with more than MAX_KEPT."""
        ended = self.filter(adapter=adapter, ended_at__isnull=False).order_by("-pk")
        self.filter(pk__in=list(ended.values_list("pk", flat=True)[MAX_KEPT:])).delete()


def default_weights() -> list[int]:
    return [5, 25, 50]


def no_figures() -> dict[str, Any]:
    return {"at": None, "requests": [0, 0], "guards": []}


def default_guards() -> list[dict[str, Any]]:
    return [{"kind": GuardKind.ERRORS}]


class Split(models.Model):
    """Requests of an alias, of which a share gets the candidate instead of the stable version. In a
    shadow, which has a `shadow_key`, the candidate gets copies, whose answers nobody sees.

    `weight` is the present share in percent, one of `weights` or what somebody set. `figures` are
    for people (`tenants.splits.reading`), `tests` the state of the guards' tests, by their ids.
    """

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="splits")
    alias = models.CharField(max_length=63)
    stable = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="+", db_index=False)
    candidate = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="splits")
    state = models.CharField(max_length=16, choices=SplitState, default=SplitState.RUNNING)
    reason = models.CharField(max_length=MAX_REASON, blank=True)
    """Why it is in this state, in words."""
    weight = models.PositiveSmallIntegerField(default=0)
    weights = models.JSONField(
        default=default_weights,
        validators=[check_weights],
        error_messages={"blank": "`weights` must have at least one percentage."},
        help_text="Percent of the keys that get the candidate, step by step.",
    )
    min_requests = models.PositiveIntegerField(
        default=100,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_REQUESTS)],
        help_text="Requests that the candidate answers before the next step.",
    )
    max_requests = models.PositiveIntegerField(
        default=50_000,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_REQUESTS)],
        help_text="Requests of both versions after which it ends inconclusive.",
    )
    max_hours = models.PositiveIntegerField(
        default=7 * 24,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_HOURS)],
        help_text="Hours after which it ends inconclusive.",
    )
    sticky = models.CharField(
        max_length=20,
        choices=[(one.value, one.value) for one in StickyBy],
        default=StickyBy.USER,
        help_text="What requests that get the same version have in common.",
    )
    header = models.CharField(
        max_length=64,
        blank=True,
        validators=[
            RegexValidator(HEADER, "Use 1 to 64 letters, digits and hyphens for a header's name.")
        ],
        help_text="The header with the key, if `sticky` is `header`.",
    )
    guards = models.JSONField(
        default=default_guards,
        validators=[check_guards],
        error_messages={"blank": "`guards` must have at least one guard."},
        help_text="What is compared; `margin` is how much worse the candidate may be.",
    )
    rolls_back = models.BooleanField(
        default=True, help_text="Whether a guard that fails rolls back by itself."
    )
    promotes = models.BooleanField(
        default=False,
        help_text="Whether the candidate is promoted by itself once all guards have passed.",
    )
    shadow_key = models.ForeignKey(
        ApiKey,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="The key to which copies are billed; empty if it is no shadow.",
    )
    figures = models.JSONField(default=no_figures, editable=False)
    tests = models.JSONField(default=dict, editable=False)
    eval_run = models.ForeignKey(
        EvalRun, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    """The run of the eval that the alias requires, on the candidate, that was started for it."""
    step_requests = models.PositiveIntegerField(default=0, editable=False)
    """Requests that the candidate answered since the weight was set."""
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True, editable=False)

    objects = SplitQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["adapter", "alias"], condition=Q(ended_at=None), name="split_once"
            ),
            models.CheckConstraint(condition=Q(weight__lte=99), name="split_weight"),
            models.CheckConstraint(
                condition=Q(ended_at=None, state__in=OPEN)
                | Q(ended_at__isnull=False, weight=0) & ~Q(state__in=OPEN),
                name="split_ended",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.alias}"

    def clean(self) -> None:
        if self.stable_id == self.candidate_id:
            raise ValidationError({"version": "The alias points at this version already."})
        if (self.sticky == StickyBy.HEADER) != bool(self.header):
            raise ValidationError(
                {"header": "Set `header` if `sticky` is `header`, and not otherwise."}
            )
        self.header = self.header.lower()
        if self.is_shadow:
            self._check_shadow()

    def _check_shadow(self) -> None:
        key = self.shadow_key
        assert key is not None
        if key.tenant_id != self.adapter.tenant_id or not key.usable(timezone.now()):
            raise ValidationError({"shadow_key": "There is no such key, or it can't be used."})
        if Scope.INFERENCE not in key.scopes or not key.may_use(self.adapter.name):
            message = "This key lacks the scope `inference`, or may not use this adapter."
            raise ValidationError({"shadow_key": message})
        if self.promotes:
            raise ValidationError({"promotes": "A shadow does not promote by itself."})
        if any(guard.kind == GuardKind.SLOW for guard in self.parsed_guards):
            message = "A shadow can't have the guard `slow`: copies wait behind other requests."
            raise ValidationError({"guards": message})

    @property
    def is_shadow(self) -> bool:
        """Whether the candidate gets copies of requests, not requests."""
        return self.shadow_key_id is not None

    @property
    def parsed_guards(self) -> list[Guard]:
        return [Guard.of(one) for one in self.guards]

    @property
    def next_weight(self) -> int | None:
        """The weight of the next step; None at the last."""
        return next((one for one in self.weights if one > self.weight), None)

    def set_weight(self, weight: int, reason: str) -> None:
        """Send the candidate this percentage from now on.

        Raises:
            SplitEnded: it has ended.
        """
        self._change(weight=weight, reason=reason, step_requests=0)

    def note(self, reason: str) -> None:
        """Say in other words why it is in this state, which is not audited."""
        reason = reason[:MAX_REASON]
        Split.objects.filter(pk=self.pk).update(reason=reason)
        self.reason = reason

    def pause(self) -> None:
        """Decide nothing until `resume`; the weight stays.

        Raises:
            SplitEnded: it has ended.
        """
        self._change(state=SplitState.PAUSED, reason="Paused.")

    def resume(self) -> None:
        """Decide again.

        Raises:
            SplitEnded: it has ended.
        """
        self._change(state=SplitState.RUNNING, reason="Resumed.")

    def promote(self, reason: str) -> None:
        """Point the alias at the candidate.

        Raises:
            SplitEnded: it has ended.
            VersionNotReady: the candidate is no longer ready.
        """
        with transaction.atomic():
            self.lock_alias()
            self.end(SplitState.PROMOTED, reason)
            self.adapter.promote(self.candidate, self.alias)

    def end(self, state: SplitState, reason: str) -> None:
        """End it in this state; from now on the alias's version gets all requests.

        Raises:
            SplitEnded: it has ended.
        """
        ended_at = timezone.now()
        self._change(state=state, weight=0, reason=reason, ended_at=ended_at, tests={})

    def lock_alias(self) -> None:
        """Lock the alias for this transaction. It is locked before the split, as by whoever changes
        it, which ends the split."""
        alias = Alias.objects.filter(adapter=self.adapter_id, name=self.alias)
        alias.select_for_update().first()

    def _change(self, *, reason: str, **fields: Any) -> None:
        # Changed, so that the audit log has them with the act; by the database, as the judge may
        # have counted more than this object has.
        at = models.Value({"at": timezone.now().isoformat()}, models.JSONField())
        figures = models.Func(
            F("figures"), at, template="(%(expressions)s)", arg_joiner=" || ",
            output_field=models.JSONField(),
        )  # fmt: skip
        if (
            not Split.objects.open()
            .filter(pk=self.pk)
            .update(figures=figures, reason=reason[:MAX_REASON], **fields)
        ):
            raise SplitEnded
        self.refresh_from_db()


class SplitRequest(models.Model):
    """What became of a request of a split, written by its gateway (`directory.outcomes`) and
    deleted some time after the split has ended. `key` is None if the request has none of its own.
    """

    split = models.ForeignKey(Split, models.CASCADE, related_name="requests", db_index=False)
    request_id = models.CharField(max_length=64)
    candidate = models.BooleanField()
    key = models.BigIntegerField(null=True)
    weight = models.PositiveSmallIntegerField()
    failed = models.BooleanField()
    cut = models.BooleanField()
    conforms = models.BooleanField(null=True)
    """Whether its answer has the structure that was asked for; None if that was not checked."""
    ttft_s = models.FloatField(null=True)
    ended_at = models.DateTimeField()
    is_read = models.BooleanField(default=False)
    scored = ArrayField(models.CharField(max_length=64), default=list)
    """The guards that have its score."""

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["split", "request_id"], name="split_request_once")
        ]
        indexes = [
            models.Index(fields=["split", "id"], condition=Q(is_read=False), name="split_unread")
        ]

    def __str__(self) -> str:
        return self.request_id
