"""Base models, and tenants' adapters on them: immutable versions and aliases that point at them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import IntegrityError, models, transaction
from django.db.models import F, Q, RestrictedError
from django.utils import timezone

from inference.link.engine_info import AdapterRef
from tenants.errors import (
    AdapterInUse,
    IllegalTransition,
    NothingToRollBackTo,
    VersionInUse,
    VersionNotReady,
)
from tenants.models.accounts import Tenant, User
from tenants.naming import LIVE, lora_name

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
NAME_RULE = "Lower-case letters, digits, dots, underscores and hyphens, up to 63."
DIGEST = r"^[0-9a-f]{64}$"
LOOKS_LIKE_A_VERSION = r"^([0-9]+|[0-9a-f]{8,64})$"
"""An alias of this form would be ambiguous with a version number or a digest prefix."""


DEFAULTS: Mapping[str, tuple[type[int] | type[float], Any, Any]] = {
    "temperature": (float, 0.0, 2.0),
    "top_p": (float, 0.0, 1.0),
    "top_k": (int, -1, 1_000_000),
    "min_p": (float, 0.0, 1.0),
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "repetition_penalty": (float, 0.01, 10.0),
    "max_tokens": (int, 1, 10_000_000),
}
"""The parameters for which a base model may have defaults: type, minimum, maximum."""


def check_defaults(fields: Any) -> None:
    """Validate the defaults of a base model, named as in OpenAI's API and vLLM.

    Raises:
        ValidationError: a name, type or value is not allowed.
    """
    if not isinstance(fields, dict):
        raise ValidationError("This must be a JSON object.")
    for name, value in fields.items():
        if name not in DEFAULTS:
            raise ValidationError(f"`{name}` is not one of {', '.join(DEFAULTS)}.")
        kind, least, most = DEFAULTS[name]
        number = isinstance(value, int if kind is int else (int, float))
        if isinstance(value, bool) or not number or not least <= value <= most:
            number_kind = "whole number" if kind is int else "number"
            raise ValidationError(f"`{name}` must be a {number_kind} from {least:g} to {most:g}.")


class BaseModelQuerySet(models.QuerySet["BaseModel"]):
    def that_chat(self) -> Self:
        """Base models with an engine that chats, or that has not reported its operations."""
        says = Q(revisions__operations__contains=["chat"])
        silent = Q(revisions__isnull=True) | Q(revisions__operations=[])
        return self.filter(says | silent).distinct()


class BaseModel(models.Model):
    """A pool: a model that engines serve. Its figures are those of its most capable revision
    (`PoolRevision`).

    `modules` maps the dotted path of each module that can carry an adapter to its
    [out_features, in_features].
    """

    name = models.CharField(max_length=255, unique=True)
    max_model_len = models.PositiveIntegerField()
    max_lora_rank = models.PositiveIntegerField()
    modules = models.JSONField(default=dict)
    engine = models.CharField(max_length=32)
    defaults = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        validators=[check_defaults],
        help_text="Sampling parameters for requests that lack them, such as `temperature` and "
        "`max_tokens`.",
    )
    serves_new = models.BooleanField(
        default=False,
        db_default=False,
        help_text="A new revision serves at once, beside the others, without a rollout.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = BaseModelQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Adapter(models.Model):
    """A tenant's name for a line of adapter versions on one base model."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=63, validators=[RegexValidator(NAME, NAME_RULE)])
    base_model = models.ForeignKey(BaseModel, models.PROTECT, related_name="adapters")
    pinned = models.BooleanField(
        default=False,
        help_text="Engines keep its live version loaded. Only operators can set this.",
    )
    short_lived = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="All its versions expire: a training loop loads them.",
    )
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="adapter_name_unique"),
            models.CheckConstraint(condition=Q(name__regex=NAME), name="adapter_name_form"),
        ]
        indexes = [models.Index(fields=["id"], condition=Q(pinned=True), name="adapter_pinned")]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"

    def clean(self) -> None:
        if BaseModel.objects.filter(name=self.name).exists():
            raise ValidationError({"name": "A base model already has this name."})
        if self.tenant.routes.filter(name=self.name).exists():
            raise ValidationError({"name": "A route already has this name."})

    def add_version(self, digest: str, **fields: Any) -> tuple[AdapterVersion, bool]:
        """The version with this content, and whether it is new.

        A new one gets the adapter's next number and starts as `uploading`; `fields` are its other
        fields. The adapter's row is locked, so that two uploads at once get two numbers.
        """
        with transaction.atomic():
            Adapter.objects.select_for_update().get(pk=self.pk)
            known = self.versions.filter(digest=digest).first()
            if known is not None:
                return known, False
            last = self.versions.aggregate(last=models.Max("number"))["last"] or 0
            return self.versions.create(digest=digest, number=last + 1, **fields), True

    def promote(self, version: AdapterVersion, alias: str = LIVE) -> Alias:
        """Point the alias at the version; creates the alias if it does not exist.

        Raises:
            EvalMissed: the alias requires an eval that the version has not passed.
            VersionNotReady: the version is not ready, or is another adapter's.
        """
        if gate := self.gates.filter(alias=alias).select_related("eval").first():
            gate.require(version)
        try:
            with transaction.atomic():
                pointer, made = self.aliases.get_or_create(
                    name=alias, defaults={"version": version}
                )
        except IntegrityError as error:
            raise VersionNotReady from error
        if not made:
            pointer.promote(version)
        return pointer

    def retire(self) -> None:
        """Delete the adapter with its versions; its usage stays in the ledger.

        Raises:
            AdapterInUse: an alias still points at a version.
        """
        with transaction.atomic():
            Adapter.objects.select_for_update().get(pk=self.pk)
            if self.aliases.exists():
                raise AdapterInUse
            self.delete()

    def discard(self) -> None:
        """Delete the adapter with its aliases and versions; its usage stays in the ledger."""
        with transaction.atomic():
            Adapter.objects.select_for_update().get(pk=self.pk)
            self.aliases.all().delete()
            self.delete()


class State(models.TextChoices):
    UPLOADING = "uploading"
    VALIDATING = "validating"
    PROBING = "probing"
    READY = "ready"
    REJECTED = "rejected"
    ARCHIVED = "archived"


SOURCES: Mapping[State, tuple[State, ...]] = {
    # A job that is repeated after a crash enters its own state again.
    State.UPLOADING: (State.UPLOADING,),
    # Uploading the content of an archived version restores it.
    State.VALIDATING: (State.UPLOADING, State.VALIDATING, State.PROBING, State.ARCHIVED),
    State.PROBING: (State.VALIDATING, State.PROBING),
    State.READY: (State.PROBING, State.READY),
    State.REJECTED: (State.UPLOADING, State.VALIDATING, State.PROBING, State.REJECTED),
    State.ARCHIVED: (State.READY, State.REJECTED, State.ARCHIVED),
}
"""The states from which each state can be reached."""


class AdapterVersion(models.Model):
    """One immutable content of an adapter, named by its digest (`inference.content.digest_of`).

    `folder` is where its files are in the `adapters` storage, empty if they were deleted;
    `trained_on` is the base model that its `adapter_config.json` names; `converted` has a sentence
    for each change that was made to a file (its original is kept), by the file's name; `left_out`
    names what was sent with it and not read; `report` is the result of validation and probe;
    `config` is the checked configuration. A version with `expires_at` is short-lived: it is not
    probed, and deleted after that time (`tenants.adapters.short_lived`).
    """

    adapter = models.ForeignKey(
        Adapter, models.CASCADE, related_name="versions", db_index=False
    )  # indexed by `version_number_unique`
    number = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=State, default=State.UPLOADING)
    size_bytes = models.PositiveBigIntegerField(default=0)
    folder = models.CharField(max_length=255, blank=True)
    trained_on = models.CharField(max_length=255, blank=True)
    converted = models.JSONField(default=dict, blank=True)
    left_out = models.JSONField(default=list, blank=True)
    config = models.JSONField(default=dict, blank=True)
    report = models.JSONField(default=dict, blank=True)
    expires_at = models.DateTimeField(null=True, editable=False)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(fields=["adapter", "number"], name="version_number_unique"),
            models.UniqueConstraint(fields=["adapter", "digest"], name="version_digest_unique"),
            models.CheckConstraint(condition=Q(number__gte=1), name="version_number_positive"),
            models.CheckConstraint(condition=Q(digest__regex=DIGEST), name="version_digest_form"),
            models.CheckConstraint(
                condition=Q(
                    state__in=[
                        "uploading",
                        "validating",
                        "probing",
                        "ready",
                        "rejected",
                        "archived",
                    ]
                ),
                name="version_state_known",
            ),
        ]
        indexes = [
            models.Index(fields=["digest"], name="version_by_digest"),
            models.Index(
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False),
                name="version_by_expiry",
            ),
            # Sums a tenant's stored bytes without reading all versions.
            models.Index(
                fields=["adapter"],
                include=["size_bytes"],
                condition=~Q(folder=""),
                name="version_sizes",
            ),
            # A tenant's versions in one state, for the playground and the overview.
            models.Index(
                fields=["adapter", "state"],
                include=["number", "created_at"],
                name="version_by_state",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.number}"

    @property
    def lora_name(self) -> str:
        """vLLM's LoRA name of this version; never reused for other content."""
        return lora_name(self.adapter.tenant.slug, self.adapter.name, self.digest)

    @property
    def ref(self) -> AdapterRef:
        """The reference to this version that engines get."""
        rank, modules = self.config.get("r", 0), self.config.get("target_modules", ())
        return AdapterRef(self.lora_name, self.digest, rank, tuple(modules))

    def advance(self, state: State, **fields: Any) -> None:
        """Move to the state and set the other fields, in one statement.

        Raises:
            IllegalTransition: that state cannot be reached from the present one.
            VersionInUse: an alias points at it, and it would no longer be ready.
        """
        here = AdapterVersion.objects.filter(pk=self.pk, state__in=SOURCES[state])
        try:
            with transaction.atomic():
                moved = here.update(state=state, **fields)
        except IntegrityError as error:  # the database trigger, which also covers races
            raise VersionInUse from error
        self.refresh_from_db()
        if not moved:
            raise IllegalTransition(f"A version that is {self.state} cannot become {state}.")

    def become_ready(self, **fields: Any) -> None:
        """Make the version ready, and live if the adapter has no live version yet and requires no
        eval for one.

        Raises:
            IllegalTransition: it is not being probed.
        """
        with transaction.atomic():
            self.advance(State.READY, **fields)
            if not self.adapter.gates.filter(alias=LIVE).exists():
                self.adapter.aliases.get_or_create(name=LIVE, defaults={"version": self})

    def archive(self) -> None:
        """Take it out of service; every engine unloads it. Uploading its content restores it.

        Raises:
            VersionInUse: an alias points at it.
            IllegalTransition: it is still being checked.
        """
        self.advance(State.ARCHIVED)

    def remove(self) -> None:
        """Delete the version with its files; its usage stays in the ledger.

        Raises:
            VersionInUse: an alias points at it.
        """
        try:
            with transaction.atomic():
                AdapterVersion.objects.select_for_update().filter(pk=self.pk).first()
                if self.splits.filter(ended_at=None).exists():
                    raise VersionInUse
                self.delete()
        except RestrictedError as error:
            raise VersionInUse from error


class Alias(models.Model):
    """A name of an adapter that points at a ready version, and the version it pointed at before.

    A database trigger restricts it to ready versions of its own adapter.
    """

    adapter = models.ForeignKey(Adapter, models.CASCADE, related_name="aliases")
    name = models.CharField(
        max_length=63,
        validators=[
            RegexValidator(NAME, NAME_RULE),
            RegexValidator(
                LOOKS_LIKE_A_VERSION,
                "The name must not look like a version number or a digest.",
                inverse_match=True,
            ),
        ],
    )
    # RESTRICT: a version in use is not deleted, but a whole tenant or adapter can be.
    version = models.ForeignKey(AdapterVersion, models.RESTRICT, related_name="aliases")
    previous = models.ForeignKey(
        AdapterVersion, models.SET_NULL, null=True, editable=False, related_name="+"
    )
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        verbose_name_plural = "aliases"
        constraints = [
            models.UniqueConstraint(fields=["adapter", "name"], name="alias_name_unique"),
            models.CheckConstraint(condition=Q(name__regex=NAME), name="alias_name_form"),
            models.CheckConstraint(
                condition=~Q(name__regex=LOOKS_LIKE_A_VERSION), name="alias_name_no_version"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter}@{self.name}"

    def promote(self, version: AdapterVersion) -> None:
        """Point at the version in one UPDATE; no change if it does already.

        Raises:
            VersionNotReady: the version is not ready, or is another adapter's.
        """
        elsewhere = Alias.objects.filter(pk=self.pk).exclude(version=version)
        self._point(elsewhere, version=version, previous=F("version"))

    def roll_back(self) -> None:
        """Point at the previous version in one UPDATE.

        After that there is no previous version, so that a second roll back is refused rather than
        undoing the first, which would happen when two people press the button at once.

        Raises:
            NothingToRollBackTo: there is no previous version, or it is no longer ready.
        """
        here = Alias.objects.filter(pk=self.pk, previous__isnull=False)
        try:
            moved = self._point(here, version=F("previous"), previous=None)
        except VersionNotReady as error:
            raise NothingToRollBackTo from error
        if not moved:
            raise NothingToRollBackTo

    def _point(self, rows: models.QuerySet[Alias], **fields: Any) -> bool:
        now: datetime = timezone.now()
        try:
            with transaction.atomic():
                moved = rows.update(**fields, changed_at=now)
        except IntegrityError as error:  # the trigger: not ready, or another adapter's
            raise VersionNotReady from error
        self.refresh_from_db()
        return bool(moved)
