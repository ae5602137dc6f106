"""Base classes for what a member saves under a name, bounded per kind, and may share with others of
the tenant."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

from django.db import models, transaction
from django.db.models import Q

from tenants.errors import TooManySaved
from tenants.models.accounts import Membership, Tenant, User

MAX_NAME = 80
K = TypeVar("K", bound="SavedByMember", covariant=True)


class KeptQuerySet(models.QuerySet[K]):
    def of(self, tenant: Tenant, user: User | None) -> Self:
        """This member's own objects."""
        return self.filter(member__tenant=tenant, member__user=user)

    def keep(self, member: Membership, name: str, **fields: Any) -> K:
        """Store an object; replaces one of the same name.

        Raises:
            TooManySaved: the member has `most` of this kind.
        """
        with transaction.atomic():
            # The membership's row is the lock: it serializes two tabs that save at once.
            Membership.objects.select_for_update().get(pk=member.pk)
            mine = self.filter(member=member)
            if mine.exclude(name=name).count() >= self.model.most:
                raise TooManySaved(
                    f"You have {self.model.most} {self.model._meta.verbose_name_plural}, "
                    "the maximum. Delete some first."
                )
            return mine.update_or_create(member=member, name=name, defaults=fields)[0]


class SavedByMember(models.Model):
    """Deleted with the membership."""

    most: ClassVar[int]
    """At most how many one member of one tenant keeps."""
    member = models.ForeignKey(Membership, models.CASCADE, related_name="+")
    name = models.CharField(max_length=MAX_NAME)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"


class SharedQuerySet(KeptQuerySet[K]):
    def usable_by(self, tenant: Tenant, user: User | None) -> Self:
        """This member's own objects, and those that others of the tenant share."""
        mine_or_shared = Q(member__user=user) | Q(shared=True)
        return self.filter(mine_or_shared, member__tenant=tenant).select_related("member__user")


class Shared(SavedByMember):
    """Others of the tenant may use it if its owner shares it."""

    shared = models.BooleanField(default=False)

    class Meta:
        abstract = True
