"""Invitations: links that make the signed-in user who opens one a member of a tenant."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from tenants.errors import InvitationOver, TooManyInvitations
from tenants.models.accounts import Membership, Role, Tenant, User

VALID_FOR = timedelta(days=7)
KEPT_FOR = timedelta(days=30)
"""How long an invitation is kept after its end."""
MAX_OPEN = 50
"""At most how many invitations of one tenant are open at a time."""


def digest_of(token: str) -> bytes:
    """The stored hash of a link's token: 256 random bits need no slow hash."""
    return hashlib.sha256(token.encode()).digest()


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def invite(
        self, tenant: Tenant, *, role: Role, note: str, by: User | None
    ) -> tuple[Invitation, str]:
        """Make an invitation; returns it and the token of its link, which cannot be recovered
        later. `by` is None if a key makes it.

        Raises:
            TooManyInvitations: MAX_OPEN of the tenant are open.
        """
        token = secrets.token_urlsafe(32)
        with transaction.atomic():
            Tenant.objects.select_for_update().get(pk=tenant.pk)  # serializes counting
            if self.open().filter(tenant=tenant).count() >= MAX_OPEN:
                raise TooManyInvitations
            made = self.create(
                tenant=tenant,
                role=role,
                note=note,
                token_digest=digest_of(token),
                created_by=by,
                expires_at=timezone.now() + VALID_FOR,
            )
        return made, token

    def open(self) -> InvitationQuerySet:
        """Invitations that can still be accepted."""
        now = timezone.now()
        return self.filter(accepted_at=None, withdrawn_at=None, expires_at__gt=now)

    def long_over(self) -> InvitationQuerySet:
        """Invitations that were accepted, withdrawn or expired more than KEPT_FOR ago."""
        before = timezone.now() - KEPT_FOR
        ended = Q(accepted_at__lt=before) | Q(withdrawn_at__lt=before)
        return self.filter(ended | Q(expires_at__lt=before))

    def find(self, token: str) -> Invitation | None:
        """The open invitation with this token."""
        found = self.open().select_related("tenant").filter(token_digest=digest_of(token))
        return found.first()


class Invitation(models.Model):
    """One link, good for one person."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="invitations")
    role = models.CharField(max_length=16, choices=Role)
    note = models.CharField(max_length=200, blank=True, help_text="Who the invitation is for.")
    token_digest = models.BinaryField(max_length=32, unique=True)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    accepted_at = models.DateTimeField(null=True)
    withdrawn_at = models.DateTimeField(null=True)

    objects = InvitationQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(role__in=["owner", "admin", "developer", "viewer"]),
                name="invitation_role_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.note or 'somebody'} as {self.role} of {self.tenant}"

    def accept(self, user: User) -> Membership:
        """Make the user a member; a user who is a member already keeps their role.

        Raises:
            InvitationOver: it was accepted, withdrawn, or has expired.
        """
        with transaction.atomic():
            here = Invitation.objects.open().filter(pk=self.pk)
            if not here.update(accepted_by=user, accepted_at=timezone.now()):
                raise InvitationOver
            membership, _ = Membership.objects.get_or_create(
                user=user, tenant=self.tenant, defaults={"role": self.role}
            )
        return membership

    def renew(self) -> str:
        """Replace the link by a new one, which is valid as long as that of a new invitation;
        returns its token.

        Raises:
            InvitationOver: it was accepted, withdrawn, or has expired.
        """
        token = secrets.token_urlsafe(32)
        fields = {"token_digest": digest_of(token), "expires_at": timezone.now() + VALID_FOR}
        if not Invitation.objects.open().filter(pk=self.pk).update(**fields):
            raise InvitationOver
        return token

    def withdraw(self) -> None:
        """Make the link invalid.

        Raises:
            InvitationOver: it was accepted, withdrawn, or has expired.
        """
        if not Invitation.objects.open().filter(pk=self.pk).update(withdrawn_at=timezone.now()):
            raise InvitationOver
