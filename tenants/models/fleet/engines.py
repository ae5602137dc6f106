"""Credentials that engines present to gateways: `le_<prefix>_<secret>`, shown once, stored as the
prefix and an HMAC, like API keys."""

from __future__ import annotations

from collections.abc import Collection

from django.contrib.postgres.fields import ArrayField
from django.db import IntegrityError, models, transaction
from django.db.models import Q

from tenants.errors import CredentialExists, CredentialRevoked
from tenants.models.accounts import User
from tenants.models.keys import Credential


class EngineCredentialQuerySet(models.QuerySet["EngineCredential"]):
    def issue(
        self, *, name: str, pools: Collection[str] | None = None, created_by: User | None = None
    ) -> tuple[EngineCredential, str]:
        """Make a credential; returns it and its text, which cannot be recovered later.

        Raises:
            CredentialExists: another one that is not revoked has this name.
        """
        credential = EngineCredential(
            name=name, pools=None if pools is None else sorted(pools), created_by=created_by
        )
        text = credential.set_new_secret()
        try:
            with transaction.atomic():
                credential.save()
        except IntegrityError:
            raise CredentialExists from None
        return credential, text

    def live(self) -> EngineCredentialQuerySet:
        """Credentials that are not revoked."""
        return self.filter(revoked_at=None)


class EngineCredential(Credential):
    """The identity of an engine, which bills and fetches only what was dispatched to this
    credential.

    Gateways are notified of every change immediately (`sql/notices.sql`); they close the links of
    an engine whose credential was revoked or has another secret.
    """

    KIND = "le"

    name = models.CharField(
        max_length=200, help_text="For example the machine that the engine runs on."
    )
    pools = ArrayField(
        models.CharField(max_length=255),
        null=True,
        blank=True,
        help_text="Base models that the engine may serve; empty: all.",
    )
    last_seen_at = models.DateTimeField(null=True, editable=False)
    stopped_at = models.DateTimeField(null=True, editable=False)
    """When its engine last stopped because it was drained or told to; null while it runs."""

    objects = EngineCredentialQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["name"],
                condition=Q(revoked_at__isnull=True),
                name="engine_credential_name_unique",
            ),
            models.CheckConstraint(condition=~Q(name=""), name="engine_credential_named"),
        ]

    def __str__(self) -> str:
        return f"{self.name} (le_{self.prefix}…)"

    def rotate(self) -> str:
        """Replace the secret; returns the new text. The old one is invalid at once. What was
        dispatched to the engine stays its own to bill.

        Raises:
            CredentialRevoked: it is revoked already.
        """
        text = self.set_new_secret()
        rotated = EngineCredential.objects.live().filter(pk=self.pk)
        if not rotated.update(prefix=self.prefix, secret_hmac=self.secret_hmac):
            raise CredentialRevoked
        return text
