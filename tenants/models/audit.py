"""The audit log: who changed what. The database itself writes it (`sql/audit.sql`).

A trigger on each audited table writes an entry in the transaction of the change. `acting` sets the
actor on the connection; changes without an actor (psql, a background job) are the system's.
Entries are never changed or deleted; the database enforces this too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Self

import msgspec
import structlog
from django.db import connection, models
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest

from tenants.models.accounts import Tenant, User
from tenants.models.adapters import State
from tenants.models.keys import ApiKey

KINDS = ("user", "key", "system")
"""The kinds of actors."""
SUBJECTS = {
    "tenant": "tenant",
    "member": "member",
    "invitation": "invitation",
    "key": "API key",
    "limits": "limits",
    "adapter": "adapter",
    "version": "adapter version",
    "alias": "alias",
    "split": "split of an alias",
    "gate": "eval that an alias requires",
    "price": "price",
    "credential": "engine credential",
    "quarantined": "quarantined entry",
    "conversation": "conversation",
    "base model": "base model",
    "revision": "revision",
    "rollout": "rollout",
    "turn": "turn in a rollout",
    "webhook": "webhook",
    "alert rule": "alert rule",
    "content": "stored prompt",
    "content key": "key of stored prompts",
    "tuning job": "fine-tuning job",
    "export": "export",
    "deletion": "deletion of the tenant",
}
"""What changes: kinds of entries, in words."""
ACTIONS = ("created", "changed", "deleted", "viewed", "read", "downloaded")
STEPS = (State.UPLOADING, State.VALIDATING, State.PROBING)
"""The states of a version whose checks are under way."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change: `kind` is `user` or `key`, `id` its row, `name` is for display,
    `address` the network address of the request."""

    kind: str
    id: int
    name: str
    address: str = ""
    request_id: str = ""


SYSTEM = Actor("system", 0, "")
ACTING = "SELECT set_config('lorikeet.actor', %s, false)"
"""Sets the actor on a connection: an actor as JSON, or an empty string for the system."""


def act_as(actor: Actor | None) -> None:
    """Attribute this connection's further changes to the actor; None: to the system."""
    encoded = msgspec.json.encode(asdict(actor)).decode() if actor else ""
    with connection.cursor() as cursor:
        cursor.execute(ACTING, [encoded])


def actor_of(request: HttpRequest, key: ApiKey | None = None) -> Actor | None:
    """The actor of this request: `key`, else the signed-in user; None without either."""
    address = str(request.META.get("REMOTE_ADDR", ""))
    request_id = str(structlog.contextvars.get_contextvars().get("request_id", ""))
    if key is not None:
        return Actor("key", key.pk, key.name, address, request_id)
    if isinstance(request.user, User):
        return Actor("user", request.user.pk, request.user.username, address, request_id)
    return None


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Attribute changes inside the context to the actor."""
    act_as(actor)
    try:
        yield
    finally:
        act_as(None)


MAX_NAMES = 1_000
"""At most how many matching names are looked up in the log one by one; entries of so many actors
are found among the newest ones anyway."""


class AuditEntryQuerySet(models.QuerySet["AuditEntry"]):
    def by(self, who: str) -> Self:
        """The entries of actors with this text in their names, or of all actors of this kind."""
        named = AuditActor.objects.filter(name__icontains=who)
        names = list(named.values_list("name", flat=True)[: MAX_NAMES + 1])
        found = Q(actor_name__in=names) if len(names) <= MAX_NAMES else Q(actor_name__icontains=who)
        # Kinds have no index: the condition is only added if `who` is a kind, so that otherwise the
        # index on names is used.
        if (kind := who.lower()) in KINDS:
            found |= Q(actor_kind=kind)
        return self.filter(found)

    def of_customers(self) -> Self:
        """Without those of the tenants as which the installation checks itself."""
        return self.exclude(tenant__in=Tenant.objects.internal())

    def without_steps(self) -> Self:
        """Without the steps of a version's checks, of which only the end tells people something."""
        steps = Q(kind="version", action="changed", after__state__in=STEPS)
        return self.exclude(steps)

    def note(
        self, actor: Actor | None, tenant: Tenant, action: str, name: str, kind: str = "tenant"
    ) -> AuditEntry:
        """Write an entry for something other than a change, such as an operator's view of a
        tenant. `actor`: None is the system."""
        by = asdict(actor or SYSTEM)
        return self.create(
            tenant=tenant,
            actor_kind=by["kind"],
            actor_id=by["id"] or None,
            actor_name=by["name"],
            address=by["address"],
            request_id=by["request_id"],
            action=action,
            kind=kind,
            name=name,
            object_id=tenant.pk,
        )


class AuditEntry(models.Model):
    """One change. `before` and `after` hold the columns that differ, never secrets."""

    at = models.DateTimeField(db_default=Now())
    # An entry outlives its subject.
    tenant = models.ForeignKey(
        Tenant,
        models.DO_NOTHING,
        null=True,
        related_name="audit",
        db_index=False,
        db_constraint=False,
    )
    actor_kind = models.CharField(max_length=16)
    actor_id = models.BigIntegerField(null=True)
    actor_name = models.CharField(max_length=255, blank=True)
    address = models.CharField(max_length=64, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=32)
    kind = models.CharField(max_length=32)
    name = models.CharField(max_length=255, blank=True)
    object_id = models.BigIntegerField(null=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    objects = AuditEntryQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["tenant", "-id"], name="audit_by_tenant"),
            models.Index(fields=["actor_name", "-id"], name="audit_by_actor"),
        ]

    def __str__(self) -> str:
        return f"{self.actor_name or 'system'} {self.action} {self.kind} {self.name}"


class AuditActor(models.Model):
    """A name of an actor in the log, who may no longer exist. A trigger on the entries writes it.

    Actors are few and entries many, so a part of a name is searched for here.
    """

    name = models.CharField(primary_key=True, max_length=255)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
