"""Rollouts: tenants of a base model move to a new revision of it, by weight.

A worker drives them (`tenants.rollouts`), gateways route by them (`inference.pools`), and operators
start, pause and end them. Every change of one is in the audit log.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from tenants.errors import IllegalRolloutStep, NotRollable, RolloutUnderWay
from tenants.models.accounts import Tenant, User
from tenants.models.adapters import BaseModel
from tenants.models.fleet.pools import PoolRevision, Standing

STEPS = (5, 25, 50, 100)
MAX_STEPS = 20


class RolloutState(models.TextChoices):
    RUNNING = "running"
    PAUSED = "paused"
    """The weight stays; guards stay active."""
    FINISHED = "finished"
    ABORTED = "aborted"
    ROLLED_BACK = "rolled back"
    """A guard failed."""


OPEN = (RolloutState.RUNNING, RolloutState.PAUSED)


def default_steps() -> list[int]:
    return list(STEPS)


def check_steps(steps: list[int]) -> None:
    """Validate that the weights rise to 100.

    Raises:
        ValidationError: they do not, or are too many.
    """
    rises = all(low < high for low, high in pairwise(steps))
    if not steps or len(steps) > MAX_STEPS or not rises or steps[0] < 1 or steps[-1] != 100:
        raise ValidationError(
            f"At most {MAX_STEPS} weights in percent, each above the previous one; the "
            "last must be 100."
        )


class RolloutQuerySet(models.QuerySet["Rollout"]):
    def open(self) -> RolloutQuerySet:
        """Rollouts that are under way."""
        return self.filter(state__in=OPEN)

    def start(self, revision: PoolRevision, **plan: Any) -> Rollout:
        """Begin a rollout of the revision, at weight 0; `plan` are its other fields.

        Raises:
            RolloutUnderWay: this base model has an open rollout.
            NotRollable: the revision serves already, or no other one does.
            ValidationError: the plan is not valid.
        """
        with transaction.atomic():
            base = BaseModel.objects.select_for_update().get(pk=revision.base_model_id)
            if self.filter(base_model=base).open().exists():
                raise RolloutUnderWay
            revision.refresh_from_db()
            if revision.standing == Standing.SERVING:
                raise NotRollable(f"{revision} is already serving.")
            if not base.revisions.filter(standing=Standing.SERVING).exists():
                raise NotRollable(
                    f"No revision of {base} is serving, so there are no tenants to move."
                )
            rollout = self.model(base_model=base, revision=revision, name=str(revision), **plan)
            rollout.full_clean()
            revision.standing = Standing.WAITING
            revision.save(update_fields=["standing"])
            rollout.save()
            return rollout


class Rollout(models.Model):
    """One move of a base model's tenants to a revision; at most one per base model is open.

    `report` is the result of its last evaluation (`tenants.rollouts.driver`).
    """

    base_model = models.ForeignKey(BaseModel, models.CASCADE, related_name="rollouts")
    revision = models.ForeignKey(PoolRevision, models.PROTECT, related_name="rollouts")
    name = models.CharField(max_length=300, editable=False)
    state = models.CharField(
        max_length=16, choices=RolloutState, default=RolloutState.RUNNING, editable=False
    )
    weight = models.PositiveSmallIntegerField(
        default=0, editable=False, help_text="Share of tenants on the new revision, in percent."
    )
    steps = ArrayField(
        models.PositiveSmallIntegerField(),
        default=default_steps,
        validators=[check_steps],
        help_text="Weights in percent, in increasing order; the last is 100.",
    )
    step_s = models.PositiveIntegerField(
        default=600,
        validators=[MinValueValidator(1), MaxValueValidator(7 * 86_400)],
        help_text="Minimum time at each weight, in seconds.",
    )
    min_requests = models.PositiveIntegerField(
        default=20,
        validators=[MaxValueValidator(1_000_000)],
        help_text="Requests that the new revision must answer at each weight before the next step.",
    )
    max_error_percent = models.FloatField(
        default=2.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(100.0)],
        help_text=(
            "By how many percentage points its error rate may exceed that of the present revisions."
        ),
    )
    max_ttft_ratio = models.FloatField(
        null=True,
        blank=True,
        default=1.5,
        validators=[MinValueValidator(1.0), MaxValueValidator(1000.0)],
        help_text=(
            "Maximum ratio of its time to first token (p95) to that of the present "
            "revisions; empty: no limit."
        ),
    )
    needs_isolation = models.BooleanField(
        default=True, help_text="Each step requires a passed isolation check."
    )
    reason = models.CharField(
        max_length=1000,
        blank=True,
        editable=False,
        help_text="Why the rollout ended or was paused.",
    )
    report = models.JSONField(default=dict, editable=False)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    stepped_at = models.DateTimeField(db_default=Now(), editable=False)
    """When it got its present weight."""
    ended_at = models.DateTimeField(null=True, editable=False)

    objects = RolloutQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["base_model"],
                condition=Q(state__in=["running", "paused"]),
                name="rollout_one_open",
            ),
            models.CheckConstraint(
                condition=Q(weight__gte=0, weight__lte=100), name="rollout_weight"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["running", "paused", "finished", "aborted", "rolled back"]),
                name="rollout_state_known",
            ),
            models.CheckConstraint(
                condition=Q(state__in=["running", "paused"], ended_at=None)
                | Q(state__in=["finished", "aborted", "rolled back"], ended_at__isnull=False),
                name="rollout_ended",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def next_weight(self) -> int | None:
        """The next weight of its plan; None after the last one."""
        return next((weight for weight in self.steps if weight > self.weight), None)

    def pause(self) -> None:
        """Keep the present weight until it is resumed. Guards stay active.

        Raises:
            IllegalRolloutStep: it is not running.
        """
        self._step(RolloutState.RUNNING, state=RolloutState.PAUSED)

    def resume(self) -> None:
        """Continue; the time at the present weight starts again.

        Raises:
            IllegalRolloutStep: it is not paused.
        """
        self._step(RolloutState.PAUSED, state=RolloutState.RUNNING, reason="", stepped_at=Now())

    def set_weight(self, weight: int) -> None:
        """Move this share (in percent) of the tenants to the new revision, regardless of the plan:
        those whose adapters passed there.

        Raises:
            IllegalRolloutStep: it has ended.
        """
        self._step(*OPEN, weight=weight, stepped_at=Now())

    def finish(self) -> None:
        """Make the new revision the only one that serves, for all tenants.

        Raises:
            IllegalRolloutStep: it has ended.
        """
        self._end(RolloutState.FINISHED, "", Standing.SERVING)

    def abort(self) -> None:
        """Move every tenant back, and withdraw the revision.

        Raises:
            IllegalRolloutStep: it has ended.
        """
        self._end(RolloutState.ABORTED, "", Standing.WITHDRAWN)

    def roll_back(self, reason: str) -> None:
        """As `abort`, because a guard failed.

        Raises:
            IllegalRolloutStep: it has ended.
        """
        self._end(RolloutState.ROLLED_BACK, reason, Standing.WITHDRAWN)

    def _end(self, state: RolloutState, reason: str, standing: Standing) -> None:
        with transaction.atomic():
            self._step(*OPEN, state=state, reason=reason[:1000], ended_at=Now())
            revisions = PoolRevision.objects.filter(base_model_id=self.base_model_id)
            if state == RolloutState.FINISHED:
                others = revisions.exclude(pk=self.revision_id)
                others.filter(standing=Standing.SERVING).update(standing=Standing.WAITING)
            revisions.filter(pk=self.revision_id).update(standing=standing)

    def _step(self, *sources: RolloutState, **fields: Any) -> None:
        """Change it if it is in one of these states, in one statement.

        Raises:
            IllegalRolloutStep: it is in another state.
        """
        here = Rollout.objects.filter(pk=self.pk, state__in=sources)
        moved = here.update(**fields)
        self.refresh_from_db()
        if not moved:
            raise IllegalRolloutStep(f"This rollout is {self.state}.")


class Turn(models.TextChoices):
    FIRST = "first"
    """It moves regardless of the weight, as soon as its adapters have passed."""
    LAST = "last"
    """It moves when the rollout is finished."""


class RolloutTenant(models.Model):
    """A tenant whose turn an operator has set."""

    rollout = models.ForeignKey(Rollout, models.CASCADE, related_name="tenants")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="+")
    turn = models.CharField(max_length=8, choices=Turn)

    class Meta:
        ordering = ["tenant__slug"]
        constraints = [
            models.UniqueConstraint(fields=["rollout", "tenant"], name="rollout_tenant_unique"),
            models.CheckConstraint(
                condition=Q(turn__in=["first", "last"]), name="rollout_turn_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.turn} in {self.rollout}"
