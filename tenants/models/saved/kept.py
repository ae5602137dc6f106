"""What a member keeps under names, so many of each kind at most, and what of it others of the
tenant may use."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

from django.db import models, transaction
from django.db.models import Q

from tenants.errors import TooManySaved
from tenants.models.accounts import Membership, Tenant, User

MAX_NAME = 80
K = TypeVar("K", bound="Kept", covariant=True)


class KeptQuerySet(models.QuerySet[K]):
    def of(self, tenant: Tenant, user: User | None) -> Self:
        """This member's own."""
        return self.filter(member__tenant=tenant, member__user=user)

    def keep(self, member: Membership, name: str, **told: Any) -> K:
        """Store one; one of the same name is replaced.

        Raises:
            TooManySaved: the member has `most` of this kind.
        """
        with transaction.atomic():
            # The membership's row is the lock: two tabs that save at once take turns.
            Membership.objects.select_for_update().get(pk=member.pk)
            mine = self.filter(member=member)
            if mine.exclude(name=name).count() >= self.model.most:
                raise TooManySaved(
                    f"You have {self.model.most} {self.model._meta.verbose_name_plural}, the most "
                    "that one may have: delete some first."
                )
            return mine.update_or_create(member=member, name=name, defaults=told)[0]


class Kept(models.Model):
    """Goes with the membership."""

    most: ClassVar[int]
    """Of one member of one tenant."""
    member = models.ForeignKey(Membership, models.CASCADE, related_name="+")
    name = models.CharField(max_length=MAX_NAME)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"


class SharedQuerySet(KeptQuerySet[K]):
    def usable_by(self, tenant: Tenant, user: User | None) -> Self:
        """This member's own, and what others of the tenant share."""
        mine_or_shared = Q(member__user=user) | Q(shared=True)
        return self.filter(mine_or_shared, member__tenant=tenant).select_related("member__user")


class Shared(Kept):
    """Others of the tenant may use it where its owner says so."""

    shared = models.BooleanField(default=False)

    class Meta:
        abstract = True
