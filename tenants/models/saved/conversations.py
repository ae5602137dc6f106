"""Conversations of the playground that a member saves, and may share with others of the tenant.

They belong to the membership and are deleted with it. Their text and title are private: neither
logs nor the audit log, which records who made, shared and deleted one, ever contain them.
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
"""At most how many one member of one tenant keeps."""
MAX_BYTES = 1 << 19
"""Size of one conversation: some 90,000 words."""
MAX_TITLE = 120


class ConversationQuerySet(models.QuerySet["Conversation"]):
    def of(self, tenant: Tenant, user: User | None) -> ConversationQuerySet:
        """This member's own conversations."""
        return self.filter(member__tenant=tenant, member__user=user)

    def shared_in(self, tenant: Tenant, link: UUID) -> Conversation | None:
        """The conversation to which this link of a tenant leads."""
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
            # The membership's row is the lock: it serializes two tabs that save at once.
            Membership.objects.select_for_update().get(pk=member.pk)
            if self.filter(member=member).count() >= MAX_CONVERSATIONS:
                raise TooManyConversations(
                    f"You have {MAX_CONVERSATIONS} conversations, the maximum. Delete some first."
                )
            return self.create(member=member, title=title, panes=panes)


class Conversation(models.Model):
    """One to four panes, each with its model, its parameters and its tree of messages."""

    member = models.ForeignKey(Membership, models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=MAX_TITLE)
    panes = models.TextField()
    """JSON, validated by the code that receives it. Not jsonb, which loses the order of keys, and
    that has a meaning in a JSON schema."""
    revision = models.PositiveIntegerField(default=1)
    """Counts changes of the panes, so that two tabs do not undo each other's changes."""
    shared_as = models.UUIDField(null=True, unique=True)
    """The end of the link by which others of the tenant read it; None if it is private."""
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
        """Replace the panes, which the caller has read at this revision.

        Raises:
            ConversationChanged: they were changed since then; nothing was changed now.
            ConversationTooLarge: they are larger than MAX_BYTES.
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
        """Let others of the tenant read it, later changes included; returns the link's end."""
        if self.shared_as is None:
            self.shared_as = uuid4()
            self.save(update_fields=["shared_as"])
        return self.shared_as

    def unshare(self) -> None:
        """Invalidate the link; sharing it again gives another one."""
        self.shared_as = None
        self.save(update_fields=["shared_as"])


def _check_size(panes: str) -> None:
    if (size := len(panes.encode())) > MAX_BYTES:
        raise ConversationTooLarge(
            f"This conversation has {size // 1024:,} KiB; at most {MAX_BYTES // 1024:,} "
            "KiB can be stored. Start a new one."
        )
