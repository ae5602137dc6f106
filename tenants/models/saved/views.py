"""Filters of the list of requests that a member keeps under a name. They go with the membership."""

from __future__ import annotations

from django.db import models, transaction

from tenants.errors import TooManySavedViews
from tenants.models.accounts import Membership, Tenant, User

MAX_VIEWS = 30
"""Of one member of one tenant."""
MAX_QUERY = 1000


class SavedViewQuerySet(models.QuerySet["SavedView"]):
    def of(self, tenant: Tenant, user: User | None) -> SavedViewQuerySet:
        """This member's own."""
        return self.filter(member__tenant=tenant, member__user=user)

    def keep(self, member: Membership, name: str, query: str) -> SavedView:
        """Store a view; one of the same name is replaced.

        Raises:
            TooManySavedViews: the member has MAX_VIEWS.
        """
        with transaction.atomic():
            # The membership's row is the lock: two tabs that save at once take turns.
            Membership.objects.select_for_update().get(pk=member.pk)
            mine = self.filter(member=member)
            if mine.exclude(name=name).count() >= MAX_VIEWS:
                raise TooManySavedViews(
                    f"You have {MAX_VIEWS} saved views, the most that one may have: "
                    "delete some first."
                )
            return mine.update_or_create(member=member, name=name, defaults={"query": query})[0]


class SavedView(models.Model):
    """`query` is that of the list's address."""

    member = models.ForeignKey(Membership, models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=MAX_QUERY)

    objects = SavedViewQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["member", "name"], name="saved_view_once_per_name")
        ]

    def __str__(self) -> str:
        return self.name
