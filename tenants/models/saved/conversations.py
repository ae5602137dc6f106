"""Conversations of the playground that a member keeps, and may show to others of the tenant.

They belong to the membership and go with it. Their text is nobody else's business: neither logs
nor the audit log, which says who made, shared and deleted one, ever hold any of it, nor the title.
"""

from __future__ import annotations

from uuid import UUID, uuid4

from django.db import models, transaction
from django.db.models import F, Func
from django.db.models.lookups import LessThanOrEqual
from django.utils import timezone

from tenants.errors import ConversationChanged, ConversationTooLarge, TooManyConversations
from tenants.models.accounts import Membership, Tenant, User

MAX_CONVERSATIONS = 200
"""Of one member of one tenant."""
MAX_BYTES = 1 << 19
"""Of one conversation: some 90,000 words."""
MAX_TITLE = 120


class ConversationQuerySet(models.QuerySet["Conversation"]):
    def of(self, tenant: Tenant, user: User | None) -> ConversationQuerySet:
        """This member's own."""
        return self.filter(member__tenant=tenant, member__user=user)

    def shared_in(self, tenant: Tenant, link: UUID) -> Conversation | None:
        """What this link of a tenant leads to."""
        found = self.filter(member__tenant=tenant, shared_as=link)
        return found.select_related("member__user").first()

    def keep(self, member: Membership, title: str, panes: str) -> Conversation:
        """Store a new conversation.

        Raises:
            TooManyConversations: the member has MAX_CONVERSATIONS.
            ConversationTooLarge: see `Conversation.update`.
        """
        _check_size(panes)
        with transaction.atomic():
            # The membership's row is the lock: two tabs that save at once take turns.
            Membership.objects.select_for_update().get(pk=member.pk)
            if self.filter(member=member).count() >= MAX_CONVERSATIONS:
                raise TooManyConversations(
                    f"You keep {MAX_CONVERSATIONS} conversations, the most that one may have: "
                    "delete some first."
                )
            return self.create(member=member, title=title, panes=panes)


class Conversation(models.Model):
    """One to four panes, each with its model, its parameters and its tree of messages."""

    member = models.ForeignKey(Membership, models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=MAX_TITLE)
    panes = models.TextField()
    """JSON, checked by whoever takes it in. Not jsonb: the order in a JSON schema has a meaning."""
    revision = models.PositiveIntegerField(default=1)
    """Counts changes of the panes, so that two tabs don't undo each other's."""
    shared_as = models.UUIDField(null=True, unique=True)
    """What the link ends with by which others of the tenant read it; None where it is private."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now_add=True)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        ordering = ["-updated_at", "-id"]
        indexes = [models.Index(fields=["member", "-updated_at", "-id"], name="conversation_list")]
        constraints = [
            models.CheckConstraint(
                condition=LessThanOrEqual(
                    Func(
                        F("panes"),
                        function="octet_length",
                        output_field=models.IntegerField(),
                    ),
                    MAX_BYTES,
                ),
                name="conversation_within_bounds",
            ),
        ]

    def __str__(self) -> str:
        return f"conversation {self.pk}"

    def update(self, panes: str, revision: int) -> None:
        """Replace the panes of what was read as this revision.

        Raises:
            ConversationChanged: somebody was quicker; nothing was changed.
            ConversationTooLarge: they are over MAX_BYTES.
        """
        _check_size(panes)
        now = timezone.now()
        read = Conversation.objects.filter(pk=self.pk, revision=revision)
        if not read.update(panes=panes, revision=revision + 1, updated_at=now):
            raise ConversationChanged
        self.panes, self.revision, self.updated_at = panes, revision + 1, now

    def rename(self, title: str) -> None:
        """Give it another title."""
        self.title = title
        self.save(update_fields=["title"])

    def share(self) -> UUID:
        """Let others of the tenant read it, as it is and as it becomes; returns the link's end."""
        if self.shared_as is None:
            self.shared_as = uuid4()
            self.save(update_fields=["shared_as"])
        return self.shared_as

    def unshare(self) -> None:
        """Make the link worthless; a later one is another."""
        self.shared_as = None
        self.save(update_fields=["shared_as"])


def _check_size(panes: str) -> None:
    if (size := len(panes.encode())) > MAX_BYTES:
        raise ConversationTooLarge(
            f"This conversation has {size // 1024:,} KiB; at most {MAX_BYTES // 1024:,} are kept. "
            "Begin a new one."
        )
