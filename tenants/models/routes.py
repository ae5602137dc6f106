"""Routes: names under which the cheapest sufficient of several models answers.

`tenants.routes` fits them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from inference.routes import MAX_OPTIONS
from tenants.errors import RouteBeingFitted, RouteNotGaining, TooManyRoutes
from tenants.models.accounts import Tenant, User
from tenants.models.adapters import NAME, NAME_RULE, AdapterVersion, BaseModel, State
from tenants.models.evals import Eval, EvalRun, EvalStatus
from tenants.models.usage.prices import Price, Tier
from tenants.naming import LIVE, adapter_of

MAX_ROUTES = 20
"""Of one tenant."""
MAX_MODEL = 300
MAX_REASON = 500
MAX_MARGIN = 0.2
METHOD_HELP = (
    "`classifier`: the words of the question choose. `cascade`: of two models the first one "
    "answers, and the second one instead if that answer is unsure."
)
FIT_TIME = timedelta(minutes=15)
"""After that a fit may be asked for again: its worker was killed."""


class RouteMethod(models.TextChoices):
    """How a route chooses."""

    CLASSIFIER = "classifier", "by the words of the question"
    CASCADE = "cascade", "the second model if the first one is unsure"


class RouteQuerySet(models.QuerySet["Route"]):
    def add(self, tenant: Tenant, by: User | None, **fields: Any) -> Route:
        """Create a route of the tenant, which is off.

        Raises:
            ValidationError: a field is wrong, or the name is taken.
            TooManyRoutes: the tenant has the maximum.
        """
        with transaction.atomic():
            Tenant.objects.select_for_update().get(pk=tenant.pk)
            if self.filter(tenant=tenant).count() >= MAX_ROUTES:
                raise TooManyRoutes
            route = Route(tenant=tenant, created_by=by, **fields)
            route.best = len(route.options) - 1
            route.full_clean()
            route.save()
        return route


class Route(models.Model):
    """`options` are names of models as requests have them, from the cheapest on: as its author said
    until it is fitted, then as measured. While it is off `best` answers, the place of one of them.

    `fit` counts the fits. Of the last one, `packed` and `threshold` are what chooses
    (`inference.routes.RouteFit`, of a cascade only the threshold), and `report` what it gained
    (`tenants.routes.fitting`). `reason` says in words why it is on or off.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="routes")
    name = models.CharField(
        max_length=63,
        validators=[RegexValidator(NAME, NAME_RULE)],
        help_text="What requests name as their model.",
    )
    options = ArrayField(
        models.CharField(max_length=MAX_MODEL),
        help_text=f"2 to {MAX_OPTIONS} base models or adapters, from the cheapest on.",
    )
    margin = models.FloatField(
        default=0.03,
        validators=[MinValueValidator(0.0), MaxValueValidator(MAX_MARGIN)],
        help_text="How much smaller the share of good answers may be than that of the best single "
        f"option, from 0 to {MAX_MARGIN}.",
    )
    method = models.CharField(
        max_length=10,
        choices=RouteMethod,
        db_default=RouteMethod.CLASSIFIER,
        default=RouteMethod.CLASSIFIER,
        help_text=METHOD_HELP,
    )
    best = models.PositiveSmallIntegerField(default=0, editable=False)
    is_on = models.BooleanField(default=False, editable=False)
    reason = models.CharField(max_length=MAX_REASON, blank=True, editable=False)
    eval = models.ForeignKey(
        Eval, models.SET_NULL, null=True, blank=True, editable=False, related_name="+"
    )
    """The one that it was last fitted on, or is to be."""
    fitting_since = models.DateTimeField(null=True, editable=False)
    fit = models.PositiveIntegerField(default=0, editable=False)
    fitted_at = models.DateTimeField(null=True, editable=False)
    packed = models.BinaryField(default=b"", editable=False)
    threshold = models.FloatField(default=0.0, editable=False)
    report = models.JSONField(null=True, editable=False)
    gains = models.BooleanField(default=False, editable=False)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = RouteQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="route_name_unique"),
            models.CheckConstraint(condition=Q(name__regex=NAME), name="route_name_form"),
            models.CheckConstraint(condition=Q(is_on=False) | Q(gains=True), name="route_on_gains"),
            models.CheckConstraint(
                condition=Q(method__in=RouteMethod.values), name="route_method_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def is_being_fitted(self) -> bool:
        since = self.fitting_since
        return since is not None and timezone.now() - since < FIT_TIME

    @property
    def is_cascade(self) -> bool:
        return self.method == RouteMethod.CASCADE

    @property
    def answers_if_off(self) -> str:
        """The model that answers while it is off, and requests without a text."""
        return self.options[self.best]

    def clean(self) -> None:
        if BaseModel.objects.filter(name=self.name).exists():
            raise ValidationError({"name": "A base model already has this name."})
        if self.tenant.adapters.filter(name=self.name).exists():
            raise ValidationError({"name": "An adapter already has this name."})
        if not 2 <= len(self.options) <= MAX_OPTIONS:
            raise ValidationError({"options": f"A route has 2 to {MAX_OPTIONS} options."})
        if self.is_cascade and len(self.options) > 2:
            raise ValidationError(
                {"options": f"A cascade has 2 options, and not {len(self.options)}."}
            )
        for option in self.options:
            if self.options.count(option) > 1:
                raise ValidationError({"options": f"“{option}” is there twice."})
            if not _exists(self.tenant, option):
                raise ValidationError(
                    {"options": f"There is no base model or ready adapter “{option}”."}
                )

    def runs_of(self, eval: Eval) -> list[EvalRun]:
        """The newest completed run of the eval on each option, in their order.

        Raises:
            ValidationError: an option has none, or they ask differently.
        """
        found = list[EvalRun]()
        for option in self.options:
            completed = eval.runs.filter(status=EvalStatus.COMPLETED, model=option)
            run = completed.defer("metadata", "error").order_by("-ended_at", "-pk").first()
            if run is None:
                problem = f"has no completed run with the model {option}: start one."
                raise ValidationError(f"The eval {eval.label} {problem}")
            found.append(run)
        asked = [run.source.get("input_messages") for run in found]
        if any(one != asked[0] for one in asked):
            raise ValidationError("The runs have different prompts: start them with the same one.")
        return found

    def prices(self) -> list[tuple[int, int]]:
        """What prompt tokens and output tokens of each option cost now.

        Raises:
            ValidationError: all are free, so nothing can be saved.
        """
        found = [_price(self.tenant, option) for option in self.options]
        if not any(map(any, found)):
            raise ValidationError("All options are free: set prices, or there is nothing to save.")
        return found

    def begin_fit(self, eval: Eval) -> None:
        """Note that it is being fitted. What it was fitted to before still chooses.

        Raises:
            RouteBeingFitted: it is being fitted already.
        """
        now = timezone.now()
        free = Q(fitting_since=None) | Q(fitting_since__lte=now - FIT_TIME)
        if not Route.objects.filter(free, pk=self.pk).update(fitting_since=now, eval=eval):
            raise RouteBeingFitted
        self.refresh_from_db()

    def end_fit(self, reason: str, **fields: Any) -> bool:
        """Note how the fit that began at `fitting_since` ended; returns whether that still counts.
        Without `fields` it failed, and what was fitted before stays."""
        mine = Route.objects.filter(pk=self.pk, fitting_since=self.fitting_since)
        noted = mine.update(fitting_since=None, reason=reason[:MAX_REASON], **fields)
        self.refresh_from_db()
        return bool(noted)

    def turn_on(self) -> None:
        """Have it choose by its last fit.

        Raises:
            RouteNotGaining: the fit does not gain, or there is none.
        """
        found = Route.objects.filter(pk=self.pk, gains=True)
        if not found.update(is_on=True, reason="It was turned on."):
            raise RouteNotGaining
        self.refresh_from_db()

    def turn_off(self) -> None:
        """Have the best option answer all requests."""
        Route.objects.filter(pk=self.pk).update(is_on=False, reason="It was turned off.")
        self.refresh_from_db()


def _exists(tenant: Tenant, option: str) -> bool:
    """Whether requests may name this model: a base model, or a ready version of an adapter."""
    if "\0" in option:
        return False
    if BaseModel.objects.filter(name=option).exists():
        return True
    name, at, pin = adapter_of(option).partition("@")
    pinned = Q(aliases__name=pin if at else LIVE)
    if pin.isdecimal() and len(pin) < 9:
        pinned |= Q(number=int(pin))
    if len(pin) >= 8:
        pinned |= Q(digest__startswith=pin)
    ready = AdapterVersion.objects.filter(adapter__tenant=tenant, state=State.READY)
    return ready.filter(pinned, adapter__name=name).exists()


def _price(tenant: Tenant, option: str) -> tuple[int, int]:
    """Micro-units of the currency per million tokens of prompt and output; an adapter's own price
    takes precedence over its base model's."""
    standard = Price.objects.at(timezone.now(), "in force").filter(tier=Tier.STANDARD)
    base = BaseModel.objects.filter(name=option).first()
    price = None
    if base is None:
        name = adapter_of(option).partition("@")[0]
        adapter = tenant.adapters.select_related("base_model").filter(name=name).first()
        price = standard.filter(adapter=adapter).first() if adapter else None
        base = adapter.base_model if adapter else None
    if price is None and base is not None:
        price = standard.filter(base_model=base).first()
    return (0, 0) if price is None else (price.prompt, price.output)
