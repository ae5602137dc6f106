"""What a version must reach in an eval before an alias may point at it."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from tenants.errors import EvalMissed
from tenants.models.adapters import Adapter, AdapterVersion, Alias
from tenants.models.evals import Eval, EvalRun, EvalStatus
from tenants.naming import tuned_name

MAX_GATES = 20
"""Of one adapter."""


class PromotionGateQuerySet(models.QuerySet["PromotionGate"]):
    def put(self, adapter: Adapter, alias: str, eval: Eval, min_pass_rate: float) -> PromotionGate:
        """Set what the alias requires, in place of what it required before.

        Raises:
            ValidationError: a value is wrong, or the adapter has too many of them.
        """
        fields = {"eval": eval, "min_pass_rate": min_pass_rate}
        if adapter.short_lived:
            raise ValidationError("Versions that a training loop loads have no promotion.")
        Alias(adapter=adapter, name=alias).clean_fields(exclude=["version"])
        PromotionGate(adapter=adapter, alias=alias, **fields).clean_fields()
        with transaction.atomic():
            Adapter.objects.select_for_update().get(pk=adapter.pk)
            if self.filter(adapter=adapter).exclude(alias=alias).count() >= MAX_GATES:
                raise ValidationError(f"{MAX_GATES} aliases require an eval, the maximum.")
            gate, _ = self.update_or_create(adapter=adapter, alias=alias, defaults=fields)
        return gate


class PromotionGate(models.Model):
    """A version may become that of `alias` only if the last finished run of `eval` on it passed at
    least a share of `min_pass_rate` of its rows. The alias need not exist yet.

    Going back to the version before is always possible.
    """

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="gates")
    alias = models.CharField(max_length=63)
    # An eval that is required is not deleted, but a whole tenant can be.
    eval = models.ForeignKey(Eval, models.RESTRICT, related_name="gates")
    min_pass_rate = models.FloatField(
        validators=[MaxValueValidator(1.0)],
        help_text="The share of rows that must pass, above 0 and at most 1.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = PromotionGateQuerySet.as_manager()

    class Meta:
        ordering = ["alias"]
        constraints = [
            models.UniqueConstraint(fields=["adapter", "alias"], name="gate_once"),
            models.CheckConstraint(
                condition=Q(min_pass_rate__gt=0, min_pass_rate__lte=1), name="gate_rate"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.alias}"

    @property
    def percent(self) -> str:
        """The share in percent, as people write it."""
        return f"{100 * self.min_pass_rate:.10g}"

    @property
    def requirement(self) -> str:
        """What is required, in words."""
        return f"“{self.alias}” requires {self.percent}% in the eval {self.eval.label}"

    def is_missed_by(self, run: EvalRun) -> bool:
        """Whether the completed run would have missed it even if the rows that errored had passed:
        an answer that an engine or a budget prevented says nothing about the version."""
        return run.passed + run.errored < self.min_pass_rate * run.total

    def clean_fields(self, exclude: set[str] | None = None) -> None:  # type: ignore[override]
        super().clean_fields(exclude)
        if not self.min_pass_rate > 0:  # also of NaN
            raise ValidationError({"min_pass_rate": "This must be above 0 and at most 1."})

    def last_run(self, version: AdapterVersion) -> EvalRun | None:
        """The last finished run of the eval that names this version as its model, by its number or
        its whole digest."""
        adapter = version.adapter
        tuned = tuned_name(adapter.base_model.name, adapter.tenant.slug, adapter.name)
        names = (adapter.name, tuned)
        called = [f"{name}@{pin}" for name in names for pin in (version.number, version.digest)]
        # A number may be that of an earlier version, which was deleted.
        finished = self.eval.runs.listed().filter(
            status=EvalStatus.COMPLETED, created_at__gte=version.created_at, model__in=called
        )
        return finished.order_by("-ended_at", "-pk").first()

    def missed(self, version: AdapterVersion) -> str:
        """Why the alias may not point at the version, in words; empty if it may."""
        wanted, run = self.requirement, self.last_run(version)
        if run is None or run.share is None:
            model = f"{version.adapter.name}@{version.number}"
            return f"{wanted}: no finished run of it has the model {model}."
        if run.share >= self.min_pass_rate:
            return ""
        errored = f" {run.errored:,} errored." if run.errored else ""
        return (
            f"{wanted}: in its last run version {version.number} passed {run.passed:,} of "
            f"{run.total:,} rows, {100 * run.share:.3g}%.{errored}"
        )

    def require(self, version: AdapterVersion) -> None:
        """Raises EvalMissed if the alias may not point at the version."""
        if why := self.missed(version):
            raise EvalMissed(why)
