"""Every page of the console, taken from the URL configuration, so that no new one is forgotten.

`pages(tenant)` returns each with its address, once for each role that may open it. For a stack with
a database of its own, `pages_of(Subject(...))` does so without a query.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.urls import URLPattern, URLResolver, reverse

from frontend.urls import urlpatterns
from frontend.views import live
from tenants.models import BaseModel, Conversation, Rollout, State, Tenant
from tenants.permissions import RANK, TABLE, Permission

LIVE = frozenset(route.name for route in (*live.OF_TENANT, *live.OF_ALL) if route.name)
PARTS = (
    frozenset(
        {
            "audit-export",
            "batches-download",
            "batches-file",
            "find",
            "find-tenant",
            "operate_usage-export",
            "requests-export",
            "requests-receipt",
        }
    )
    | LIVE
)
"""Addresses that answer with less than a whole page: fragments and downloads."""
PASSING = frozenset(
    {
        "console",
        "join",
        "invitation",
        "content-confirmation",
        "data-download",
        "data-receipt",
        "openid_connect_callback",
        "operate_engines-drain",
        "playground-conversation",
        "playground-prompt",
        "playground-set",
    }
)
"""Addresses that redirect, or need something that does not always exist: an invitation, an engine,
a conversation, a prompt or a prompt set of one's own, a key that was destroyed, an archive, a
deletion."""
NOT_OWN = {"requests-one": Permission.READ_USAGE, "requests-receipt": Permission.READ_USAGE}
"""The permission that these addresses need for what other members made."""
ACCOUNT = {
    "nobody": ("account_login", "account_reset_password"),
    "viewer": (
        "account_change_password",
        "account_email",
        "mfa_index",
        "mfa_list_webauthn",
        "usersessions_list",
    ),
}
"""Pages of allauth, by the role that opens them here."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as one role sees it: owner, admin, developer, viewer, operator or nobody."""

    name: str
    url: str
    role: str


@dataclass(frozen=True, slots=True)
class Subject:
    """The objects that pages show: a tenant by its slug, an adapter of it with a version's number,
    row ids of a key, a base model and a rollout, a request, the link of a shared conversation, a
    batch that has a file of requests, a file, an eval with two or three completed runs, and a
    fine-tuning job. Pages of objects that are None are left out."""

    slug: str
    adapter: str | None = None
    number: int | None = None
    key: int | None = None
    base_model: int | None = None
    request_id: str | None = None
    shared: UUID | None = None
    rollout: int | None = None
    batch: str | None = None
    file: str | None = None
    eval: str | None = None
    run: str | None = None
    later_run: str | None = None
    third_run: str | None = None
    job: str | None = None
    route: str | None = None

    @classmethod
    def of(cls, tenant: Tenant) -> Subject:
        """The first of each in the database; adapters with a ready version are preferred."""
        adapter = tenant.adapters.filter(versions__state=State.READY).first()
        adapter = adapter or tenant.adapters.filter(versions__isnull=False).first()
        version = adapter.versions.first() if adapter else None
        key = tenant.keys.with_text().filter(revoked_at=None).first()
        base = BaseModel.objects.first()
        eval = tenant.evals.filter(runs__isnull=False).first()
        runs = [*eval.runs.filter(status="completed")[:3]] if eval else []
        later, earlier, third = [*(run.pk for run in runs), None, None, None][:3]
        shared = Conversation.objects.filter(member__tenant=tenant, shared_as__isnull=False)
        return cls(
            tenant.slug,
            adapter.name if adapter else None,
            version.number if version else None,
            key.pk if key else None,
            base.pk if base else None,
            tenant.usage.values_list("pk", flat=True).first(),
            shared.values_list("shared_as", flat=True).first(),
            Rollout.objects.values_list("pk", flat=True).first(),
            tenant.batches.values_list("pk", flat=True).first(),
            tenant.files.values_list("pk", flat=True).first(),
            eval.pk if eval else None,
            earlier,
            later,
            third,
            tenant.tuning_jobs.values_list("pk", flat=True).first(),
            tenant.routes.values_list("name", flat=True).first(),
        )

    def arguments(self, page: str) -> Mapping[str, Any]:
        """The values of the arguments of the address with this name."""
        pk = self.base_model if page.startswith("operate_models") else self.key
        return {
            "slug": self.slug,
            "tenant_slug": self.slug,
            "name": self.adapter,
            "number": self.number,
            "pk": pk,
            "link": self.shared,
            "request_id": self.request_id,
            "rollout": self.rollout,
            "batch_id": self.batch,
            "file_id": self.file,
            "eval_id": self.eval,
            "run_id": self.run,
            "job_id": self.job,
            "route": self.route,
            "role": "input",
            "document": "adapters",
        }

    def query(self, page: str) -> Mapping[str, Any]:
        """The query parameters that the page of this name requires."""
        queries: dict[str, Mapping[str, Any]] = {
            "adapters-diff": {"with": self.number},
            "operate_live-rollouts": {"rollout": self.rollout},
            "live-batches": {"batch": self.batch},
            "evals-compare": {"a": self.run, "b": self.later_run}
            | ({"c": self.third_run} if self.third_run else {}),
        }
        return queries.get(page, {})


def pages(tenant: Tenant) -> list[Page]:
    """Every whole page of the console, once for each role that may open it."""
    return pages_of(Subject.of(tenant))


def pages_of(subject: Subject) -> list[Page]:
    """As `pages`, for a given subject."""
    found = [page for page in _all(subject) if page.name not in PARTS]
    account = [Page(name, reverse(name), role) for role, names in ACCOUNT.items() for name in names]
    return found + account


def parts(tenant: Tenant) -> list[Page]:
    """The addresses in PARTS, as `pages`."""
    return [page for page in _all(Subject.of(tenant)) if page.name in PARTS]


def names() -> list[str]:
    """The URL names of all addresses that answer GET, except allauth's."""
    return [address.name for address in _addresses(urlpatterns)]


@dataclass(frozen=True, slots=True)
class _Address:
    """One line of the URL configuration that answers GET."""

    name: str
    arguments: frozenset[str]
    roles: tuple[str, ...]

    def pages(self, subject: Subject) -> Iterator[Page]:
        known = subject.arguments(self.name)
        if unknown := self.arguments - known.keys():
            raise LookupError(f"tell Subject.arguments what {unknown} of {self.name!r} is")
        given = {argument: known[argument] for argument in self.arguments}
        query = subject.query(self.name)
        if None not in (*given.values(), *query.values()):
            url = reverse(self.name, kwargs=given, query=query or None)
            yield from (Page(self.name, url, role) for role in self.roles)


def _all(subject: Subject) -> Iterator[Page]:
    for address in _addresses(urlpatterns):
        if address.name not in PASSING:
            yield from address.pages(subject)


def _addresses(
    found: Iterable[URLPattern | URLResolver], above: frozenset[str] = frozenset()
) -> Iterator[_Address]:
    """All addresses of the console itself: allauth's are included as a module, not as a list."""
    for one in found:
        arguments = above | one.pattern.converters.keys()
        if isinstance(one, URLPattern):
            if "GET" in _told(one.callback, "request_method_list", ["GET"]):
                yield _Address(one.name or "", arguments, _roles(one.name or "", one.callback))
        elif isinstance(one.urlconf_name, list):
            yield from _addresses(one.urlconf_name, arguments)


def _roles(name: str, view: Callable[..., Any]) -> tuple[str, ...]:
    """The roles that may open the page, by the permission of `tenant_page`; without one it is for
    operators only."""
    permission = NOT_OWN.get(name) or _told(view, "permission", Permission.OPERATE)
    least = TABLE[permission][0]
    members = RANK[RANK.index(least) :] if least is not None else []
    return (*(role.value for role in members), "operator")


def _told(view: Callable[..., Any], name: str, default: Any) -> Any:
    """The argument of this name that one of the view's decorators was given."""
    found: Callable[..., Any] | None = view
    while found is not None:
        told = inspect.getclosurevars(found).nonlocals
        if name in told:
            return told[name]
        found = getattr(found, "__wrapped__", None)
    return default
