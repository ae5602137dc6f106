"""Users, tenants and memberships."""

from __future__ import annotations

import secrets

from django.contrib.auth.models import AbstractUser, AnonymousUser
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import IntegrityError, models, transaction
from django.db.models import Q

from tenants.errors import LastOperator, LastOwner, TenantBeingDeleted
from tenants.naming import ACTIVE, cache_salt

SLUG = r"^[a-z0-9][a-z0-9-]{0,62}$"
MAX_CONTENT_DAYS = 30
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
"""Bounds of a tenant's share of the engines, which keep virtual token counters exact as floats."""


class User(AbstractUser):
    """A person. An operator of the installation is a user with `is_staff`."""

    @classmethod
    def operators(cls) -> models.QuerySet[User]:
        """The operators who can sign in."""
        return cls.objects.filter(is_staff=True, is_active=True)

    def set_access(self, *, active: bool | None = None, operator: bool | None = None) -> None:
        """Set whether the user can sign in, and whether as an operator; None: no change.

        Raises:
            LastOperator: no operator who can sign in would be left.
        """
        with transaction.atomic():
            operators = User.operators().order_by("pk")
            # The rows are the lock: it serializes two operators who deactivate each other.
            others = [one.pk for one in operators.select_for_update() if one.pk != self.pk]
            self.refresh_from_db(fields=["is_active", "is_staff"])
            if active is not None:
                self.is_active = active
            if operator is not None:
                self.is_staff = operator
            if not others and not (self.is_active and self.is_staff):
                raise LastOperator
            self.save(update_fields=["is_active", "is_staff"])


def new_cache_secret() -> bytes:
    return secrets.token_bytes(32)


class TenantQuerySet(models.QuerySet["Tenant"]):
    def visible_to(self, user: User | AnonymousUser) -> TenantQuerySet:
        """All tenants for an operator; for other users those that they are members of."""
        if not user.is_active or user.is_anonymous:
            return self.none()
        return self.all() if user.is_staff else self.filter(memberships__user=user)

    def customers(self) -> TenantQuerySet:
        """All tenants but internal ones."""
        return self.filter(internal=False)

    def internal(self) -> TenantQuerySet:
        """The installation's own tenants."""
        return self.filter(internal=True)


class Tenant(models.Model):
    """One customer: its own keys, adapters, prefix cache, share of the engines and bill."""

    class Status(models.TextChoices):
        ACTIVE = ACTIVE
        SUSPENDED = "suspended"

    slug = models.CharField(
        max_length=63,
        unique=True,
        validators=[RegexValidator(SLUG, "Lower-case letters, digits and hyphens, up to 63.")],
    )
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(MIN_WEIGHT), MaxValueValidator(MAX_WEIGHT)],
        help_text="Share of the engines, relative to the other tenants.",
    )
    max_stored_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text=(
            "Bytes of adapter files that the tenant may store; empty: the installation's default."
        ),
    )
    max_versions = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Adapter versions that the tenant may store; empty: the installation's default.",
    )
    cache_secret = models.BinaryField(default=new_cache_secret, max_length=32)
    content_days = models.PositiveSmallIntegerField(db_default=0, default=0, editable=False)
    """How many days prompts and answers are kept; 0: not at all (`tenants.content`)."""
    overflow = models.BooleanField(db_default=False, default=False, editable=False)
    """Whether prompts may leave the installation (`inference.gateway.routing.overflow`)."""
    second_factor_required = models.BooleanField(
        db_default=False,
        default=False,
        help_text="Whether members open the tenant only with a second factor, or single sign-on.",
    )
    repair = models.CharField(
        max_length=8,
        choices=[("never", "Never"), ("once", "Once")],
        default="never",
        db_default="never",
        help_text="`once`: a whole answer that does not follow the JSON schema or the tools of its "
        "request is asked for again, once, and both are billed.",
    )
    internal = models.BooleanField(db_default=False, default=False, editable=False)
    """The installation checks itself as this tenant (`tenants.isolation`): lists and sums of all
    tenants leave it out."""
    created_at = models.DateTimeField(auto_now_add=True)

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.CheckConstraint(condition=Q(slug__regex=SLUG), name="tenant_slug_form"),
            models.CheckConstraint(
                condition=Q(status__in=["active", "suspended"]), name="tenant_status_known"
            ),
            models.CheckConstraint(
                condition=Q(weight__gte=MIN_WEIGHT, weight__lte=MAX_WEIGHT),
                name="tenant_weight_in_bounds",
            ),
            models.CheckConstraint(
                condition=Q(repair__in=["never", "once"]), name="tenant_repair_known"
            ),
            models.CheckConstraint(
                condition=Q(content_days__lte=MAX_CONTENT_DAYS), name="tenant_content_days"
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def active(self) -> bool:
        return self.status == self.Status.ACTIVE

    @property
    def deleted(self) -> bool:
        """Whether its deletion has begun: nothing can be changed any more."""
        return not self.active and hasattr(self, "deletion") and bool(self.deletion.started_at)

    def set_status(self, status: Status) -> None:
        """Suspend or activate the tenant. Gateways are notified.

        Raises:
            TenantBeingDeleted: it would be active although it is to be deleted.
        """
        before, self.status = self.status, status
        try:
            with transaction.atomic():
                self.save(update_fields=["status"])
        except IntegrityError as error:  # the database trigger
            self.status = before
            raise TenantBeingDeleted from error

    @property
    def salt(self) -> str:
        """The prefix-cache salt: a keyed hash, so that no tenant can derive another's."""
        return cache_salt(bytes(self.cache_secret), self.pk)


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class MembershipQuerySet(models.QuerySet["Membership"]):
    def owners(self) -> MembershipQuerySet:
        return self.filter(role=Role.OWNER)


class Membership(models.Model):
    """A user's role in a tenant. A tenant that has an owner keeps one (a database trigger enforces
    this too)."""

    # PROTECT: deleting a user must not silently leave a tenant without an owner.
    user = models.ForeignKey(User, models.PROTECT, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = MembershipQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant"], name="membership_once_per_user"),
            models.CheckConstraint(
                condition=Q(role__in=["owner", "admin", "developer", "viewer"]),
                name="membership_role_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} ({self.role})"

    def clean(self) -> None:
        """Report as a form error what the database would refuse at the commit."""
        if self.pk and self.role != Role.OWNER and self.is_last_owner():
            raise ValidationError({"role": LastOwner().message})

    def is_last_owner(self) -> bool:
        """Whether this member, as stored, is the tenant's only owner."""
        owners = Membership.objects.owners().filter(tenant=self.tenant_id)
        return [owner.pk for owner in owners[:2]] == [self.pk]

    def change_role(self, role: Role) -> None:
        """Give the member another role.

        Raises:
            LastOwner: it is the tenant's only owner and would no longer be one.
        """
        with transaction.atomic():
            if role != Role.OWNER:
                self._require_another_owner()
            self.role = role
            self.save(update_fields=["role"])

    def remove(self) -> None:
        """End the membership.

        Raises:
            LastOwner: it is the tenant's only owner.
        """
        with transaction.atomic():
            self._require_another_owner()
            self.delete()

    def _require_another_owner(self) -> None:
        # The tenant's row is the lock: it serializes two owners who demote each other at once.
        Tenant.objects.select_for_update().get(pk=self.tenant_id)
        if self.is_last_owner():
            raise LastOwner
