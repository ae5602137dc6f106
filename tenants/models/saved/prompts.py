"""Prompts of the playground that a member keeps, for himself or for everybody in the tenant.

As of conversations, neither logs nor the audit log ever hold their text.
"""

from __future__ import annotations

from django.db import models, transaction
from django.db.models import Q

from tenants.errors import TooManySavedPrompts
from tenants.models.accounts import Membership, Tenant, User

MAX_PROMPTS = 100
"""Of one member of one tenant."""
MAX_CHARS = 20_000
"""Of the prompt, and of the system prompt."""


class SavedPromptQuerySet(models.QuerySet["SavedPrompt"]):
    def of(self, tenant: Tenant, user: User | None) -> SavedPromptQuerySet:
        """This member's own."""
        return self.filter(member__tenant=tenant, member__user=user)

    def usable_by(self, tenant: Tenant, user: User | None) -> SavedPromptQuerySet:
        """This member's own, and what others of the tenant share."""
        mine_or_shared = Q(member__user=user) | Q(shared=True)
        return self.filter(mine_or_shared, member__tenant=tenant).select_related("member__user")

    def keep(
        self, member: Membership, name: str, *, text: str, system: str, shared: bool
    ) -> SavedPrompt:
        """Store a prompt; one of the same name is replaced.

        Raises:
            TooManySavedPrompts: the member has MAX_PROMPTS.
        """
        with transaction.atomic():
            # The membership's row is the lock: two tabs that save at once take turns.
            Membership.objects.select_for_update().get(pk=member.pk)
            mine = self.filter(member=member)
            if mine.exclude(name=name).count() >= MAX_PROMPTS:
                raise TooManySavedPrompts(
                    f"You have {MAX_PROMPTS} saved prompts, the most that one may have: "
                    "delete some first."
                )
            told = {"text": text, "system": system, "shared": shared}
            return mine.update_or_create(member=member, name=name, defaults=told)[0]


class SavedPrompt(models.Model):
    """What is said to a model: `{{name}}` in it is a variable, for which one is asked."""

    member = models.ForeignKey(Membership, models.CASCADE, related_name="saved_prompts")
    name = models.CharField(max_length=80)
    text = models.TextField(max_length=MAX_CHARS)
    system = models.TextField(max_length=MAX_CHARS, blank=True)
    shared = models.BooleanField(default=False)

    objects = SavedPromptQuerySet.as_manager()

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["member", "name"], name="saved_prompt_once_per_name")
        ]

    def __str__(self) -> str:
        return f"prompt {self.pk}"
